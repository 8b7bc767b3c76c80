/* kernel_scalar.c - the kernel bodies for plain C, one lane of f32: the reference for every other set. */
#include "simd_scalar.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_scalar = KERNEL_SET;
