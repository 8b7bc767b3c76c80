/* simd_avx2.h - the vocabulary of the kernel bodies for AVX2 + FMA + F16C: 8 lanes of f32, 16 registers. */
#include <immintrin.h>
#include <stdint.h>

#define ISA_NAME "avx2"
#define LANES 8
#define QK_ROWS 4 /* keys (or value dims) beside a full panel of 3 vectors: 12 sums + 3 + 1 = 16 registers */
#define KV_ROWS 6 /* keys beside 2 vectors of dims: 12 sums + 2 + 1 = 15 registers */

typedef float real;
typedef __m256 vf;
typedef __m256i vi;
typedef __m256 vm;

static inline vf v_set(real x) { return _mm256_set1_ps(x); }
static inline vf v_load(const real *p) { return _mm256_loadu_ps(p); }
static inline void v_store(real *p, vf x) { _mm256_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm256_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm256_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm256_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); } /* b if either is NaN */
static inline vf v_abs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
static inline vm v_less(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vf v_select(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
/* 2^n where the low bits of the float `t` hold n + 127 (see v_power_body) */
static inline vf v_power(vf t) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)); }

static inline vi v_load_int(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline vi v_set_int(int32_t x) { return _mm256_set1_epi32(x); }
static inline vi v_add_int(vi a, vi b) { return _mm256_add_epi32(a, b); }
static inline vf v_from_int(vi a) { return _mm256_cvtepi32_ps(a); }
/* low <= x < high, lane by lane */
static inline vm v_between(vi low, vi x, vi high) {
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(low, x), _mm256_cmpgt_epi32(high, x)));
}

static inline vf v_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
/* 2 * LANES elements, those at even places and those at odd places: no shuffle */
static inline void v_load_bf16_pair(const uint16_t *p, vf *even, vf *odd) {
    const __m256i both = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
}
static inline vf v_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline void v_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* out[i] = the sum of x[i]'s lanes */
static inline void v_sums(const vf x[4], real out[4]) {
    const vf pairs = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

/* Four lanes of every `stride` reals: a quarter of LANES = 16, half of 8. */
static inline vf v_load_fours(const real *p, int64_t stride) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + stride), 1);
}
static inline void v_store_fours(real *p, int64_t stride, vf x) {
    _mm_storeu_ps(p, _mm256_castps256_ps128(x));
    _mm_storeu_ps(p + stride, _mm256_extractf128_ps(x, 1));
}
/* In each four lanes, rows and columns of the four vectors change places. */
static inline void v_turn(vf x[4]) {
    const vf a = _mm256_unpacklo_ps(x[0], x[1]), b = _mm256_unpackhi_ps(x[0], x[1]);
    const vf c = _mm256_unpacklo_ps(x[2], x[3]), d = _mm256_unpackhi_ps(x[2], x[3]);
    x[0] = _mm256_shuffle_ps(a, c, _MM_SHUFFLE(1, 0, 1, 0)), x[1] = _mm256_shuffle_ps(a, c, _MM_SHUFFLE(3, 2, 3, 2));
    x[2] = _mm256_shuffle_ps(b, d, _MM_SHUFFLE(1, 0, 1, 0)), x[3] = _mm256_shuffle_ps(b, d, _MM_SHUFFLE(3, 2, 3, 2));
}

/* Keeps the compiler from folding the load of a vector into the FMAs that use it (4x24 product: 72 % -> 96 % of peak). */
#define V_KEEP(x) __asm__("" : "+x"(x))
