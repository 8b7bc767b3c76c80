/* body_math.h - powers, tanh and the conversion of rows, written once over the SIMD vocabulary.
 * Included by every kernel_*.c after its simd_*.h. */
#include <math.h>
#include <string.h>

#include "kernel.h"

#define INLINE static inline __attribute__((always_inline))
#define KERNEL static __attribute__((noinline))

/* Exponents are kept in powers of BASE: 2 for f32, because 2^n is cheap there, e for f64, because libm is exact there.
 * UNIT is log_BASE(e). */
#ifdef SIMD_F64
#define UNIT 1.0
INLINE double base_exp(double x) { return exp(x); }
INLINE double base_log(double x) { return log(x); }
INLINE vf v_power_of(vf y, vf c, vf least) {
    (void)least;
    return exp(y * c);
}
INLINE vf v_tanh(vf x, vf *slope) {
    const vf t = tanh(x), cosine = cosh(x);
    *slope = 1 / (cosine * cosine);
    return t;
}
#else
#define UNIT 1.4426950408889634
#define EXP_DEGREE 5
INLINE double base_exp(double x) { return exp2(x); }
INLINE double base_log(double x) { return log2(x); }

/* 2^(y c) for y c < 127.5; least = -127 / c. Round y c to n by adding 1.5 * 2^23 (+ 127, so that the low bits are the
 * biased exponent); the rest y c - n has no rounding but its own (FMA); then a minimax polynomial on [-1/2, 1/2] (Remez;
 * relative error 7.5e-8 in degree 5, 1.9e-9 in degree 6), its constant set to 1, so that 2^0 = 1 exactly.
 * Relative error <= 2.5e-7 (degree 5) or 1.5e-7 for -126 <= y c < 127.5, exactly 0 for y c < -126.5, NaN stays NaN
 * (the order of max's operands). A set without FMA adds the rounding of y c. */
INLINE vf v_power_body(vf y, vf c, vf least, const int degree) {
    const vf magic = v_set(12582912.0f + 127.0f);
    y = v_max(least, y);
    const vf t = v_fma(y, c, magic);
    const vf f = v_fma(y, c, v_sub(magic, t));
    vf p;
    if (degree == 5) {
        p = v_fma(v_set(1.327647245e-3f), f, v_set(9.675540961e-3f));
        p = v_fma(p, f, v_set(5.550713092e-2f));
        p = v_fma(p, f, v_set(2.402212024e-1f));
        p = v_fma(p, f, v_set(6.931469440e-1f));
    } else {
        p = v_fma(v_set(1.53458121613e-4f), f, v_set(1.33999311772e-3f));
        p = v_fma(p, f, v_set(9.61848895633e-3f));
        p = v_fma(p, f, v_set(5.55032877711e-2f));
        p = v_fma(p, f, v_set(2.40226468906e-1f));
        p = v_fma(p, f, v_set(6.93147205737e-1f));
    }
    p = v_fma(p, f, v_set(1.0f));
    return v_mul(p, v_power(t));
}
INLINE vf v_power_of(vf y, vf c, vf least) { return v_power_body(y, c, least, EXP_DEGREE); }

/* tanh and its derivative. Below 0.625 an odd minimax polynomial (Remez, relative error 4.4e-9) and 1 - t^2, above
 * 1 - u and u (2 - u) with u = 2 / (e^2x + 1): nothing cancels. Relative error <= 2e-7 everywhere; NaN stays NaN. */
INLINE vf v_tanh(vf x, vf *slope) {
    const vf a = v_abs(x), z = v_mul(x, x), one = v_set(1.0f), two = v_set(2.0f);
    vf p = v_fma(v_set(-5.704986789e-3f), z, v_set(2.06390870082e-2f));
    p = v_fma(p, z, v_set(-5.37397149859e-2f));
    p = v_fma(p, z, v_set(1.33314421964e-1f));
    p = v_fma(p, z, v_set(-3.33332819419e-1f));
    const vf small = v_fma(v_mul(p, z), x, x);
    /* e^-2x instead of e^2x: it can only underflow, and u is then 0 as it should */
    const vf e = v_power_body(v_sub(v_set(0.0f), a), v_set(2.885390081777927f), v_set(-44.0f), 6);
    const vf u = v_div(v_mul(two, e), v_add(e, one));
    const vf big = v_sub(one, u), signed_big = v_select(v_less(x, v_set(0.0f)), v_sub(u, one), big);
    const vm is_small = v_less(a, v_set(0.625f));
    *slope = v_select(is_small, v_sub(one, v_mul(small, small)), v_mul(u, v_sub(two, u)));
    return v_select(is_small, small, signed_big);
}
#endif

/* bf16 by round to nearest even; NaN stays NaN */
INLINE uint16_t bf16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40u) : rounded);
}

/* n pairs of bf16 numbers, each in the place of a real */
INLINE void pairs_negate(int64_t n, real *row) {
    for (int64_t x = 0; x < n; x++) {
        uint32_t bits;
        memcpy(&bits, row + x, sizeof bits);
        bits ^= 0x80008000u;
        memcpy(row + x, &bits, sizeof bits);
    }
}

/* x * 0 is 0 for what is finite, and NaN otherwise: sums of it tell. */
INLINE bool all_zero(vf sum) {
    real lanes[LANES], total = 0;
    v_store(lanes, sum);
    for (int l = 0; l < LANES; l++) total += lanes[l];
    return total == 0;
}

INLINE vf load_as(const burst_dtype dtype, const char *at) {
#ifdef SIMD_F64
    (void)dtype;
    return v_load((const real *)(const void *)at);
#else
    if (dtype == BURST_F32) return v_load((const real *)(const void *)at);
    if (dtype == BURST_BF16) return v_load_bf16((const uint16_t *)(const void *)at);
    return v_load_f16((const uint16_t *)(const void *)at);
#endif
}
/* Two vectors of dims; of bf16 the dims at even places, then those at odd places (see pair_order). */
INLINE void load_pair(const burst_dtype dtype, const char *at, vf pair[2]) {
#ifndef SIMD_F64
    if (dtype == BURST_BF16) {
        v_load_bf16_pair((const uint16_t *)(const void *)at, &pair[0], &pair[1]);
        return;
    }
#endif
    pair[0] = load_as(dtype, at);
    pair[1] = load_as(dtype, at + LANES * dtype_bytes(dtype));
}
/* Where dim x of `dims` stands when whole pairs of vectors are loaded so. */
INLINE int64_t pair_order(burst_dtype dtype, int64_t x, int64_t dims) {
    const int64_t pair = 2 * LANES, at = x % pair;
    if (dtype != BURST_BF16 || x - at + pair > dims) return x;
    return x - at + at % 2 * LANES + at / 2;
}

/* The last n dims of a row, fewer than a vector, as reals, 0 behind. */
INLINE vf load_tail(const burst_dtype dtype, const char *at, int64_t n) {
    char bytes[LANES * sizeof(real)] = {0};
    memcpy(bytes, at, (size_t)n * dtype_bytes(dtype));
    return load_as(dtype, bytes);
}

INLINE bool row_load_body(const burst_dtype dtype, const char *from, int64_t n, real *to) {
    const int64_t size = (int64_t)dtype_bytes(dtype);
    vf zeros = v_set(0);
    int64_t x = 0;
    for (; x + LANES <= n; x += LANES) {
        const vf a = load_as(dtype, from + x * size);
        v_store(to + x, a);
        zeros = v_fma(a, v_set(0), zeros);
    }
    if (x < n) {
        real wide[LANES];
        const vf a = load_tail(dtype, from + x * size, n - x);
        v_store(wide, a);
        memcpy(to + x, wide, (size_t)(n - x) * sizeof *to);
        zeros = v_fma(a, v_set(0), zeros);
    }
    return all_zero(zeros);
}
/* One row of n elements of `dtype` -> reals; true if all are finite. */
INLINE bool row_load(burst_dtype dtype, const char *from, int64_t n, real *to) {
#ifdef SIMD_F64
    return row_load_body(dtype, from, n, to);
#else
    if (dtype == BURST_F32) return row_load_body(BURST_F32, from, n, to);
    if (dtype == BURST_BF16) return row_load_body(BURST_BF16, from, n, to);
    return row_load_body(BURST_F16, from, n, to);
#endif
}

/* One row of reals -> n elements of `dtype`. With `add`, what is there is added first, in `old` (n reals of scratch). */
KERNEL void row_store(burst_dtype dtype, real *from, int64_t n, char *to, bool add, real *old) {
    if (add) {
        row_load(dtype, to, n, old);
        for (int64_t x = 0; x < n; x++) from[x] += old[x];
    }
#ifdef SIMD_F64
    (void)dtype;
    memcpy(to, from, (size_t)n * sizeof *from);
#else
    uint16_t *half = (uint16_t *)(void *)to;
    if (dtype == BURST_F32) {
        memcpy(to, from, (size_t)n * sizeof *from);
    } else if (dtype == BURST_BF16) {
        for (int64_t x = 0; x < n; x++) half[x] = bf16_of(from[x]);
    } else {
        int64_t x = 0;
        uint16_t tail[LANES];
        real wide[LANES] = {0};
        for (; x + LANES <= n; x += LANES) v_store_f16(half + x, v_load(from + x));
        if (x == n) return;
        memcpy(wide, from + x, (size_t)(n - x) * sizeof *wide);
        v_store_f16(tail, v_load(wide));
        memcpy(half + x, tail, (size_t)(n - x) * sizeof *tail);
    }
#endif
}

INLINE char *tensor_row(const lao_tensor *t, burst_dtype dtype, int64_t b, int64_t token, int64_t head) {
    return (char *)t->data + (b * t->batch + token * t->token + head * t->head) * (int64_t)dtype_bytes(dtype);
}

/* n numbers, a multiple of the lanes: BASE^x and tanh */
static void exp_of(int64_t n, const void *x, void *y) {
    const vf least = v_set(-127);
    for (int64_t i = 0; i < n; i += LANES)
        v_store((real *)y + i, v_power_of(v_load((const real *)x + i), v_set(1), least));
}
static void tanh_of(int64_t n, const void *x, void *y) {
    vf slope;
    for (int64_t i = 0; i < n; i += LANES) v_store((real *)y + i, v_tanh(v_load((const real *)x + i), &slope));
}
