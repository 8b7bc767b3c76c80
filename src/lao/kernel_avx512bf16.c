/* kernel_avx512bf16.c - the kernel bodies for AVX-512 with dot products of bf16; bf16 only. */
#include "simd_avx512bf16.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_avx512bf16 = KERNEL_SET;
