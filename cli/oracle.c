/* oracle.c - textbook attention, more exact than what it judges. See oracle.h and oracle_body.h.
 *
 * The formulas, for one head: s = scale q.k, c = cap tanh(s / cap), x = c - slope |k - q - off|, p = e^x / sum e^x;
 * o = p v;  dP = dO.v, D = dO.o, dX = p (dP - D), dS = dX (1 - (c / cap)^2), dQ = scale dS k, dK = scale dS q,
 * dV = p dO. A sink is one more key with score `sink` and value 0.
 * In double; problems that are themselves f64 in long double, or the judge would err as much as the judged.
 * Price: 4 (d + v) multiply-adds per pair for the two passes.
 */
#include "oracle.h"
#include "data.h"
#include "dense.h"
#include "need.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Threads only where there is work for them: most tests are tiny. */
static int worth_threads(const oracle_head *h, int64_t count, int64_t other) {
    return (double)count * (double)other * (double)(h->d + h->v) > 1e6;
}

static long double dot_long(const double *a, const double *b, int64_t count) {
    long double s0 = 0, s1 = 0, s2 = 0, s3 = 0;
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        s0 += (long double)a[i] * b[i], s1 += (long double)a[i + 1] * b[i + 1];
        s2 += (long double)a[i + 2] * b[i + 2], s3 += (long double)a[i + 3] * b[i + 3];
    }
    for (; i < count; i++) s0 += (long double)a[i] * b[i];
    return (s0 + s1) + (s2 + s3);
}
static void add_long(long double *to, const double *from, long double factor, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += factor * from[i];
}

#define NUMBER double
#define NAME(x) double_##x
#define EXP exp
#define LOG log
#define TANH tanh
#define DOT dense_dot
#define ADD dense_add_double
#include "oracle_body.h"
#undef NUMBER
#undef NAME
#undef EXP
#undef LOG
#undef TANH
#undef DOT
#undef ADD

#define NUMBER long double
#define NAME(x) long_##x
#define EXP expl
#define LOG logl
#define TANH tanhl
#define DOT dot_long
#define ADD add_long
#include "oracle_body.h"

void oracle_run_rows(const oracle_head *h, const int64_t *rows, int64_t count, oracle_rows *out, oracle_stats *stats,
                     double *d_sink) {
    (h->dtype == BURST_F64 ? long_rows : double_rows)(h, rows, count, out, stats, d_sink);
}

void oracle_run_keys(const oracle_head *h, const int64_t *keys, int64_t count, const oracle_stats *stats, double *d_k,
                     double *d_v) {
    (h->dtype == BURST_F64 ? long_keys : double_keys)(h, keys, count, stats, d_k, d_v);
}

static double *load(const data_tensor *tensor, int64_t batch_row, int64_t head) {
    double *memory = need_array((size_t)(tensor->tokens * tensor->dim), sizeof *memory);
    data_load_head(tensor, batch_row, head, memory);
    return memory;
}

void oracle_head_load(const word_mask *mask, const data *tensors, int64_t batch_row, int64_t head, oracle_head *out) {
    const word *w = mask->word;
    int64_t group = head / (w->heads / w->groups);
    *out = (oracle_head){.mask = mask, .dtype = w->dtype, .batch_row = batch_row};
    out->n = w->n, out->k = w->k, out->d = w->d, out->v = w->v;
    out->scale = w->parts & WORD_SCALE ? w->scale : 1 / sqrt((double)w->d);
    out->softcap = w->softcap;
    out->slope = w->parts & WORD_ALIBI ? (double)data_slope(w, head) : 0;
    out->has_sink = (w->parts & WORD_SINK) != 0;
    out->sink = out->has_sink ? data_load(data_wide(w->dtype), tensors->sink, head) : 0;
    out->q = load(&tensors->q, batch_row, head);
    out->key = load(&tensors->k, batch_row, group);
    out->value = load(&tensors->v, batch_row, group);
    if (tensors->d_o.data) out->d_o = load(&tensors->d_o, batch_row, head);
}

void oracle_head_free(oracle_head *head) {
    const double *tensors[] = {head->q, head->key, head->value, head->d_o};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) free((void *)(uintptr_t)tensors[i]);
    memset(head, 0, sizeof *head);
}
