/* simd_avx512.h - the vocabulary of the kernel bodies for AVX-512 (F, BW, DQ, VL): 16 lanes of f32, 32 registers. */
#include <immintrin.h>
#include <stdint.h>

#define ISA_NAME "avx512"
#define LANES 16
#define QK_ROWS 8 /* 24 sums + 3 + 1 = 28 of 32 registers */
#define KV_ROWS 12

typedef float real;
typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

static inline vf v_set(real x) { return _mm512_set1_ps(x); }
static inline vf v_load(const real *p) { return _mm512_loadu_ps(p); }
static inline void v_store(real *p, vf x) { _mm512_storeu_ps(p, x); }
static inline vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* b if either is NaN */
static inline vf v_abs(vf a) { return _mm512_abs_ps(a); }
static inline vm v_less(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vf v_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
static inline vf v_power(vf t) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(t), 23)); }

static inline vi v_load_int(const int32_t *p) { return _mm512_loadu_si512(p); }
static inline vi v_set_int(int32_t x) { return _mm512_set1_epi32(x); }
static inline vi v_add_int(vi a, vi b) { return _mm512_add_epi32(a, b); }
static inline vf v_from_int(vi a) { return _mm512_cvtepi32_ps(a); }
static inline vm v_between(vi low, vi x, vi high) {
    return _mm512_cmple_epi32_mask(low, x) & _mm512_cmplt_epi32_mask(x, high);
}

static inline vf v_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
static inline void v_load_bf16_pair(const uint16_t *p, vf *even, vf *odd) {
    const __m512i both = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32((int)0xffff0000u)));
}
static inline vf v_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline void v_store_f16(uint16_t *p, vf x) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* the four in the four places of every quarter, then the quarters: 13 instructions, four reductions take some 40 */
static inline void v_sums(const vf x[4], real out[4]) {
    const vf ab = v_add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
    const vf cd = v_add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
    const vf all =
        v_add(_mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)), _mm512_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2)));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

static inline vf v_load_fours(const real *p, int64_t stride) {
    const vf low = _mm512_insertf32x4(_mm512_castps128_ps512(_mm_loadu_ps(p)), _mm_loadu_ps(p + stride), 1);
    return _mm512_insertf32x4(_mm512_insertf32x4(low, _mm_loadu_ps(p + 2 * stride), 2), _mm_loadu_ps(p + 3 * stride),
                              3);
}
static inline void v_store_fours(real *p, int64_t stride, vf x) {
    _mm_storeu_ps(p, _mm512_castps512_ps128(x));
    _mm_storeu_ps(p + stride, _mm512_extractf32x4_ps(x, 1));
    _mm_storeu_ps(p + 2 * stride, _mm512_extractf32x4_ps(x, 2));
    _mm_storeu_ps(p + 3 * stride, _mm512_extractf32x4_ps(x, 3));
}
static inline void v_turn(vf x[4]) {
    const vf a = _mm512_unpacklo_ps(x[0], x[1]), b = _mm512_unpackhi_ps(x[0], x[1]);
    const vf c = _mm512_unpacklo_ps(x[2], x[3]), d = _mm512_unpackhi_ps(x[2], x[3]);
    x[0] = _mm512_shuffle_ps(a, c, _MM_SHUFFLE(1, 0, 1, 0)), x[1] = _mm512_shuffle_ps(a, c, _MM_SHUFFLE(3, 2, 3, 2));
    x[2] = _mm512_shuffle_ps(b, d, _MM_SHUFFLE(1, 0, 1, 0)), x[3] = _mm512_shuffle_ps(b, d, _MM_SHUFFLE(3, 2, 3, 2));
}

#define V_KEEP(x) __asm__("" : "+v"(x))
