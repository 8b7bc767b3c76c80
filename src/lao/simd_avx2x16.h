/* simd_avx2x16.h - 16 lanes made of two AVX2 registers: lets a CPU without AVX-512 run the 16-lane body. Tests only. */
#include <immintrin.h>
#include <stdint.h>

#define ISA_NAME "avx2x16"
#define LANES 16
#define QK_ROWS 8
#define KV_ROWS 12

typedef float real;
typedef struct vf {
    __m256 a, b;
} vf;
typedef struct vi {
    __m256i a, b;
} vi;
typedef vf vm;

static inline vf v_pair(__m256 a, __m256 b) { return (vf){a, b}; }
static inline vf v_set(real x) { return v_pair(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
static inline vf v_load(const real *p) { return v_pair(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
static inline void v_store(real *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
static inline vf v_add(vf a, vf b) { return v_pair(_mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b)); }
static inline vf v_sub(vf a, vf b) { return v_pair(_mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b)); }
static inline vf v_mul(vf a, vf b) { return v_pair(_mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b)); }
static inline vf v_div(vf a, vf b) { return v_pair(_mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b)); }
static inline vf v_fma(vf a, vf b, vf c) {
    return v_pair(_mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b));
}
static inline vf v_max(vf a, vf b) { return v_pair(_mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b)); }
static inline vf v_abs(vf a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return v_pair(_mm256_andnot_ps(sign, a.a), _mm256_andnot_ps(sign, a.b));
}
static inline vm v_less(vf a, vf b) {
    return v_pair(_mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ));
}
static inline vf v_select(vm m, vf yes, vf no) {
    return v_pair(_mm256_blendv_ps(no.a, yes.a, m.a), _mm256_blendv_ps(no.b, yes.b, m.b));
}
static inline __m256 v_power8(__m256 t) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(t), 23)); }
static inline vf v_power(vf t) { return v_pair(v_power8(t.a), v_power8(t.b)); }

static inline vi v_load_int(const int32_t *p) {
    return (vi){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8))};
}
static inline vi v_set_int(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline vi v_add_int(vi a, vi b) { return (vi){_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b)}; }
static inline vf v_from_int(vi a) { return v_pair(_mm256_cvtepi32_ps(a.a), _mm256_cvtepi32_ps(a.b)); }
static inline __m256 v_between8(__m256i low, __m256i x, __m256i high) {
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(low, x), _mm256_cmpgt_epi32(high, x)));
}
static inline vm v_between(vi low, vi x, vi high) {
    return v_pair(v_between8(low.a, x.a, high.a), v_between8(low.b, x.b, high.b));
}

static inline __m256 v_bf16_8(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
static inline vf v_load_bf16(const uint16_t *p) { return v_pair(v_bf16_8(p), v_bf16_8(p + 8)); }
static inline void v_bf16_pair_8(const uint16_t *p, __m256 *even, __m256 *odd) {
    const __m256i both = _mm256_loadu_si256((const __m256i *)p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32((int)0xffff0000u)));
}
static inline void v_load_bf16_pair(const uint16_t *p, vf *even, vf *odd) {
    v_bf16_pair_8(p, &even->a, &odd->a);
    v_bf16_pair_8(p + 16, &even->b, &odd->b);
}
static inline vf v_load_f16(const uint16_t *p) {
    return v_pair(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
static inline void v_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

static inline void v_sums(const vf x[4], real out[4]) {
    const __m256 low = _mm256_hadd_ps(_mm256_add_ps(x[0].a, x[0].b), _mm256_add_ps(x[1].a, x[1].b));
    const __m256 high = _mm256_hadd_ps(_mm256_add_ps(x[2].a, x[2].b), _mm256_add_ps(x[3].a, x[3].b));
    const __m256 pairs = _mm256_hadd_ps(low, high);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

static inline __m256 v_load_fours8(const real *p, int64_t stride) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + stride), 1);
}
static inline vf v_load_fours(const real *p, int64_t stride) {
    return v_pair(v_load_fours8(p, stride), v_load_fours8(p + 2 * stride, stride));
}
static inline void v_store_fours(real *p, int64_t stride, vf x) {
    _mm_storeu_ps(p, _mm256_castps256_ps128(x.a));
    _mm_storeu_ps(p + stride, _mm256_extractf128_ps(x.a, 1));
    _mm_storeu_ps(p + 2 * stride, _mm256_castps256_ps128(x.b));
    _mm_storeu_ps(p + 3 * stride, _mm256_extractf128_ps(x.b, 1));
}
static inline void v_turn8(__m256 *x, __m256 *y, __m256 *z, __m256 *w) {
    const __m256 a = _mm256_unpacklo_ps(*x, *y), b = _mm256_unpackhi_ps(*x, *y);
    const __m256 c = _mm256_unpacklo_ps(*z, *w), d = _mm256_unpackhi_ps(*z, *w);
    *x = _mm256_shuffle_ps(a, c, _MM_SHUFFLE(1, 0, 1, 0)), *y = _mm256_shuffle_ps(a, c, _MM_SHUFFLE(3, 2, 3, 2));
    *z = _mm256_shuffle_ps(b, d, _MM_SHUFFLE(1, 0, 1, 0)), *w = _mm256_shuffle_ps(b, d, _MM_SHUFFLE(3, 2, 3, 2));
}
static inline void v_turn(vf x[4]) {
    v_turn8(&x[0].a, &x[1].a, &x[2].a, &x[3].a);
    v_turn8(&x[0].b, &x[1].b, &x[2].b, &x[3].b);
}

#define V_KEEP(x) ((void)0)
