/* kernel_avx2.c - the kernel bodies for AVX2 + FMA + F16C, 8 lanes. */
#include "simd_avx2.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_avx2 = KERNEL_SET;
