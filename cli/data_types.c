/* data_types.c - the four element types as bits: load, store, round to nearest even. Written with integers, so that it
 * does not depend on what the compiler or the CPU offers for 16-bit floats. */
#include "data.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float round_bf16(float value) {
    uint32_t bits = bits_of(value);
    if (isnan(value)) return float_of((bits | 0x00400000u) & 0xffff0000u);
    return float_of((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
}

static float round_f16(float value) {
    float size = fabsf(value);
    if (!(size < 65520.0f)) return isnan(value) ? value : copysignf(INFINITY, value);
    if (size < 0x1p-14f) /* subnormal: multiples of 2^-24, the spacing of floats at 0.5 */
        return copysignf((size + 0.5f) - 0.5f, value);
    uint32_t bits = bits_of(value);
    return float_of((bits + 0xfffu + ((bits >> 13) & 1u)) & 0xffffe000u);
}

float data_round(burst_dtype dtype, float value) {
    if (dtype == BURST_BF16) return round_bf16(value);
    if (dtype == BURST_F16) return round_f16(value);
    return value;
}

static uint16_t pack_f16(float value) {
    uint32_t sign = (bits_of(value) >> 16) & 0x8000u;
    if (isnan(value)) return (uint16_t)(sign | 0x7e00u);
    float size = fabsf(round_f16(value));
    if (isinf(size)) return (uint16_t)(sign | 0x7c00u);
    if (size < 0x1p-14f) return (uint16_t)(sign | (uint32_t)(size * 0x1p24f));
    return (uint16_t)(sign | ((bits_of(size) - (112u << 23)) >> 13)); /* 112: 127 - 15, the two exponent biases */
}

static float unpack_f16(uint16_t half) {
    uint32_t sign = (half & 0x8000u) << 16, size = half & 0x7fffu;
    if (size >= 0x7c00u) return float_of(sign | 0x7f800000u | ((size & 0x3ffu) << 13));
    if (size < 0x400u) return copysignf((float)size * 0x1p-24f, float_of(sign));
    return float_of(sign | ((size << 13) + (112u << 23)));
}

size_t data_size(burst_dtype dtype) { return dtype == BURST_F64 ? 8 : dtype == BURST_F32 ? 4 : 2; }
burst_dtype data_wide(burst_dtype dtype) { return dtype == BURST_F64 ? BURST_F64 : BURST_F32; }

double data_load(burst_dtype dtype, const void *memory, int64_t index) {
    const unsigned char *from = (const unsigned char *)memory + data_size(dtype) * (size_t)index;
    if (dtype == BURST_F64) {
        double value;
        memcpy(&value, from, sizeof value);
        return value;
    }
    if (dtype == BURST_F32) {
        float value;
        memcpy(&value, from, sizeof value);
        return (double)value;
    }
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return (double)(dtype == BURST_BF16 ? float_of((uint32_t)half << 16) : unpack_f16(half));
}

void data_store(burst_dtype dtype, void *memory, int64_t index, double value) {
    unsigned char *to = (unsigned char *)memory + data_size(dtype) * (size_t)index;
    if (dtype == BURST_F64) {
        memcpy(to, &value, sizeof value);
        return;
    }
    float narrow = (float)value;
    if (dtype == BURST_F32) {
        memcpy(to, &narrow, sizeof narrow);
        return;
    }
    uint16_t half = dtype == BURST_BF16 ? (uint16_t)(bits_of(round_bf16(narrow)) >> 16) : pack_f16(narrow);
    memcpy(to, &half, sizeof half);
}

double data_epsilon(burst_dtype dtype) {
    switch (dtype) {
    case BURST_F64:
        return 0x1p-52;
    case BURST_BF16:
        return 0x1p-7;
    case BURST_F16:
        return 0x1p-10;
    default:
        return 0x1p-23;
    }
}

double data_largest(burst_dtype dtype) {
    switch (dtype) {
    case BURST_F64:
        return 0x1.fffffffffffffp1023;
    case BURST_BF16:
        return 0x1.fep127;
    case BURST_F16:
        return 65504;
    default:
        return 0x1.fffffep127;
    }
}
