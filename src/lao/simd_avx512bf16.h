/* simd_avx512bf16.h - AVX-512 with dot products of bf16: one instruction multiplies two pairs a lane and adds them in f32.
 * Products of two bf16 numbers are exact in f32; numbers below 2^-126 count as 0. */
#include "simd_avx512.h"

#undef ISA_NAME
#define ISA_NAME "avx512bf16"
#define SIMD_PAIRS

/* sum + the products of the upper halves, rounded; then + those of the lower halves, rounded */
static inline vf v_dot(vf a, vf b, vf sum) { return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b); }
