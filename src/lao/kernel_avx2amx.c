/* kernel_avx2amx.c - the kernel bodies for tile registers kept in memory; built for tests only. */
#include "simd_avx2amx.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_avx2amx = KERNEL_SET;
