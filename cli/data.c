/* data.c - tensors of a problem word and the normal numbers in them.
 *
 * One idea: the generator is a function of (seed, stream, index), with no state, so every element has its value whoever
 * computes it. The logical index [batch][token][head][dim] counts, not the place in memory.
 * Price: Box-Muller in double, about 20 ns a number and core.
 */
#include "data.h"
#include "need.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum stream { STREAM_Q = 1, STREAM_K, STREAM_V, STREAM_D_O, STREAM_SINK, STREAM_BLOCKS };

/* The finalizer of splitmix64 (Steele, Lea, Flood 2014), a bijection with good avalanche. */
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t data_bits(uint64_t seed, uint64_t stream, uint64_t index) {
    uint64_t start = mix(mix(seed + 0x9e3779b97f4a7c15u) + stream * 0xd1b54a32d192ed03u);
    return mix(start + (index + 1) * 0x9e3779b97f4a7c15u);
}

static double unit(uint64_t bits) { return ((double)(bits >> 11) + 0.5) * 0x1p-53; } /* in (0, 1) */

void data_normal(uint64_t seed, uint64_t stream, uint64_t first, size_t count, double *out) {
    const double tau = 6.283185307179586476925;
    for (uint64_t i = first, end = first + count; i < end;) {
        uint64_t pair = i / 2; /* Box-Muller makes two at a time */
        double radius = sqrt(-2 * log(unit(data_bits(seed, stream, 2 * pair))));
        double angle = tau * unit(data_bits(seed, stream, 2 * pair + 1));
        if (i % 2 == 0) *out++ = radius * cos(angle), i++;
        if (i < end) *out++ = radius * sin(angle), i++;
    }
}

float data_slope(const word *w, int64_t head) { return (float)exp2(-8.0 * (double)(head + 1) / (double)w->heads); }

unsigned char *data_bitmap(const word *w, uint64_t seed) {
    size_t rows = (size_t)(w->n / w->block + (w->n % w->block != 0));
    size_t columns = (size_t)(w->k / w->block + (w->k % w->block != 0));
    size_t count;
    if (__builtin_mul_overflow(rows, columns, &count)) count = SIZE_MAX; /* refused by need_bytes */
    unsigned char *bitmap = need_bytes(count);
    for (size_t i = 0; i < count; i++) bitmap[i] = unit(data_bits(seed, STREAM_BLOCKS, i)) < w->block_probability;
    return bitmap;
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

static void *keep(data *d, size_t count, size_t size) {
    void *memory = need_raw(count, size);
    d->memory[d->memory_count++] = memory;
    return memory;
}

/* Elements of a tensor; an overflow becomes SIZE_MAX, which need_array refuses. */
static size_t elements(int64_t batch, int64_t tokens, int64_t heads, int64_t dim) {
    size_t count;
    if (__builtin_mul_overflow((size_t)batch, (size_t)tokens, &count) ||
        __builtin_mul_overflow(count, (size_t)heads, &count) || __builtin_mul_overflow(count, (size_t)dim, &count))
        return SIZE_MAX;
    return count;
}

static void make_tensor(data *d, const word *w, data_tensor *t, int64_t tokens, int64_t heads, int64_t dim) {
    *t = (data_tensor){.dtype = w->dtype, .batch = w->batch, .tokens = tokens, .heads = heads, .dim = dim};
    t->plain = w->layout == WORD_BNHD;
    t->batch_stride = tokens * heads * dim;
    t->token_stride = w->layout == WORD_BHND ? dim : heads * dim;
    t->head_stride = w->layout == WORD_BHND ? tokens * dim : dim;
    t->data = keep(d, elements(w->batch, tokens, heads, dim), data_size(w->dtype));
}

/* q, k and v as three views of one buffer: a token's row holds the heads of q, then of k, then of v. */
static void make_packed(data *d, const word *w, int64_t tokens, data_tensor *q, data_tensor *k, data_tensor *v) {
    int64_t row = w->heads * w->d + w->groups * w->d + w->groups * w->v;
    size_t size = data_size(w->dtype);
    unsigned char *memory = keep(d, elements(w->batch, tokens, row, 1), size);
    data_tensor common = {.dtype = w->dtype, .batch = w->batch, .tokens = tokens};
    common.batch_stride = tokens * row, common.token_stride = row;
    *q = *k = *v = common;
    q->heads = w->heads, q->dim = q->head_stride = w->d, q->data = memory;
    k->heads = w->groups, k->dim = k->head_stride = w->d, k->data = memory + size * (size_t)(w->heads * w->d);
    v->heads = w->groups, v->dim = v->head_stride = w->v, v->data = k->data + size * (size_t)(w->groups * w->d);
}

static void make_inputs(data *d, const word *w, const data_places *at, data_tensor *q, data_tensor *k, data_tensor *v) {
    if (w->layout == WORD_QKV) {
        make_packed(d, w, at->n, q, k, v);
        return;
    }
    make_tensor(d, w, q, at->n, w->heads, w->d);
    make_tensor(d, w, k, at->k, w->groups, w->d);
    make_tensor(d, w, v, at->k, w->groups, w->v);
}

unsigned char *data_place(const data_tensor *t, int64_t batch_row, int64_t token, int64_t head) {
    int64_t at = batch_row * t->batch_stride + token * t->token_stride + head * t->head_stride;
    return t->data + data_size(t->dtype) * (size_t)at;
}

/* positions: of the tokens in a sequence of `all`, or NULL. */
static void fill(const data_tensor *t, int64_t all, const int64_t *positions, uint64_t seed, uint64_t stream,
                 double factor) {
    int64_t rows = t->batch * t->tokens, row = t->heads * t->dim;
#pragma omp parallel if (rows * row > 100000)
    {
        double *numbers = need_array((size_t)row, sizeof *numbers);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t b = r / t->tokens, n = r % t->tokens, at = b * all + (positions ? positions[n] : n);
            data_normal(seed, stream, (uint64_t)(at * row), (size_t)row, numbers);
            for (int64_t h = 0; h < t->heads; h++) {
                unsigned char *to = data_place(t, b, n, h);
                for (int64_t i = 0; i < t->dim; i++) data_store(t->dtype, to, i, factor * numbers[h * t->dim + i]);
            }
        }
        free(numbers);
    }
}

/* Outputs start as bytes that nobody computes, so that what is never written shows; timing finds the pages touched. */
static void fill_output(const data_tensor *t) {
    int64_t rows = t->batch * t->tokens;
#pragma omp parallel for schedule(static) if (rows * t->heads * t->dim > 100000)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < t->heads; h++)
            memset(data_place(t, r / t->tokens, r % t->tokens, h), 0x5a, (size_t)t->dim * data_size(t->dtype));
}

void data_make(const word *w, uint64_t seed, int backward, data *out) {
    const data_places all = {w->n, w->k, NULL, NULL};
    data_make_at(w, seed, backward, &all, out);
}

void data_make_at(const word *w, uint64_t seed, int backward, const data_places *at, data *out) {
    memset(out, 0, sizeof *out);
    make_inputs(out, w, at, &out->q, &out->k, &out->v);
    make_tensor(out, w, &out->o, at->n, w->heads, w->v);
    fill(&out->q, w->n, at->q_positions, seed, STREAM_Q, w->amp);
    fill(&out->k, w->k, at->k_positions, seed, STREAM_K, 1);
    fill(&out->v, w->k, at->k_positions, seed, STREAM_V, 1);
    fill_output(&out->o);
    burst_dtype wide = data_wide(w->dtype);
    size_t lse_count = elements(w->batch, w->heads, at->n, 1);
    out->lse = keep(out, lse_count, data_size(wide));
    memset(out->lse, 0x5a, lse_count * data_size(wide));
    if (w->parts & WORD_SINK) {
        out->sink = keep(out, (size_t)w->heads, data_size(wide));
        out->d_sink = keep(out, (size_t)w->heads, data_size(wide));
        for (int64_t h = 0; h < w->heads; h++) {
            double logit;
            data_normal(seed, STREAM_SINK, (uint64_t)h, 1, &logit);
            data_store(wide, out->sink, h, logit);
            data_store(wide, out->d_sink, h, 12345);
        }
    }
    if (!backward) return;
    make_tensor(out, w, &out->d_o, at->n, w->heads, w->v);
    fill(&out->d_o, w->n, at->q_positions, seed, STREAM_D_O, 1);
    make_inputs(out, w, at, &out->d_q, &out->d_k, &out->d_v);
    fill_output(&out->d_q);
    fill_output(&out->d_k);
    fill_output(&out->d_v);
}

void data_free(data *d) {
    for (int i = 0; i < d->memory_count; i++) free(d->memory[i]);
    memset(d, 0, sizeof *d);
}

burst_input data_input(const data_tensor *t) {
    if (t->plain) return (burst_input){t->data, 0, 0, 0};
    return (burst_input){t->data, t->batch_stride, t->token_stride, t->head_stride};
}
burst_output data_output(const data_tensor *t) {
    if (t->plain) return (burst_output){t->data, 0, 0, 0};
    return (burst_output){t->data, t->batch_stride, t->token_stride, t->head_stride};
}

double data_at(const data_tensor *t, int64_t batch_row, int64_t token, int64_t head, int64_t i) {
    return data_load(t->dtype, data_place(t, batch_row, token, head), i);
}

void data_load_head(const data_tensor *t, int64_t batch_row, int64_t head, double *out) {
    for (int64_t n = 0; n < t->tokens; n++) {
        const unsigned char *from = data_place(t, batch_row, n, head);
        for (int64_t i = 0; i < t->dim; i++) *out++ = data_load(t->dtype, from, i);
    }
}
