/* body_one.h - forward for one query with one row a kv head (decoding without groups). Nothing is used twice, so memory is the
 * wall, and it is read strictly in its order: the hardware fetches ahead by itself then, and where K and V take turns, which it
 * does not see coming, each asks for the other (one_rect). Opens and closes its rows as body_few.h does. */

/* Kv heads that lie side by side, `apart` bytes from one to the next, or one: a row each. */
typedef struct one_heads {
    few_rows rows; /* of the first head */
    int64_t heads, apart;
} one_heads;

INLINE vf one_dot(const burst_dtype dtype, const char *key, int64_t dims, const real *q) {
    const int64_t size = (int64_t)dtype_bytes(dtype);
    vf even = v_set(0), odd = v_set(0);
    int64_t x = 0;
    for (; x + 2 * LANES <= dims; x += 2 * LANES) {
        vf pair[2];
        load_pair(dtype, key + x * size, pair);
        even = v_fma(v_load(q + x), pair[0], even);
        odd = v_fma(v_load(q + x + LANES), pair[1], odd);
    }
    for (; x + LANES <= dims; x += LANES) even = v_fma(v_load(q + x), load_as(dtype, key + x * size), even);
    if (x < dims) odd = v_fma(v_load(q + x), load_tail(dtype, key + x * size, dims - x), odd);
    return v_add(even, odd);
}

/* score[key][head]: four sums of lanes at a time, of four heads of a key, or of four keys of one head. Q in pair_order. */
INLINE void one_scores_body(const burst_dtype dtype, one_heads k, const real *q, int64_t wide, real *score,
                            int64_t width, ahead soon) {
    const bool many = k.heads > 1;
    const int64_t outer = many ? k.rows.n : 1, inner = many ? k.heads : k.rows.n;
    const int64_t bytes = many ? k.apart : k.rows.stride, next_q = many ? wide : 0;
    const int64_t share = ahead_share(&soon, outer * inner);
    for (int64_t a = 0; a < outer; a++) {
        const char *at = k.rows.at + a * k.rows.stride;
        for (int64_t b = 0; b < inner; b += 4) {
            vf sum[4];
            real out[4];
            for (int64_t i = 0; i < 4; i++) {
                const int64_t c = lao_min(b + i, inner - 1);
                look_ahead(&soon, share);
                sum[i] = one_dot(dtype, at + c * bytes, k.rows.dims, q + c * next_q);
            }
            v_sums(sum, out);
            for (int64_t i = 0; i < 4 && b + i < inner; i++) score[a * width + b + i] = out[i];
        }
    }
}

/* o += weight * v of one key and head; o in pair_order */
INLINE void one_add(const burst_dtype dtype, const char *at, int64_t dims, const vf weight, real *o) {
    const int64_t size = (int64_t)dtype_bytes(dtype);
    int64_t x = 0;
    for (; x + 2 * LANES <= dims; x += 2 * LANES) {
        vf pair[2];
        load_pair(dtype, at + x * size, pair);
        v_store(o + x, v_fma(weight, pair[0], v_load(o + x)));
        v_store(o + x + LANES, v_fma(weight, pair[1], v_load(o + x + LANES)));
    }
    for (; x < dims; x += LANES) {
        const char *from = at + x * size;
        const vf a = x + LANES <= dims ? load_as(dtype, from) : load_tail(dtype, from, dims - x);
        v_store(o + x, v_fma(weight, a, v_load(o + x)));
    }
}
/* o[head] = o * keep[head] + sum over the keys of p[key][head] * v */
INLINE void one_gather_body(const burst_dtype dtype, one_heads v, const real *p, int64_t width, const real *keep,
                            real *o, int64_t wide, ahead soon) {
    const int64_t share = ahead_share(&soon, v.rows.n * v.heads);
    for (int64_t h = 0; h < v.heads; h++)
        for (int64_t x = 0; x < v.rows.dims && keep[h] != 1; x += LANES)
            v_store(o + h * wide + x, v_mul(v_load(o + h * wide + x), v_set(keep[h])));
    for (int64_t j = 0; j < v.rows.n; j++) {
        for (int64_t h = 0; h < v.heads; h++) {
            look_ahead(&soon, share);
            one_add(dtype, v.rows.at + j * v.rows.stride + h * v.apart, v.rows.dims, v_set(p[j * width + h]),
                    o + h * wide);
        }
    }
}
KERNEL void one_scores(burst_dtype dtype, one_heads k, const real *q, int64_t wide, real *score, int64_t width,
                       ahead soon) {
#ifdef SIMD_F64
    one_scores_body(dtype, k, q, wide, score, width, soon);
#else
    if (dtype == BURST_F32)
        one_scores_body(BURST_F32, k, q, wide, score, width, soon);
    else if (dtype == BURST_BF16)
        one_scores_body(BURST_BF16, k, q, wide, score, width, soon);
    else
        one_scores_body(BURST_F16, k, q, wide, score, width, soon);
#endif
}
KERNEL void one_gather(burst_dtype dtype, one_heads v, const real *p, int64_t width, const real *keep, real *o,
                       int64_t wide, ahead soon) {
#ifdef SIMD_F64
    one_gather_body(dtype, v, p, width, keep, o, wide, soon);
#else
    if (dtype == BURST_F32)
        one_gather_body(BURST_F32, v, p, width, keep, o, wide, soon);
    else if (dtype == BURST_BF16)
        one_gather_body(BURST_BF16, v, p, width, keep, o, wide, soon);
    else
        one_gather_body(BURST_F16, v, p, width, keep, o, wide, soon);
#endif
}

/* One row's raw scores of n keys, first of them `key`, folded like a panel's (panel_fold), but lanes are keys: the lanes of m
 * are alike, those of sum add up. */
static void one_fold(const lao *local, const lao_block *block, const lao_rect *rect, int64_t key, int64_t n,
                     forward_work *w) {
    const int64_t steps = (n + LANES - 1) / LANES;
    if (local->shape.softcap > 0 || local->shape.alibi) {
        slopes alibi;
        if (local->shape.alibi) {
            slopes_of(local, block, panels_of(block), 0, rect, key, &alibi);
            for (int32_t lane = 0; lane < LANES; lane++) alibi.distance[lane] += lane * alibi.step;
            alibi.step *= LANES;
        }
        modify(local, 1, steps, w->score, local->shape.alibi ? &alibi : NULL, NULL);
    }
    for (int64_t j = n; j < steps * LANES; j++) w->score[j] = -(real)INFINITY;
    top_of(1, steps, w->score, w->top);
    real top = w->top[0];
    for (int lane = 1; lane < LANES; lane++) top = w->top[lane] > top || top != top ? w->top[lane] : top;
    for (int lane = 0; lane < LANES; lane++) w->top[lane] = top;
    fold(1, steps, w->score, (real)score_factor(local), w->top, w->m, w->sum, w->keep);
}

/* Keys of a step: about so many bytes of K, then of V; of one head whole vectors of keys, one at least. */
static int64_t one_keys(const lao *local, int64_t heads) {
    const int64_t bytes = heads * local->shape.head_dim * (int64_t)dtype_bytes(local->shape.dtype);
    return heads > 1 ? lao_max(1, lao_min(ONE_KEYS, ONE_WIDE / bytes))
                     : lao_max(LANES, lao_min(ONE_KEYS, ONE_BYTES / bytes / LANES * LANES));
}
/* Keys first .. last-1 of heads that lie side by side; of heads with gaps between them, none. */
INLINE ahead one_soon(const lao_block *heads, const lao_tensor *t, burst_dtype dtype, int64_t dims, int64_t first,
                      int64_t last) {
    const bool gaps = heads->heads > 1 && t->head != dims;
    ahead soon = ahead_keys(heads, t, dtype, dims * heads->heads, first, gaps ? first : last);
    soon.near = NEAR && heads->heads == 1;
    return soon;
}

/* The keys that a rectangle leaves of first .. last-1, through all rows of `heads`, step by step. */
static void one_rect(const lao *local, const lao_forward_args *args, const lao_block *heads, const lao_rect *rect,
                     int64_t first, int64_t last, forward_work *w) {
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim, size = (int64_t)dtype_bytes(dtype);
    const panels p = panels_of(heads);
    const int64_t width = p.rows == 1 ? 1 : panel_vectors(p, 0) * LANES, keys = one_keys(local, p.rows);
    reach r;
    reach_of(heads, p, 0, rect, first, last, &r); /* of one query: full, or empty */
    const int64_t end = r.end;
    for (; r.begin < end; r.begin = r.end) {
        r.end = lao_min(r.begin + keys, end);
        const int64_t here = first + r.begin, next = first + r.end;
        const few_rows k = few_keys(heads, &args->k, dtype, d, here, next);
        const few_rows v = few_keys(heads, &args->v, dtype, dv, here, next);
        const ahead values = one_soon(heads, &args->v, dtype, dv, here, next);
        const ahead then = one_soon(heads, &args->k, dtype, d, next, lao_min(next + keys, heads->j1));
        one_scores(dtype, (one_heads){k, p.rows, args->k.head * size}, w->few_q, lao_round_up(d, LANES), w->score,
                   width, values);
        if (width == 1)
            one_fold(local, heads, rect, here, r.end - r.begin, w);
        else
            panel_fold(local, heads, p, 0, rect, &r, first, w);
        one_gather(dtype, (one_heads){v, p.rows, args->v.head * size}, w->score, width, w->keep, w->few_o,
                   lao_round_up(dv, LANES), then);
    }
}

/* One query, a row a kv head. Heads that lie side by side go together, as rows of a panel; others one after the other. */
static void forward_one(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w,
                        char *partial, lao_run *run) {
    const int64_t wide_o = lao_round_up(local->shape.value_dim, LANES);
    const bool near = args->k.head < args->k.token && args->v.head < args->v.token && block->together <= PANEL;
    const int64_t side = near ? block->together : 1;
    for (int64_t n = 0; n < block->together; n += side) {
        lao_block heads = few_block(local, block, n);
        heads.heads = side;
        forward_work rows = few_work(local, block, w, 0);
        memset(w->score, 0, ONE_KEYS * PANEL * sizeof(real)); /* lanes without a row stay finite */
        few_open(local, args, &heads, true, &rows);
        for (int64_t first = block->j0; first < block->j1; first += FEW_TILE) {
            const int64_t last = lao_min(first + FEW_TILE, block->j1);
            int64_t begin, end;
            const size_t count = active_rects(block, first, last, w->active, &begin, &end);
            for (size_t id = 0; id < count; id++)
                one_rect(local, args, &heads, &block->rects[w->active[id]], first, last, &rows);
            lao_tick(run, (double)(side * (last - first)));
            if (lao_stopped(run)) return;
        }
        if (side == 1)
            for (int lane = 1; lane < LANES; lane++) rows.sum[0] += rows.sum[lane];
        for (int64_t h = 0; h < side; h++) {
            const lao_block one = few_block(local, block, n + h);
            forward_work row = rows;
            row.m += h, row.sum += h, row.few_o += h * wide_o;
            few_close(local, args, &one, &row,
                      partial ? partial + (size_t)((n + h) * local->forward.chunks) * local->partial_stride : NULL);
        }
    }
}
