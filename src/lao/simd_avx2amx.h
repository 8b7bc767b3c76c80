/* simd_avx2amx.h - the tile registers of AMX in memory, on top of 16 lanes of AVX2: lets a CPU without AMX run the tile
 * body, with the sums in the order of the real instruction. Tests only; slow. */
#include "simd_avx2x16.h"

#include <math.h>
#include <string.h>

#undef ISA_NAME
#undef QK_ROWS
#undef KV_ROWS
#define ISA_NAME "avx2amx"
#define QK_ROWS 16
#define KV_ROWS 16
#define SIMD_TILES

static _Thread_local uint32_t tile_rows[8][16][16];

typedef char tile_shapes;
static inline void tiles_open(tile_shapes *before) {
    *before = 0;
    memset(tile_rows, 0, sizeof tile_rows);
}
static inline void tiles_close(const tile_shapes *before) {
    (void)before;
    memset(tile_rows, 0xff, sizeof tile_rows); /* NaN, should anybody still look */
}
static inline void tile_load(int t, const void *at, int64_t stride) {
    for (int i = 0; i < 16; i++) memcpy(tile_rows[t][i], (const char *)at + i * stride, 64);
}
static inline void tile_store(int t, void *at, int64_t stride) {
    for (int i = 0; i < 16; i++) memcpy((char *)at + i * stride, tile_rows[t][i], 64);
}
/* What is below the smallest normal number is 0 on the way in and on the way out. */
static inline float tile_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0, x) : x; }
static inline float tile_number(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return tile_flush(x);
}
/* Even and odd places of the pairs are summed apart, then together, then onto what is there. */
static inline void tile_dot(int sum, int a, int b) {
    for (int i = 0; i < 16; i++) {
        for (int j = 0; j < 16; j++) {
            float even = 0, odd = 0;
            for (int pair = 0; pair < 16; pair++) {
                const uint32_t x = tile_rows[a][i][pair], y = tile_rows[b][pair][j];
                even = tile_flush(fmaf(tile_number(x << 16), tile_number(y << 16), even));
                odd = tile_flush(fmaf(tile_number(x & 0xffff0000u), tile_number(y & 0xffff0000u), odd));
            }
            const float now = tile_flush(tile_number(tile_rows[sum][i][j]) + tile_flush(even + odd));
            memcpy(&tile_rows[sum][i][j], &now, sizeof now);
        }
    }
}
#define T_ZERO(t) memset(tile_rows[t], 0, sizeof tile_rows[t])
#define T_LOAD(t, at, stride) tile_load(t, at, stride)
#define T_STORE(t, at, stride) tile_store(t, at, stride)
#define T_DOT(sum, a, b) tile_dot(sum, a, b)

/* Between these, numbers below 2^-126 count as 0 and become 0 in vectors too. */
static inline unsigned flush_open(void) {
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040u); /* results, operands */
    return before;
}
static inline void flush_close(unsigned before) { _mm_setcsr(before); }

static inline vf v_top(vf x) {
    const __m256 high = _mm256_castsi256_ps(_mm256_set1_epi32((int)0xffff0000u));
    return v_pair(_mm256_and_ps(x.a, high), _mm256_and_ps(x.b, high));
}
static inline void v_store_tops_mixed(real *p, vf even, vf odd) {
    uint32_t both[2][16];
    v_store((real *)(void *)both[0], even);
    v_store((real *)(void *)both[1], odd);
    for (int i = 0; i < 16; i++) both[0][i] = both[0][i] >> 16 | (both[1][i] & 0xffff0000u);
    memcpy(p, both[0], sizeof both[0]);
}
static inline void v_store_tops(real *p, vf first, vf second) {
    uint32_t both[32];
    uint16_t tops[32];
    v_store((real *)(void *)both, first);
    v_store((real *)(void *)(both + 16), second);
    for (int i = 0; i < 32; i++) tops[i] = (uint16_t)(both[i] >> 16);
    memcpy(p, tops, sizeof tops);
}
