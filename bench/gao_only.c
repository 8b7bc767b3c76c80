/* gao_only.c - BurstAttention without local tiles: the ring and the fold are there (global attention), but the scores of a
 * round, n x n for every head, are stored whole. Forward K and V travel; backward Q, dO, lse and D, with dQ one hop behind.
 * Price: heads * n^2 floats, and the memory traffic of writing and reading them. */
#include "rival_body.h"

#include <math.h>
#include <omp.h>
#include <string.h>

static rival_set read_set(const word *w, int backward) {
    return (rival_set){w->batch * (backward ? w->heads * (w->d + w->v + 2) : w->groups * (w->d + w->v))};
}

static rival_set write_set(const word *w, int backward) {
    return (rival_set){backward ? w->batch * w->heads * w->d : 0};
}

/* Forward: scores of all heads, running results. Backward: the same scores, dP of every thread, dK and dV. */
static double floats(const word *w, int ranks, int threads, int64_t n, int64_t m, int backward) {
    const double heads = (double)(w->batch * w->heads), scores = heads * (double)n * (double)m;
    const double rows = heads * (double)n * (double)(w->v + 2);
    const double keys = (double)(w->batch * w->groups) * (double)m * (double)(w->d + w->v);
    const double more = backward ? threads * (double)n * (double)m + keys + heads * (double)n * (double)w->d : 0;
    (void)ranks;
    return scores + (rows > more ? rows : more);
}

static float *scores_of(const rival *r, int64_t head) { return r->room + head * r->n * r->m; }

static float *behind_scores(const rival *r) { return scores_of(r, r->word->batch * r->word->heads); }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* Running result of head (b, h): [n][v], then maxima and sums. */
static float *state_of(const rival *r, int64_t head, float **top, float **sum) {
    const int64_t n = rival_block_of(r, BURST_SIDE_Q, r->rank).tokens, all = r->word->batch * r->word->heads;
    *top = behind_scores(r) + all * n * r->word->v + head * n;
    *sum = *top + all * n;
    return behind_scores(r) + head * n * r->word->v;
}

/* A rectangle of scores becomes probabilities, and the running result is scaled to the new maxima. */
static void fold_rows(rival *r, const burst_span *q, const burst_span *k, float *scores, float *acc, float *top,
                      float *sum) {
    const int64_t dv = r->word->v;
    for (int64_t i = 0; i < q->count; i++) {
        float *row = scores + i * k->count;
        const rival_interval see = rival_seen(r->word, q, i, k);
        memset(row, 0, (size_t)see.begin * sizeof *row);
        memset(row + see.end, 0, (size_t)(k->count - see.end) * sizeof *row);
        if (see.end == see.begin) continue;
        const float most = rival_max(row + see.begin, see.end - see.begin), now = most > top[i] ? most : top[i];
        const float keep = expf(top[i] - now);
        sum[i] = sum[i] * keep + rival_exp(row + see.begin, see.end - see.begin, now);
        if (keep != 1) rival_scale(acc + i * dv, dv, keep);
        top[i] = now;
    }
}

static void forward_head(rival *r, int visitor, const float *block, int64_t b, int64_t h) {
    const word *w = r->word;
    const data_tensor *q = &r->mine->q;
    const int64_t head = b * w->heads + h, kv = b * w->groups + h / (w->heads / w->groups);
    const rival_block rows = rival_block_of(r, BURST_SIDE_Q, r->rank), keys = rival_block_of(r, BURST_SIDE_K, visitor);
    const float *k = block + kv * keys.tokens * w->d;
    const float *v = block + w->batch * w->groups * keys.tokens * w->d + kv * keys.tokens * w->v;
    float *top, *sum, *acc = state_of(r, head, &top, &sum), *scores = scores_of(r, head);
    for (int64_t a = 0, i0 = 0; a < rows.count; i0 += rows.spans[a++].count)
        for (int64_t c = 0, j0 = 0; c < keys.count; j0 += keys.spans[c++].count) {
            const burst_span *qs = &rows.spans[a], *ks = &keys.spans[c];
            if (!rival_meets(w, qs, ks)) continue;
            rival_multiply(0, 1, qs->count, ks->count, w->d, r->scale, (const float *)data_place(q, b, i0, h),
                           q->token_stride, k + j0 * w->d, w->d, 0, scores, ks->count);
            fold_rows(r, qs, ks, scores, acc + i0 * w->v, top + i0, sum + i0);
            rival_multiply(0, 0, qs->count, w->v, ks->count, 1, scores, ks->count, v + j0 * w->v, w->v, 1,
                           acc + i0 * w->v, w->v);
        }
}

static void meet_forward(rival *r, int visitor, const float *block, float *sums) {
    const int64_t heads = r->word->batch * r->word->heads;
    (void)sums;
#pragma omp parallel for num_threads(r->threads) schedule(dynamic, 1)
    for (int64_t n = 0; n < heads; n++) {
        forward_head(r, visitor, block, n / r->word->heads, n % r->word->heads);
        rival_push(r);
    }
}

static void forward(rival *r) {
    const word *w = r->word;
    const int64_t n = rival_block_of(r, BURST_SIDE_Q, r->rank).tokens;
    const rival_set read = read_set(w, 0);
    rival_pack(&r->mine->v, rival_pack(&r->mine->k, r->read[0]));
    for (int64_t head = 0; head < w->batch * w->heads; head++) {
        float *top, *sum, *acc = state_of(r, head, &top, &sum);
        memset(acc, 0, (size_t)(n * w->v) * sizeof *acc);
        for (int64_t i = 0; i < n; i++) top[i] = -INFINITY, sum[i] = 0;
    }
    rival_walk(r, BURST_SIDE_K, &read, NULL, meet_forward);
    for (int64_t head = 0; head < w->batch * w->heads; head++) {
        float *top, *sum, *acc = state_of(r, head, &top, &sum), *lse = (float *)r->mine->lse + head * n;
        for (int64_t i = 0; i < n; i++) {
            float *o = (float *)data_place(&r->mine->o, head / w->heads, i, head % w->heads);
            lse[i] = sum[i] > 0 ? top[i] + logf(sum[i]) : -INFINITY;
            for (int64_t x = 0; x < w->v; x++) o[x] = sum[i] > 0 ? acc[i * w->v + x] / sum[i] : 0;
        }
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The visitor's message: Q, dO, lse, D; [batch][heads][tokens][..] each. */
typedef struct visit {
    const float *q, *d_o, *lse, *dots;
} visit;

static visit visit_of(const word *w, const float *block, int64_t tokens) {
    const int64_t rows = w->batch * w->heads * tokens;
    return (visit){block, block + rows * w->d, block + rows * (w->d + w->v), block + rows * (w->d + w->v + 1)};
}

static float *keys_sums(const rival *r, float **d_v) {
    const int64_t m = rival_block_of(r, BURST_SIDE_K, r->rank).tokens;
    float *d_k = behind_scores(r) + r->threads * r->n * r->m;
    *d_v = d_k + r->word->batch * r->word->groups * m * r->word->d;
    return d_k;
}

/* dQ of the own queries, found at home. */
static float *own_d_q(const rival *r) {
    const word *w = r->word;
    float *d_v;
    keys_sums(r, &d_v);
    return d_v + w->batch * w->groups * rival_block_of(r, BURST_SIDE_K, r->rank).tokens * w->v;
}

/* P from scores and lse; dS into dp. */
static void rows_gradient(rival *r, const burst_span *q, const burst_span *k, float *p, float *dp, const float *lse,
                          const float *dots) {
    for (int64_t i = 0; i < q->count; i++) {
        float *row = p + i * k->count, *d = dp + i * k->count;
        const rival_interval see = rival_seen(r->word, q, i, k);
        memset(row, 0, (size_t)see.begin * sizeof *row), memset(d, 0, (size_t)see.begin * sizeof *d);
        memset(row + see.end, 0, (size_t)(k->count - see.end) * sizeof *row);
        memset(d + see.end, 0, (size_t)(k->count - see.end) * sizeof *d);
        if (see.end == see.begin) continue;
        rival_exp(row + see.begin, see.end - see.begin, lse[i]);
        rival_scores_gradient(row + see.begin, d + see.begin, see.end - see.begin, dots[i], r->scale);
    }
}

static void backward_head(rival *r, int visitor, const float *block, float *d_q, int64_t b, int64_t h) {
    const word *w = r->word;
    const data_tensor *k = &r->mine->k, *v = &r->mine->v;
    const int64_t g = h / (w->heads / w->groups), head = b * w->heads + h;
    const rival_block rows = rival_block_of(r, BURST_SIDE_Q, visitor), keys = rival_block_of(r, BURST_SIDE_K, r->rank);
    const visit at = visit_of(w, block, rows.tokens);
    const float *q = at.q + head * rows.tokens * w->d, *d_o = at.d_o + head * rows.tokens * w->v;
    float *p = scores_of(r, head), *dp = behind_scores(r) + omp_get_thread_num() * r->n * r->m;
    float *d_v, *d_k = keys_sums(r, &d_v);
    d_k += (b * w->groups + g) * keys.tokens * w->d, d_v += (b * w->groups + g) * keys.tokens * w->v;
    d_q += head * rows.tokens * w->d;
    for (int64_t a = 0, i0 = 0; a < rows.count; i0 += rows.spans[a++].count)
        for (int64_t c = 0, j0 = 0; c < keys.count; j0 += keys.spans[c++].count) {
            const burst_span *qs = &rows.spans[a], *ks = &keys.spans[c];
            const int64_t m = qs->count, n = ks->count;
            if (!rival_meets(w, qs, ks)) continue;
            const float *kj = (const float *)data_place(k, b, j0, g), *vj = (const float *)data_place(v, b, j0, g);
            const float *qi = q + i0 * w->d, *oi = d_o + i0 * w->v;
            rival_multiply(0, 1, m, n, w->d, r->scale, qi, w->d, kj, k->token_stride, 0, p, n);
            rival_multiply(0, 1, m, n, w->v, 1, oi, w->v, vj, v->token_stride, 0, dp, n);
            rows_gradient(r, qs, ks, p, dp, at.lse + head * rows.tokens + i0, at.dots + head * rows.tokens + i0);
            rival_multiply(1, 0, n, w->v, m, 1, p, n, oi, w->v, 1, d_v + j0 * w->v, w->v);
            rival_multiply(1, 0, n, w->d, m, 1, dp, n, qi, w->d, 1, d_k + j0 * w->d, w->d);
            rival_multiply(0, 0, m, w->d, n, 1, dp, n, kj, k->token_stride, 1, d_q + i0 * w->d, w->d);
        }
}

static void meet_backward(rival *r, int visitor, const float *block, float *sums) {
    const word *w = r->word;
    float *d_q = sums ? sums : own_d_q(r);
#pragma omp parallel for num_threads(r->threads) schedule(dynamic, 1)
    for (int64_t n = 0; n < w->batch * w->groups; n++) /* heads of a group add to the same keys: one thread */
        for (int64_t h = 0; h < w->heads / w->groups; h++) {
            backward_head(r, visitor, block, d_q, n / w->groups, n % w->groups * (w->heads / w->groups) + h);
            rival_push(r);
        }
}

static void backward(rival *r) {
    const word *w = r->word;
    const int64_t n = rival_block_of(r, BURST_SIDE_Q, r->rank).tokens, rows = w->batch * w->heads * n;
    const int64_t m = rival_block_of(r, BURST_SIDE_K, r->rank).tokens;
    const rival_set read = read_set(w, 1), write = write_set(w, 1);
    float *rest = rival_pack(&r->mine->d_o, rival_pack(&r->mine->q, r->read[0]));
    float *d_v, *d_k = keys_sums(r, &d_v), *d_q = own_d_q(r);
    memcpy(rest, r->mine->lse, (size_t)rows * sizeof(float));
    rival_dots(r, rest + rows);
    memset(d_k, 0, (size_t)(w->batch * w->groups * m * w->d) * sizeof(float));
    memset(d_v, 0, (size_t)(w->batch * w->groups * m * w->v) * sizeof(float));
    memset(d_q, 0, (size_t)(rows * w->d) * sizeof(float));
    rival_walk(r, BURST_SIDE_Q, &read, &write, meet_backward);
    for (int64_t x = 0; x < rows * w->d && r->ranks > 1; x++) d_q[x] += r->arrived[x];
    rival_unpack(d_q, &r->mine->d_q);
    rival_unpack(d_k, &r->mine->d_k);
    rival_unpack(d_v, &r->mine->d_v);
}

const rival_body rival_gao = {{BURST_SIDE_K, BURST_SIDE_Q}, read_set, write_set, floats, forward, backward};
