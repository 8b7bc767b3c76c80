/* kernel_avx2x16.c - the kernel bodies for the 16-lane body on AVX2 registers; built for tests only. */
#include "simd_avx2x16.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_avx2x16 = KERNEL_SET;
