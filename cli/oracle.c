/* oracle.c - textbook attention in double. See oracle.h.
 *
 * The formulas, for one head: s = scale q.k, c = cap tanh(s / cap), x = c - slope |k - q - off|, p = e^x / sum e^x;
 * o = p v;  dP = dO.v, D = sum p dP, dX = p (dP - D), dS = dX (1 - (c / cap)^2), dQ = scale dS k, dK = scale dS q,
 * dV = p dO. A sink is one more key with score `sink` and value 0.
 * Price: 4 (d + v) multiply-adds per pair for each of the two passes.
 */
#include "oracle.h"
#include "data.h"
#include "need.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef double pair __attribute__((vector_size(16)));

/* Eight partial sums: fast without reordering by the compiler, and more exact than one sum. */
static double dot(const double *a, const double *b, int64_t count) {
    pair sum[4] = {{0, 0}, {0, 0}, {0, 0}, {0, 0}};
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        pair x[4], y[4];
        memcpy(x, a + i, sizeof x);
        memcpy(y, b + i, sizeof y);
        sum[0] += x[0] * y[0];
        sum[1] += x[1] * y[1];
        sum[2] += x[2] * y[2];
        sum[3] += x[3] * y[3];
    }
    pair all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
    double rest = 0;
    for (; i < count; i++) rest += a[i] * b[i];
    return (all[0] + all[1]) + rest;
}

static void add_scaled(double *restrict to, const double *restrict from, double factor, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += factor * from[i];
}

typedef struct score {
    double x;     /* what the softmax sees */
    double slope; /* dx / d(q.k) */
} score;

static score score_pair(const oracle_head *h, int64_t q, int64_t k) {
    double s = h->scale * dot(h->q + q * h->d, h->key + k * h->d, h->d);
    score result = {s, h->scale};
    if (h->softcap > 0) {
        double t = tanh(s / h->softcap);
        result.x = h->softcap * t;
        result.slope = h->scale * (1 - t * t);
    }
    if (h->slope > 0 || h->slope < 0)
        result.x -= h->slope * (double)word_mask_distance(h->mask, h->batch_row, q, k);
    return result;
}

typedef struct row_room {
    int64_t *keys;
    score *scores;
} row_room;

static void run_row(const oracle_head *h, int64_t q, row_room *room, double *o, double *lse, double *d_q, double *max,
                    double *sum, double *row_dot) {
    int64_t count = word_mask_keys(h->mask, h->batch_row, q, room->keys);
    double top = h->has_sink ? h->sink : -INFINITY;
    for (int64_t j = 0; j < count; j++) {
        room->scores[j] = score_pair(h, q, room->keys[j]);
        if (!(room->scores[j].x <= top)) top = room->scores[j].x;
    }
    double total = h->has_sink ? exp(h->sink - top) : 0;
    for (int64_t j = 0; j < count; j++) total += exp(room->scores[j].x - top);
    memset(o, 0, (size_t)h->v * sizeof *o);
    for (int64_t j = 0; j < count; j++)
        add_scaled(o, h->value + room->keys[j] * h->v, exp(room->scores[j].x - top) / total, h->v);
    *lse = count || h->has_sink ? top + log(total) : -INFINITY;
    *max = top, *sum = total, *row_dot = 0;
    if (!h->d_o || !d_q) return;
    const double *d_o = h->d_o + q * h->v;
    *row_dot = dot(d_o, o, h->v);
    memset(d_q, 0, (size_t)h->d * sizeof *d_q);
    for (int64_t j = 0; j < count; j++) {
        int64_t k = room->keys[j];
        double p = exp(room->scores[j].x - top) / total;
        double d_x = p * (dot(d_o, h->value + k * h->v, h->v) - *row_dot);
        add_scaled(d_q, h->key + k * h->d, d_x * room->scores[j].slope, h->d);
    }
}

/* Threads only where there is work for them: most tests are tiny. */
static int worth_threads(const oracle_head *h, int64_t count, int64_t other) {
    return (double)count * (double)other * (double)(h->d + h->v) > 1e6;
}

void oracle_run_rows(const oracle_head *h, const int64_t *rows, int64_t count, oracle_rows *out, oracle_stats *stats,
                     double *d_sink) {
#pragma omp parallel if (worth_threads(h, count, h->k))
    {
        row_room room = {need_array((size_t)h->k, sizeof(int64_t)), need_array((size_t)h->k, sizeof(score))};
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < count; i++) {
            int64_t q = rows[i];
            run_row(h, q, &room, out->o + i * h->v, &out->lse[i], out->d_q ? out->d_q + i * h->d : NULL, &stats->max[q],
                    &stats->sum[q], &stats->dot[q]);
        }
        free(room.keys);
        free(room.scores);
    }
    if (!d_sink) return;
    *d_sink = 0;
    for (int64_t i = 0; i < count; i++) *d_sink -= exp(h->sink - out->lse[i]) * stats->dot[rows[i]];
}

static void run_key(const oracle_head *h, int64_t k, int64_t *queries, const oracle_stats *stats, double *d_k,
                    double *d_v) {
    int64_t count = word_mask_queries(h->mask, h->batch_row, k, queries);
    for (int64_t j = 0; j < count; j++) {
        int64_t q = queries[j];
        score s = score_pair(h, q, k);
        double p = exp(s.x - stats->max[q]) / stats->sum[q];
        const double *d_o = h->d_o + q * h->v;
        double d_x = p * (dot(d_o, h->value + k * h->v, h->v) - stats->dot[q]);
        add_scaled(d_v, d_o, p, h->v);
        add_scaled(d_k, h->q + q * h->d, d_x * s.slope, h->d);
    }
}

void oracle_run_keys(const oracle_head *h, const int64_t *keys, int64_t count, const oracle_stats *stats, double *d_k,
                     double *d_v) {
#pragma omp parallel if (worth_threads(h, count, h->n))
    {
        int64_t *queries = need_array((size_t)h->n, sizeof *queries);
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < count; i++) run_key(h, keys[i], queries, stats, d_k + i * h->d, d_v + i * h->v);
        free(queries);
    }
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
