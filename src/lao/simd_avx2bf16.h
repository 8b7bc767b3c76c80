/* simd_avx2bf16.h - dot products of bf16 out of FMAs, on top of 16 lanes of AVX2: lets a CPU without the instruction run the
 * body in pairs, with its roundings. Tests only; slow. */
#include "simd_avx2x16.h"

#undef ISA_NAME
#define ISA_NAME "avx2bf16"
#define SIMD_PAIRS

/* What is below the smallest normal number is 0 on the way in and on the way out. */
static inline __m256 v_flush8(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f), least = _mm256_set1_ps(0x1p-126f);
    return _mm256_blendv_ps(x, _mm256_and_ps(x, sign), _mm256_cmp_ps(_mm256_andnot_ps(sign, x), least, _CMP_LT_OQ));
}
static inline __m256 v_upper8(__m256 x) {
    return v_flush8(_mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u))));
}
static inline __m256 v_lower8(__m256 x) {
    return v_flush8(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 16)));
}
static inline __m256 v_dot8(__m256 a, __m256 b, __m256 sum) {
    sum = v_flush8(_mm256_fmadd_ps(v_upper8(a), v_upper8(b), v_flush8(sum)));
    return v_flush8(_mm256_fmadd_ps(v_lower8(a), v_lower8(b), sum));
}
static inline vf v_dot(vf a, vf b, vf sum) { return v_pair(v_dot8(a.a, b.a, sum.a), v_dot8(a.b, b.b, sum.b)); }
