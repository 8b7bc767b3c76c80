/* simd_scalar.h - the vocabulary of the kernel bodies in plain C: one lane, of f32 or (SIMD_F64 defined) of f64. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef SIMD_F64
#define ISA_NAME "f64"
typedef double real;
#else
#define ISA_NAME "scalar"
typedef float real;
#endif
#define LANES 1
#define QK_ROWS 4
#define KV_ROWS 6

typedef real vf;
typedef int32_t vi;
typedef int vm;

static inline vf v_set(real x) { return x; }
static inline vf v_load(const real *p) { return *p; }
static inline void v_store(real *p, vf x) { *p = x; }
static inline vf v_add(vf a, vf b) { return a + b; }
static inline vf v_sub(vf a, vf b) { return a - b; }
static inline vf v_mul(vf a, vf b) { return a * b; }
static inline vf v_div(vf a, vf b) { return a / b; }
static inline vf v_fma(vf a, vf b, vf c) { return a * b + c; }
static inline vf v_max(vf a, vf b) { return a > b ? a : b; } /* b if either is NaN */
static inline vf v_abs(vf a) { return a < 0 ? -a : a; }
static inline vm v_less(vf a, vf b) { return a < b; }
static inline vf v_select(vm m, vf yes, vf no) { return m ? yes : no; }

static inline vi v_load_int(const int32_t *p) { return *p; }
static inline vi v_set_int(int32_t x) { return x; }
static inline vi v_add_int(vi a, vi b) { return a + b; }
static inline vf v_from_int(vi a) { return (real)a; }
static inline vm v_between(vi low, vi x, vi high) { return low <= x && x < high; }

#ifndef SIMD_F64
static inline float v_float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint32_t v_bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
static inline vf v_power(vf t) { return v_float_of(v_bits_of(t) << 23); }
static inline vf v_load_bf16(const uint16_t *p) { return v_float_of((uint32_t)*p << 16); }
static inline void v_load_bf16_pair(const uint16_t *p, vf *even, vf *odd) {
    *even = v_load_bf16(p);
    *odd = v_load_bf16(p + 1);
}
static inline vf v_load_f16(const uint16_t *p) {
    const uint32_t sign = (uint32_t)(*p & 0x8000u) << 16, magnitude = *p & 0x7fffu;
    if (magnitude >= 0x7c00u) return v_float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    /* 2^112 moves the exponent's bias from 15 to 127 and makes subnormals normal, exactly */
    const float x = v_float_of(magnitude << 13) * 0x1p112f;
    return v_float_of(sign | v_bits_of(x));
}
static inline void v_store_f16(uint16_t *p, vf x) {
    const uint32_t bits = v_bits_of(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) { /* 65520 and more round to infinity */
        half = 0x7c00u;
    } else if (magnitude < 0x38800000u) { /* below 2^-14: the sum's own rounding makes the subnormal */
        half = v_bits_of(v_float_of(magnitude) + 0.5f) - 0x3f000000u;
    } else {
        half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    }
    *p = (uint16_t)(sign | half);
}
#endif

static inline void v_sums(const vf x[4], real out[4]) {
    for (int i = 0; i < 4; i++) out[i] = x[i];
}

#define V_KEEP(x) ((void)0)
