/* rsa.c - the first RingAttention: K goes round and every rank fills its rows of scores whole; softmax over the rows; then V
 * goes round and the output is summed up. The rows of probabilities stay for backward, in which K and V go round again, dK and
 * dV one hop behind.
 * Price: heads * n * N floats, kept from forward to backward. */
#include "rival_body.h"

#include <math.h>
#include <omp.h>
#include <string.h>

/* Forward's two rings send one part each: as much room as K or V takes. */
static rival_set read_set(const word *w, int backward) {
    const int64_t wide = w->d > w->v ? w->d : w->v;
    return (rival_set){w->batch * w->groups * (backward ? w->d + w->v : wide)};
}

static rival_set write_set(const word *w, int backward) {
    return (rival_set){backward ? w->batch * w->groups * (w->d + w->v) : 0};
}

static double floats(const word *w, int ranks, int threads, int64_t n, int64_t m, int backward) {
    const double heads = (double)(w->batch * w->heads), rows = heads * (double)n;
    const double scores = rows * (double)w->k, sums = rows * (double)w->v;
    const double keys = (double)(w->batch * w->groups) * (double)m * (double)(w->d + w->v);
    const double more = backward ? threads * (double)n * (double)m + rows * (double)(w->d + 1) + keys : 0;
    (void)ranks;
    return scores + (sums > more ? sums : more);
}

/* Rows of head (b, h): [n][N], the keys in the order of their positions. */
static float *rows_of(const rival *r, int64_t head) { return r->room + head * r->n * r->word->k; }

static float *behind_rows(const rival *r) { return rows_of(r, r->word->batch * r->word->heads); }

static int64_t own_rows(const rival *r) { return rival_block_of(r, BURST_SIDE_Q, r->rank).tokens; }

static int64_t kv_head(const word *w, int64_t head) {
    return head / w->heads * w->groups + head % w->heads / (w->heads / w->groups);
}

/* The partition is contiguous: one span a rank, or none. */
static burst_span span_of(const rival *r, burst_side side, int rank) {
    const rival_block block = rival_block_of(r, side, rank);
    return block.count ? block.spans[0] : (burst_span){0, 0, 1};
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void meet_keys(rival *r, int visitor, const float *block, float *sums) {
    const word *w = r->word;
    const burst_span q = span_of(r, BURST_SIDE_Q, r->rank), k = span_of(r, BURST_SIDE_K, visitor);
    (void)sums;
    if (!rival_meets(w, &q, &k)) return;
#pragma omp parallel for num_threads(r->threads) schedule(dynamic, 1)
    for (int64_t head = 0; head < w->batch * w->heads; head++) {
        const data_tensor *t = &r->mine->q;
        rival_multiply(0, 1, q.count, k.count, w->d, r->scale,
                       (const float *)data_place(t, head / w->heads, 0, head % w->heads), t->token_stride,
                       block + kv_head(w, head) * k.count * w->d, w->d, 0, rows_of(r, head) + k.begin, w->k);
        rival_push(r);
    }
}

static void softmax_rows(rival *r) {
    const word *w = r->word;
    const burst_span q = span_of(r, BURST_SIDE_Q, r->rank);
#pragma omp parallel for num_threads(r->threads) schedule(dynamic, 1)
    for (int64_t head = 0; head < w->batch * w->heads; head++)
        for (int64_t i = 0; i < q.count; i++) {
            float *row = rows_of(r, head) + i * w->k, *lse = (float *)r->mine->lse + head * q.count + i;
            const rival_interval see = rival_row(w, q.begin + i);
            const int64_t begin = see.begin < see.end ? see.begin : 0, end = see.begin < see.end ? see.end : 0;
            memset(row, 0, (size_t)begin * sizeof *row);
            memset(row + end, 0, (size_t)(w->k - end) * sizeof *row);
            *lse = -INFINITY;
            if (begin == end) continue;
            const float top = rival_max(row + begin, end - begin), sum = rival_exp(row + begin, end - begin, top);
            rival_scale(row + begin, end - begin, 1 / sum);
            *lse = top + logf(sum);
        }
}

static void meet_values(rival *r, int visitor, const float *block, float *sums) {
    const word *w = r->word;
    const burst_span q = span_of(r, BURST_SIDE_Q, r->rank), k = span_of(r, BURST_SIDE_K, visitor);
    (void)sums;
    if (!rival_meets(w, &q, &k)) return;
#pragma omp parallel for num_threads(r->threads) schedule(dynamic, 1)
    for (int64_t head = 0; head < w->batch * w->heads; head++) {
        rival_multiply(0, 0, q.count, w->v, k.count, 1, rows_of(r, head) + k.begin, w->k,
                       block + kv_head(w, head) * k.count * w->v, w->v, 1, behind_rows(r) + head * q.count * w->v,
                       w->v);
        rival_push(r);
    }
}

static void forward(rival *r) {
    const word *w = r->word;
    const rival_set keys = {w->batch * w->groups * w->d}, values = {w->batch * w->groups * w->v};
    rival_pack(&r->mine->k, r->read[0]);
    rival_walk(r, BURST_SIDE_K, &keys, NULL, meet_keys);
    softmax_rows(r);
    rival_pack(&r->mine->v, r->read[0]);
    memset(behind_rows(r), 0, (size_t)(w->batch * w->heads * own_rows(r) * w->v) * sizeof(float));
    rival_walk(r, BURST_SIDE_K, &values, NULL, meet_values);
    rival_unpack(behind_rows(r), &r->mine->o);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* Behind the rows: dP of every thread, dQ, D, and dK and dV of the own keys. */
static float *d_q_of(const rival *r) { return behind_rows(r) + r->threads * r->n * r->m; }

static float *dots_of(const rival *r) { return d_q_of(r) + r->word->batch * r->word->heads * own_rows(r) * r->word->d; }

static float *own_sums(const rival *r) { return dots_of(r) + r->word->batch * r->word->heads * own_rows(r); }

static void backward_head(rival *r, const burst_span *q, const burst_span *k, const float *block, float *sums,
                          int64_t head) {
    const word *w = r->word;
    const data_tensor *tq = &r->mine->q, *to = &r->mine->d_o;
    const int64_t b = head / w->heads, h = head % w->heads, kv = kv_head(w, head), n = k->count;
    const int64_t before = w->batch * w->groups * n * w->d; /* V and dV lie behind K and dK */
    const float *qi = (const float *)data_place(tq, b, 0, h), *oi = (const float *)data_place(to, b, 0, h);
    const float *kj = block + kv * n * w->d, *vj = block + before + kv * n * w->v;
    const float *p = rows_of(r, head) + k->begin;
    float *dp = behind_rows(r) + omp_get_thread_num() * r->n * r->m;
    rival_multiply(1, 0, n, w->v, q->count, 1, p, w->k, oi, to->token_stride, 1, sums + before + kv * n * w->v, w->v);
    rival_multiply(0, 1, q->count, n, w->v, 1, oi, to->token_stride, vj, w->v, 0, dp, n);
    for (int64_t i = 0; i < q->count; i++)
        rival_scores_gradient(p + i * w->k, dp + i * n, n, dots_of(r)[head * q->count + i], r->scale);
    rival_multiply(0, 0, q->count, w->d, n, 1, dp, n, kj, w->d, 1, d_q_of(r) + head * q->count * w->d, w->d);
    rival_multiply(1, 0, n, w->d, q->count, 1, dp, n, qi, tq->token_stride, 1, sums + kv * n * w->d, w->d);
}

static void meet_backward(rival *r, int visitor, const float *block, float *sums) {
    const word *w = r->word;
    const burst_span q = span_of(r, BURST_SIDE_Q, r->rank), k = span_of(r, BURST_SIDE_K, visitor);
    if (!sums) sums = own_sums(r);
    if (!rival_meets(w, &q, &k)) return;
#pragma omp parallel for num_threads(r->threads) schedule(dynamic, 1)
    for (int64_t n = 0; n < w->batch * w->groups; n++) /* heads of a group add to the same keys: one thread */
        for (int64_t h = 0; h < w->heads / w->groups; h++) {
            backward_head(r, &q, &k, block, sums,
                          n / w->groups * w->heads + n % w->groups * (w->heads / w->groups) + h);
            rival_push(r);
        }
}

static void backward(rival *r) {
    const word *w = r->word;
    const int64_t n = own_rows(r), rows = w->batch * w->heads * n;
    const int64_t keys = w->batch * w->groups * rival_block_of(r, BURST_SIDE_K, r->rank).tokens * (w->d + w->v);
    const rival_set read = read_set(w, 1), write = write_set(w, 1);
    float *sums = own_sums(r);
    rival_pack(&r->mine->v, rival_pack(&r->mine->k, r->read[0]));
    rival_dots(r, dots_of(r));
    memset(d_q_of(r), 0, (size_t)(rows * w->d) * sizeof(float));
    memset(sums, 0, (size_t)keys * sizeof(float));
    rival_walk(r, BURST_SIDE_K, &read, &write, meet_backward);
    for (int64_t x = 0; x < keys && r->ranks > 1; x++) sums[x] += r->arrived[x];
    rival_unpack(d_q_of(r), &r->mine->d_q);
    rival_unpack(sums, &r->mine->d_k);
    rival_unpack(sums + keys / (w->d + w->v) * w->d, &r->mine->d_v);
}

const rival_body rival_rsa = {{BURST_SIDE_K, BURST_SIDE_K}, read_set, write_set, floats, forward, backward};
