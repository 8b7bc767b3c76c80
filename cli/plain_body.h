/* plain_body.h - the body of the plain computation, compiled by plain.c once for float and once for double.
 *
 * NUMBER is the type; NAME(x) names the functions; EXP, LOG and TANH are its functions, ADD(to, from, factor, count)
 * adds a multiple; ROUND(dtype, x) rounds to the
 * 16-bit type where a plain framework would store a tensor. Every sum runs over its terms one after the other, as a
 * loop in a textbook does; eight dot products stand side by side so that the processor has something to do meanwhile.
 */

typedef struct NAME(head) {
    const oracle_head *head;
    NUMBER *q, *key, *value, *d_o; /* in 16 bits q comes scaled and rounded, as flash-attention's reference has it */
    NUMBER scale;                  /* what is left to multiply scores by */
    NUMBER gradient_scale;         /* the factor of d_q */
} NAME(head);

static NUMBER *NAME(convert)(const double *from, int64_t count) {
    NUMBER *to = need_array((size_t)count, sizeof *to);
    for (int64_t i = 0; from && i < count; i++) to[i] = (NUMBER)from[i];
    return to;
}

static void NAME(open)(const oracle_head *h, NAME(head) * p) {
    p->head = h;
    p->q = NAME(convert)(h->q, h->n * h->d);
    p->key = NAME(convert)(h->key, h->k * h->d);
    p->value = NAME(convert)(h->value, h->k * h->v);
    p->d_o = NAME(convert)(h->d_o, h->n * h->v);
    p->scale = p->gradient_scale = (NUMBER)h->scale;
    if (h->dtype != BURST_BF16 && h->dtype != BURST_F16) return;
    for (int64_t i = 0; i < h->n * h->d; i++) p->q[i] = ROUND(h->dtype, p->q[i] * p->scale);
    p->scale = 1;
}

static void NAME(close)(NAME(head) * p) {
    free(p->q);
    free(p->key);
    free(p->value);
    free(p->d_o);
}

/* out[j] = dot(a, rows[list[j]]) */
static void NAME(dots)(const NUMBER *a, const NUMBER *rows, int64_t width, const int64_t *list, int64_t count,
                       NUMBER *out) {
    int64_t j = 0;
    for (; j + 8 <= count; j += 8) {
        const NUMBER *row[8];
        NUMBER sum[8] = {0};
        for (int t = 0; t < 8; t++) row[t] = rows + list[j + t] * width;
        for (int64_t i = 0; i < width; i++)
            for (int t = 0; t < 8; t++) sum[t] += a[i] * row[t][i];
        memcpy(out + j, sum, sizeof sum);
    }
    for (; j < count; j++) {
        const NUMBER *row = rows + list[j] * width;
        NUMBER sum = 0;
        for (int64_t i = 0; i < width; i++) sum += a[i] * row[i];
        out[j] = sum;
    }
}

typedef struct NAME(room) {
    int64_t *list;
    NUMBER *x, *tanh, *d_p, *sum;
} NAME(room);

static NAME(room) NAME(room_get)(int64_t count, int64_t width) {
    size_t n = (size_t)count;
    return (NAME(room)){need_array(n, sizeof(int64_t)), need_array(n, sizeof(NUMBER)), need_array(n, sizeof(NUMBER)),
                        need_array(n, sizeof(NUMBER)), need_array((size_t)width, sizeof(NUMBER))};
}
static void NAME(room_free)(NAME(room) * r) {
    free(r->list);
    free(r->x);
    free(r->tanh);
    free(r->d_p);
    free(r->sum);
}

/* From dot products to what the softmax sees, for one pair. */
static void NAME(modify)(const NAME(head) * p, int64_t q, int64_t k, NUMBER *x, NUMBER *t) {
    const oracle_head *h = p->head;
    *x = ROUND(h->dtype, *x * p->scale);
    *t = 0;
    if (h->softcap > 0) {
        *t = ROUND(h->dtype, TANH(ROUND(h->dtype, *x / (NUMBER)h->softcap)));
        *x = ROUND(h->dtype, (NUMBER)h->softcap * *t);
    }
    if (h->slope > 0 || h->slope < 0) *x -= (NUMBER)h->slope * (NUMBER)word_mask_distance(h->mask, h->batch_row, q, k);
}

/* dS from p, dP, D and the softcap's tanh, each step stored. */
static NUMBER NAME(d_score)(const oracle_head *h, NUMBER p, NUMBER d_p, NUMBER row_dot, NUMBER t) {
    NUMBER d_x = ROUND(h->dtype, p * (ROUND(h->dtype, d_p) - row_dot));
    return h->softcap > 0 ? ROUND(h->dtype, d_x * (1 - t * t)) : d_x;
}

/* D = rowsum(dO * O), the equation of the paper. A framework in 16 bits has no such O (its own is rounded to 16 bits)
 * and takes sum(P * dP), as its softmax does; so does flash-attention's reference. */
static NUMBER NAME(row_dot)(const NAME(head) * p, int64_t q, int64_t count, const NAME(room) * r, NUMBER top,
                            NUMBER total, const double *o) {
    const oracle_head *h = p->head;
    NUMBER dot = 0;
    if (h->dtype != BURST_BF16 && h->dtype != BURST_F16) {
        for (int64_t i = 0; i < h->v; i++) dot += p->d_o[q * h->v + i] * (NUMBER)o[i];
        return dot;
    }
    for (int64_t j = 0; j < count; j++) dot += ROUND(h->dtype, EXP(r->x[j] - top) / total) * ROUND(h->dtype, r->d_p[j]);
    return dot;
}

static void NAME(row_gradient)(const NAME(head) * p, int64_t q, int64_t count, NAME(room) * r, NUMBER top, NUMBER total,
                               const double *o, double *d_q, long double *row_dot) {
    const oracle_head *h = p->head;
    NAME(dots)(p->d_o + q * h->v, p->value, h->v, r->list, count, r->d_p);
    NUMBER dot = NAME(row_dot)(p, q, count, r, top, total, o);
    *row_dot = dot;
    memset(r->sum, 0, (size_t)h->d * sizeof *r->sum);
    for (int64_t j = 0; j < count; j++) {
        NUMBER prob = ROUND(h->dtype, EXP(r->x[j] - top) / total);
        NUMBER d_s = NAME(d_score)(h, prob, r->d_p[j], dot, r->tanh[j]);
        ADD(r->sum, p->key + r->list[j] * h->d, d_s, h->d);
    }
    for (int64_t i = 0; i < h->d; i++) d_q[i] = (double)ROUND(h->dtype, ROUND(h->dtype, r->sum[i]) * p->gradient_scale);
}

static void NAME(row)(const NAME(head) * p, int64_t q, NAME(room) * r, double *o, double *lse, double *d_q,
                      oracle_stats *stats) {
    const oracle_head *h = p->head;
    int64_t count = word_mask_keys(h->mask, h->batch_row, q, r->list);
    NAME(dots)(p->q + q * h->d, p->key, h->d, r->list, count, r->x);
    NUMBER top = h->has_sink ? (NUMBER)h->sink : -(NUMBER)INFINITY;
    for (int64_t j = 0; j < count; j++) {
        NAME(modify)(p, q, r->list[j], &r->x[j], &r->tanh[j]);
        if (!(r->x[j] <= top)) top = r->x[j];
    }
    NUMBER total = h->has_sink ? EXP((NUMBER)h->sink - top) : 0;
    for (int64_t j = 0; j < count; j++) total += EXP(r->x[j] - top);
    memset(r->sum, 0, (size_t)h->v * sizeof *r->sum);
    for (int64_t j = 0; j < count; j++)
        ADD(r->sum, p->value + r->list[j] * h->v, ROUND(h->dtype, EXP(r->x[j] - top) / total), h->v);
    for (int64_t i = 0; i < h->v; i++) o[i] = (double)ROUND(h->dtype, r->sum[i]);
    *lse = count || h->has_sink ? (double)(top + LOG(total)) : -INFINITY;
    stats->max[q] = top, stats->sum[q] = total, stats->dot[q] = 0;
    if (h->d_o && d_q) NAME(row_gradient)(p, q, count, r, top, total, o, d_q, &stats->dot[q]);
}

static double NAME(sink)(const oracle_head *h, const int64_t *rows, int64_t count, const oracle_stats *stats) {
    NUMBER sum = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t q = rows[i];
        NUMBER prob = ROUND(h->dtype, EXP((NUMBER)h->sink - (NUMBER)stats->max[q]) / (NUMBER)stats->sum[q]);
        sum -= ROUND(h->dtype, prob * (NUMBER)stats->dot[q]);
    }
    return (double)sum;
}

static void NAME(rows)(const oracle_head *h, const int64_t *rows, int64_t count, oracle_rows *out, oracle_stats *stats,
                       double *d_sink) {
    NAME(head) p;
    NAME(open)(h, &p);
#pragma omp parallel if ((double)count * (double)h->k * (double)(h->d + h->v) > 1e6)
    {
        NAME(room) room = NAME(room_get)(h->k, h->d + h->v);
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < count; i++) {
            double *d_q = out->d_q ? out->d_q + i * h->d : NULL;
            NAME(row)(&p, rows[i], &room, out->o + i * h->v, &out->lse[i], d_q, stats);
        }
        NAME(room_free)(&room);
    }
    if (d_sink) *d_sink = NAME(sink)(h, rows, count, stats);
    NAME(close)(&p);
}

static void NAME(key)(const NAME(head) * p, int64_t k, NAME(room) * r, const oracle_stats *stats, double *d_k,
                      double *d_v) {
    const oracle_head *h = p->head;
    int64_t count = word_mask_queries(h->mask, h->batch_row, k, r->list);
    NAME(dots)(p->key + k * h->d, p->q, h->d, r->list, count, r->x);
    NAME(dots)(p->value + k * h->v, p->d_o, h->v, r->list, count, r->d_p);
    NUMBER *sum_k = r->sum, *sum_v = r->sum + h->d;
    memset(r->sum, 0, (size_t)(h->d + h->v) * sizeof *r->sum);
    for (int64_t j = 0; j < count; j++) {
        int64_t q = r->list[j];
        NAME(modify)(p, q, k, &r->x[j], &r->tanh[j]);
        NUMBER prob = ROUND(h->dtype, EXP(r->x[j] - (NUMBER)stats->max[q]) / (NUMBER)stats->sum[q]);
        NUMBER d_s = NAME(d_score)(h, prob, r->d_p[j], (NUMBER)stats->dot[q], r->tanh[j]);
        ADD(sum_v, p->d_o + q * h->v, prob, h->v);
        ADD(sum_k, p->q + q * h->d, d_s, h->d);
    }
    for (int64_t i = 0; i < h->d; i++) d_k[i] = (double)((NUMBER)d_k[i] + ROUND(h->dtype, sum_k[i] * p->scale));
    for (int64_t i = 0; i < h->v; i++) d_v[i] = (double)((NUMBER)d_v[i] + ROUND(h->dtype, sum_v[i]));
}

static void NAME(keys)(const oracle_head *h, const int64_t *keys, int64_t count, const oracle_stats *stats, double *d_k,
                       double *d_v) {
    NAME(head) p;
    NAME(open)(h, &p);
#pragma omp parallel if ((double)count * (double)h->n * (double)(h->d + h->v) > 1e6)
    {
        NAME(room) room = NAME(room_get)(h->n, h->d + h->v);
#pragma omp for schedule(dynamic, 4)
        for (int64_t i = 0; i < count; i++) NAME(key)(&p, keys[i], &room, stats, d_k + i * h->d, d_v + i * h->v);
        NAME(room_free)(&room);
    }
    NAME(close)(&p);
}
