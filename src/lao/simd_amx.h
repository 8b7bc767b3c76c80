/* simd_amx.h - AVX-512 and the tile registers of AMX: 8 tiles of 16 rows of 64 bytes, and one instruction that adds the
 * product of two bf16 tiles to an f32 tile. Products of two bf16 numbers are exact in f32; numbers below 2^-126 count as 0.
 * Written as assembly: a compiler's own functions do not say that a tile load reads memory. */
#include "simd_avx512.h"

#undef ISA_NAME
#undef QK_ROWS
#undef KV_ROWS
#define ISA_NAME "amx"
#define QK_ROWS 16
#define KV_ROWS 16
#define SIMD_TILES

typedef struct tile_shapes {
    uint8_t palette, start, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_shapes;

/* All 8 tiles whole. What shapes the thread had is kept and given back: other libraries in the process (PyTorch's) take it
 * that nobody touches them, and would fault. */
static inline void tiles_open(tile_shapes *before) {
    static const tile_shapes whole = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
    __asm__ volatile("sttilecfg %0" : "=m"(*before));
    __asm__ volatile("ldtilecfg %0" ::"m"(whole));
}
static inline void tiles_close(const tile_shapes *before) {
    if (before->palette)
        __asm__ volatile("ldtilecfg %0" ::"m"(*before));
    else
        __asm__ volatile("tilerelease");
}

#define T_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define T_LOAD(t, at, stride)                                                                                          \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(at), "r"((int64_t)(stride)) : "memory")
#define T_STORE(t, at, stride)                                                                                         \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(at), "r"((int64_t)(stride)) : "memory")
/* sum[i][j] += over 16 pairs: a[i][pair] . b[pair][j] */
#define T_DOT(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum ::)

/* Between these, numbers below 2^-126 count as 0 and become 0 in vectors too. */
static inline unsigned flush_open(void) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u); /* results, operands */
    return before;
}
static inline void flush_close(unsigned before) { _mm_setcsr(before); }

/* What bf16 holds of x: the rest is cut off, not rounded, so that x - top is exact. */
static inline vf v_top(vf x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000u)));
}
/* The tops of both, alternating; and one behind the other. */
static inline void v_store_tops_mixed(real *p, vf even, vf odd) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaau, low, _mm512_castps_si512(odd)));
}
static inline void v_store_tops(real *p, vf first, vf second) {
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(first), 16);
    const __m512i high = _mm512_srli_epi32(_mm512_castps_si512(second), 16);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(low));
    _mm256_storeu_si256((__m256i *)(void *)(p + 8), _mm512_cvtepi32_epi16(high));
}
