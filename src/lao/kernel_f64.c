/* kernel_f64.c - the kernel bodies for plain C, one lane of f64: exact arithmetic in double, for tests and science. */
#define SIMD_F64
#include "simd_scalar.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_f64 = KERNEL_SET;
