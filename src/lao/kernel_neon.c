/* kernel_neon.c - the kernel bodies for AArch64 NEON, 4 lanes. */
#include "simd_neon.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_neon = KERNEL_SET;
