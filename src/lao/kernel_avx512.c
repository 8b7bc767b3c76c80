/* kernel_avx512.c - the kernel bodies for AVX-512, 16 lanes. */
#include "simd_avx512.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_avx512 = KERNEL_SET;
