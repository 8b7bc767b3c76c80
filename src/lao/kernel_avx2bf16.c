/* kernel_avx2bf16.c - the kernel bodies for dot products of bf16 made of FMAs; built for tests only. */
#include "simd_avx2bf16.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_avx2bf16 = KERNEL_SET;
