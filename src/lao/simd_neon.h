/* simd_neon.h - the vocabulary of the kernel bodies for AArch64 NEON: 4 lanes of f32, 32 registers. */
#include <arm_neon.h>
#include <stdint.h>

#define ISA_NAME "neon"
#define LANES 4
#define QK_ROWS 8 /* 24 sums + 3 + 1 = 28 of 32 registers */
#define KV_ROWS 12

typedef float real;
typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint32x4_t vm;

static inline vf v_set(real x) { return vdupq_n_f32(x); }
static inline vf v_load(const real *p) { return vld1q_f32(p); }
static inline void v_store(real *p, vf x) { vst1q_f32(p, x); }
static inline vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
static inline vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
static inline vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
static inline vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
static inline vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
static inline vf v_max(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); } /* b if either is NaN */
static inline vf v_abs(vf a) { return vabsq_f32(a); }
static inline vm v_less(vf a, vf b) { return vcltq_f32(a, b); }
static inline vf v_select(vm m, vf yes, vf no) { return vbslq_f32(m, yes, no); }
static inline vf v_power(vf t) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(t), 23)); }

static inline vi v_load_int(const int32_t *p) { return vld1q_s32(p); }
static inline vi v_set_int(int32_t x) { return vdupq_n_s32(x); }
static inline vi v_add_int(vi a, vi b) { return vaddq_s32(a, b); }
static inline vf v_from_int(vi a) { return vcvtq_f32_s32(a); }
static inline vm v_between(vi low, vi x, vi high) { return vandq_u32(vcleq_s32(low, x), vcltq_s32(x, high)); }

static inline vf v_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
static inline void v_load_bf16_pair(const uint16_t *p, vf *even, vf *odd) {
    const uint32x4_t both = vreinterpretq_u32_u16(vld1q_u16(p));
    *even = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
    *odd = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
}
static inline vf v_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline void v_store_f16(uint16_t *p, vf x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

static inline void v_sums(const vf x[4], real out[4]) {
    vst1q_f32(out, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])));
}

static inline vf v_load_fours(const real *p, int64_t stride) {
    (void)stride;
    return v_load(p);
}
static inline void v_store_fours(real *p, int64_t stride, vf x) {
    (void)stride;
    v_store(p, x);
}
static inline vf v_zip_low(vf a, vf b) {
    return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
static inline vf v_zip_high(vf a, vf b) {
    return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b)));
}
static inline void v_turn(vf x[4]) {
    const vf a = vzip1q_f32(x[0], x[1]), b = vzip2q_f32(x[0], x[1]);
    const vf c = vzip1q_f32(x[2], x[3]), d = vzip2q_f32(x[2], x[3]);
    x[0] = v_zip_low(a, c), x[1] = v_zip_high(a, c);
    x[2] = v_zip_low(b, d), x[3] = v_zip_high(b, d);
}

#define V_KEEP(x) __asm__("" : "+w"(x))
