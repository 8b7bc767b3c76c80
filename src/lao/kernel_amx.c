/* kernel_amx.c - the kernel bodies for AVX-512 with tile registers; bf16 only. */
#include "simd_amx.h"

#include "kernel_set.h"

const lao_kernels lao_kernels_amx = KERNEL_SET;
