/* oracle_body.h - the oracle's body, compiled by oracle.c once in double and once in long double.
 *
 * NUMBER is the type; NAME(x) names the functions; EXP, LOG and TANH are its functions, DOT and ADD its loops.
 */

typedef struct NAME(score) {
    NUMBER x;     /* what the softmax sees */
    NUMBER slope; /* dx / d(q.k) */
} NAME(score);

static NAME(score) NAME(score_pair)(const oracle_head *h, int64_t q, int64_t k) {
    NUMBER s = h->scale * DOT(h->q + q * h->d, h->key + k * h->d, h->d);
    NAME(score) result = {s, h->scale};
    if (h->softcap > 0) {
        NUMBER t = TANH(s / h->softcap);
        result.x = h->softcap * t;
        NUMBER e = EXP(s < 0 ? 2 * s / h->softcap : -2 * s / h->softcap); /* 1 - t^2 would cancel near 1 */
        result.slope = h->scale * 4 * e / ((1 + e) * (1 + e));
    }
    if (h->slope > 0 || h->slope < 0) result.x -= h->slope * (NUMBER)word_mask_distance(h->mask, h->batch_row, q, k);
    return result;
}

typedef struct NAME(room) {
    int64_t *keys;
    NAME(score) * scores;
    NUMBER *sum; /* of a row's or a key's terms: d + v numbers */
} NAME(room);

static NAME(room) NAME(room_get)(const oracle_head *h, int64_t count) {
    return (NAME(room)){need_array((size_t)count, sizeof(int64_t)), need_array((size_t)count, sizeof(NAME(score))),
                        need_array((size_t)(h->d + h->v), sizeof(NUMBER))};
}
static void NAME(room_free)(NAME(room) * r) {
    free(r->keys);
    free(r->scores);
    free(r->sum);
}

static void NAME(row_gradient)(const oracle_head *h, int64_t q, int64_t count, NAME(room) * r, NUMBER top, NUMBER total,
                               NUMBER row_dot, double *d_q) {
    NUMBER *sum = r->sum + h->v;
    for (int64_t i = 0; i < h->d; i++) sum[i] = 0;
    for (int64_t j = 0; j < count; j++) {
        int64_t k = r->keys[j];
        NUMBER p = EXP(r->scores[j].x - top) / total;
        NUMBER d_x = p * (DOT(h->d_o + q * h->v, h->value + k * h->v, h->v) - row_dot);
        ADD(sum, h->key + k * h->d, d_x * r->scores[j].slope, h->d);
    }
    for (int64_t i = 0; i < h->d; i++) d_q[i] = (double)sum[i];
}

static void NAME(row)(const oracle_head *h, int64_t q, NAME(room) * r, double *o, double *lse, double *d_q,
                      oracle_stats *stats) {
    int64_t count = word_mask_keys(h->mask, h->batch_row, q, r->keys);
    NUMBER top = h->has_sink ? h->sink : -(NUMBER)INFINITY;
    for (int64_t j = 0; j < count; j++) {
        r->scores[j] = NAME(score_pair)(h, q, r->keys[j]);
        if (!(r->scores[j].x <= top)) top = r->scores[j].x;
    }
    NUMBER total = h->has_sink ? EXP(h->sink - top) : 0;
    for (int64_t j = 0; j < count; j++) total += EXP(r->scores[j].x - top);
    for (int64_t i = 0; i < h->v; i++) r->sum[i] = 0;
    for (int64_t j = 0; j < count; j++)
        ADD(r->sum, h->value + r->keys[j] * h->v, EXP(r->scores[j].x - top) / total, h->v);
    NUMBER row_dot = 0;
    for (int64_t i = 0; i < h->v; i++) {
        o[i] = (double)r->sum[i];
        if (h->d_o) row_dot += h->d_o[q * h->v + i] * r->sum[i];
    }
    *lse = count || h->has_sink ? (double)(top + LOG(total)) : -INFINITY;
    stats->max[q] = top, stats->sum[q] = total, stats->dot[q] = row_dot;
    if (h->d_o && d_q) NAME(row_gradient)(h, q, count, r, top, total, row_dot, d_q);
}

static void NAME(rows)(const oracle_head *h, const int64_t *rows, int64_t count, oracle_rows *out, oracle_stats *stats,
                       double *d_sink) {
#pragma omp parallel if (worth_threads(h, count, h->k))
    {
        NAME(room) room = NAME(room_get)(h, h->k);
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < count; i++)
            NAME(row)(h, rows[i], &room, out->o + i * h->v, &out->lse[i], out->d_q ? out->d_q + i * h->d : NULL, stats);
        NAME(room_free)(&room);
    }
    if (!d_sink) return;
    NUMBER sum = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t q = rows[i];
        sum -= EXP(h->sink - (NUMBER)stats->max[q]) / (NUMBER)stats->sum[q] * (NUMBER)stats->dot[q];
    }
    *d_sink = (double)sum;
}

static void NAME(key)(const oracle_head *h, int64_t k, NAME(room) * r, const oracle_stats *stats, double *d_k,
                      double *d_v) {
    int64_t count = word_mask_queries(h->mask, h->batch_row, k, r->keys);
    NUMBER *sum_v = r->sum, *sum_k = r->sum + h->v;
    for (int64_t i = 0; i < h->d + h->v; i++) r->sum[i] = 0;
    for (int64_t j = 0; j < count; j++) {
        int64_t q = r->keys[j];
        NAME(score) s = NAME(score_pair)(h, q, k);
        NUMBER p = EXP(s.x - (NUMBER)stats->max[q]) / (NUMBER)stats->sum[q];
        const double *d_o = h->d_o + q * h->v;
        NUMBER d_x = p * (DOT(d_o, h->value + k * h->v, h->v) - (NUMBER)stats->dot[q]);
        ADD(sum_v, d_o, p, h->v);
        ADD(sum_k, h->q + q * h->d, d_x * s.slope, h->d);
    }
    for (int64_t i = 0; i < h->v; i++) d_v[i] += (double)sum_v[i];
    for (int64_t i = 0; i < h->d; i++) d_k[i] += (double)sum_k[i];
}

static void NAME(keys)(const oracle_head *h, const int64_t *keys, int64_t count, const oracle_stats *stats, double *d_k,
                       double *d_v) {
#pragma omp parallel if (worth_threads(h, count, h->n))
    {
        NAME(room) room = NAME(room_get)(h, h->n);
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < count; i++) NAME(key)(h, keys[i], &room, stats, d_k + i * h->d, d_v + i * h->v);
        NAME(room_free)(&room);
    }
}
