/* body_few.h - forward for a few rows (decoding): the two products read keys and values where they lie, lanes are dims, and
 * four or eight rows share a loaded key; between them stands the softmax of the panels. Bound by memory: rows that come soon
 * are asked for meanwhile (few_soon), a little at each step: more than the core can wait for at a time stalls it. */

#define FEW_GROUP (LANES < 4 ? 1 : 4) /* rows that share a loaded key; Q and o have so many, or one or two .. */
#define FEW_MANY (LANES < 16 ? 4 : 8) /* .. or so many, with 32 registers (f16: 7 % more GB/s on Zen 4) */
#define FEW_WIDTH(rows)                                                                                                \
    ((rows) == 1 ? 8 : (rows) < 4 ? 4 : 2) /* vectors of dims in a gather step; whole rows for one */

/* What scores are summed over: numbers, or pairs of bf16 as they lie, in Q too. LANES terms of a key from term x on. */
#ifdef SIMD_PAIRS
#define FEW_VECTORS(dims) ((dims) / (2 * LANES)) /* whole vectors of terms; what is left of a key is read bytewise */
#define FEW_REST(dims) ((dims) % (2 * LANES))
INLINE vf few_terms(const burst_dtype dtype, const char *key, int64_t x) {
    (void)dtype;
    return v_load((const real *)(const void *)key + x);
}
INLINE vf few_terms_tail(const burst_dtype dtype, const char *key, int64_t x, int64_t dims) {
    char bytes[LANES * sizeof(real)] = {0};
    memcpy(bytes, key + x * (int64_t)sizeof(real), (size_t)dims * dtype_bytes(dtype) - (size_t)x * sizeof(real));
    return v_load((const real *)(const void *)bytes);
}
INLINE vf v_few(vf a, vf b, vf sum) { return v_dot(a, b, sum); }
#else
#define FEW_VECTORS(dims) ((dims) / LANES)
#define FEW_REST(dims) ((dims) % LANES)
INLINE vf v_few(vf a, vf b, vf sum) { return v_fma(a, b, sum); }
INLINE vf few_terms(const burst_dtype dtype, const char *key, int64_t x) {
    return load_as(dtype, key + x * (int64_t)dtype_bytes(dtype));
}
INLINE vf few_terms_tail(const burst_dtype dtype, const char *key, int64_t x, int64_t dims) {
    return load_tail(dtype, key + x * (int64_t)dtype_bytes(dtype), dims - x);
}
#endif

/* n rows of a tensor, `stride` bytes apart */
typedef struct few_rows {
    const char *at;
    int64_t n, stride, dims;
} few_rows;

/* The sums of rows x keys products, sum[row][key], go to score[key][row] or are added there. 4 or 8 rows, or 4 keys. */
INLINE void few_put(const int rows, const int keys, vf sum[8][4], real *score, int64_t width, const bool add) {
    real out[4];
    if (rows >= 4) {
        for (int n = 0; n < rows / 4 * keys; n++) {
            const int i = n % keys, first = n / keys * 4;
            const vf column[4] = {sum[first][i], sum[first + 1][i], sum[first + 2][i], sum[first + 3][i]};
            real *to = score + i * width + first;
            v_sums(column, add ? out : to);
            for (int r = 0; r < 4 && add; r++) to[r] += out[r];
        }
    } else {
        for (int r = 0; r < rows; r++) {
            v_sums(sum[r], out);
            for (int i = 0; i < 4; i++) score[i * width + r] = add ? score[i * width + r] + out[i] : out[i];
        }
    }
}

/* score[key][row] for `rows` rows of Q, `wide` apart, and `keys` keys: dims in whole vectors */
INLINE void few_scores_step(const burst_dtype dtype, const int rows, const int keys, const char *const *key,
                            int64_t dims, const real *q, int64_t wide, real *score, int64_t width) {
    const int64_t whole = FEW_VECTORS(dims) * LANES;
    vf sum[8][4];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < keys; i++) sum[r][i] = v_set(0);
#pragma GCC unroll 2
    for (int64_t x = 0; x < whole; x += LANES) {
        vf a[4];
        for (int i = 0; i < keys; i++) {
            a[i] = few_terms(dtype, key[i], x);
            V_KEEP(a[i]);
        }
        for (int r = 0; r < rows; r++) {
            vf b = v_load(q + r * wide + x);
            V_KEEP(b);
            for (int i = 0; i < keys; i++) sum[r][i] = v_few(b, a[i], sum[r][i]);
        }
    }
    few_put(rows, keys, sum, score, width, false);
}

/* the terms behind the whole vectors; Q is padded with 0 */
INLINE void few_scores_tail(const burst_dtype dtype, const int rows, const int keys, const char *const *key,
                            int64_t dims, const real *q, int64_t wide, real *score, int64_t width) {
    const int64_t whole = FEW_VECTORS(dims) * LANES;
    vf sum[8][4];
    for (int i = 0; i < keys; i++) {
        const vf a = few_terms_tail(dtype, key[i], whole, dims);
        for (int r = 0; r < rows; r++) sum[r][i] = v_few(v_load(q + r * wide + whole), a, v_set(0));
    }
    few_put(rows, keys, sum, score, width, true);
}

/* All rows through the keys. Scores of up to 3 keys behind the last are written too, they repeat it. */
INLINE void few_scores_body(const burst_dtype dtype, const int group, int64_t rows, few_rows k, const real *q,
                            int64_t wide, real *score, int64_t width, ahead *soon) {
    const int keys = group >= 4 ? 3 : 4;
    ahead rest = *soon; /* in registers */
    const int64_t steps = (k.n + keys - 1) / keys * ((rows + group - 1) / group), share = ahead_share(&rest, steps);
    for (int64_t j = 0; j < k.n; j += keys) {
        const char *key[4];
        for (int i = 0; i < keys; i++) key[i] = k.at + lao_min(j + i, k.n - 1) * k.stride;
        for (int64_t r = 0; r < rows; r += group) {
            look_ahead(&rest, share);
            few_scores_step(dtype, group, keys, key, k.dims, q + r * wide, wide, score + j * width + r, width);
            if (FEW_REST(k.dims))
                few_scores_tail(dtype, group, keys, key, k.dims, q + r * wide, wide, score + j * width + r, width);
        }
    }
    *soon = rest;
}

/* o[row][x] = o * keep[row] + sum over the keys of p[key][row] * v[key][x], from dim x on, `vectors` vectors or the rest */
INLINE void few_gather_step(const burst_dtype dtype, const int rows, const int vectors, few_rows v, int64_t x,
                            const real *p, int64_t width, const real *keep, real *o, int64_t wide) {
    const int64_t size = (int64_t)dtype_bytes(dtype), rest = v.dims - x;
    const char *at = v.at + x * size;
    vf sum[8][8];
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++) sum[r][i] = v_mul(v_load(o + r * wide + x + i * LANES), v_set(keep[r]));
#pragma GCC unroll 2
    for (int64_t j = 0; j < v.n; j++) {
        vf a[8];
        if (vectors == 1) a[0] = rest >= LANES ? load_as(dtype, at) : load_tail(dtype, at, rest);
        for (int i = 0; i + 1 < vectors; i += 2) load_pair(dtype, at + i * LANES * size, a + i);
        for (int i = 0; i < vectors; i++) V_KEEP(a[i]);
        for (int r = 0; r < rows; r++) {
            const vf weight = v_set(p[r]);
            for (int i = 0; i < vectors; i++) sum[r][i] = v_fma(weight, a[i], sum[r][i]);
        }
        at += v.stride;
        p += width;
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < vectors; i++) v_store(o + r * wide + x + i * LANES, sum[r][i]);
}

INLINE void few_gather_body(const burst_dtype dtype, const int group, int64_t rows, few_rows v, const real *p,
                            int64_t width, const real *keep, real *o, int64_t wide, ahead *soon) {
    const int64_t dims = FEW_WIDTH(group) * LANES;
    ahead rest = *soon;
    const int64_t steps = (v.dims + dims - 1) / dims * ((rows + group - 1) / group), share = ahead_share(&rest, steps);
    int64_t x = 0;
    for (; x + dims <= v.dims; x += dims) {
        for (int64_t r = 0; r < rows; r += group) {
            look_ahead(&rest, share);
            few_gather_step(dtype, group, FEW_WIDTH(group), v, x, p + r, width, keep + r, o + r * wide, wide);
        }
    }
    for (; group == 1 && x + 4 * LANES <= v.dims; x += 4 * LANES)
        for (int64_t r = 0; r < rows; r += group)
            few_gather_step(dtype, group, 4, v, x, p + r, width, keep + r, o + r * wide, wide);
    for (; x + 2 * LANES <= v.dims; x += 2 * LANES)
        for (int64_t r = 0; r < rows; r += group)
            few_gather_step(dtype, group, 2, v, x, p + r, width, keep + r, o + r * wide, wide);
    for (; x < v.dims; x += LANES)
        for (int64_t r = 0; r < rows; r += group)
            few_gather_step(dtype, group, 1, v, x, p + r, width, keep + r, o + r * wide, wide);
    look_ahead(&rest, share);
    *soon = rest; /* rows that gather one by one ask once */
}

/* one loop for each type and number of rows, so that neither is looked at inside */
INLINE void few_scores_of(const burst_dtype dtype, int64_t rows, few_rows k, const real *q, int64_t wide, real *score,
                          int64_t width, ahead *soon) {
    if (FEW_GROUP == 1 || rows == 1)
        few_scores_body(dtype, 1, rows, k, q, wide, score, width, soon);
    else if (rows == 2)
        few_scores_body(dtype, 2, rows, k, q, wide, score, width, soon);
    else if (FEW_MANY == 4 || rows <= 4)
        few_scores_body(dtype, 4, rows, k, q, wide, score, width, soon);
    else
        few_scores_body(dtype, FEW_MANY, rows, k, q, wide, score, width, soon);
}
INLINE void few_gather_of(const burst_dtype dtype, int64_t rows, few_rows v, const real *p, int64_t width,
                          const real *keep, real *o, int64_t wide, ahead *soon) {
    if (FEW_GROUP == 1 || rows == 1)
        few_gather_body(dtype, 1, rows, v, p, width, keep, o, wide, soon);
    else if (rows == 2)
        few_gather_body(dtype, 2, rows, v, p, width, keep, o, wide, soon);
    else if (FEW_MANY == 4 || rows <= 4)
        few_gather_body(dtype, 4, rows, v, p, width, keep, o, wide, soon);
    else
        few_gather_body(dtype, FEW_MANY, rows, v, p, width, keep, o, wide, soon);
}
KERNEL void few_scores(burst_dtype dtype, int64_t rows, few_rows k, const real *q, int64_t wide, real *score,
                       int64_t width, ahead *soon) {
#ifdef SIMD_F64
    few_scores_of(dtype, rows, k, q, wide, score, width, soon);
#else
    if (dtype == BURST_F32)
        few_scores_of(BURST_F32, rows, k, q, wide, score, width, soon);
    else if (dtype == BURST_BF16)
        few_scores_of(BURST_BF16, rows, k, q, wide, score, width, soon);
    else
        few_scores_of(BURST_F16, rows, k, q, wide, score, width, soon);
#endif
}
KERNEL void few_gather(burst_dtype dtype, int64_t rows, few_rows v, const real *p, int64_t width, const real *keep,
                       real *o, int64_t wide, ahead *soon) {
#ifdef SIMD_F64
    few_gather_of(dtype, rows, v, p, width, keep, o, wide, soon);
#else
    if (dtype == BURST_F32)
        few_gather_of(BURST_F32, rows, v, p, width, keep, o, wide, soon);
    else if (dtype == BURST_BF16)
        few_gather_of(BURST_BF16, rows, v, p, width, keep, o, wide, soon);
    else
        few_gather_of(BURST_F16, rows, v, p, width, keep, o, wide, soon);
#endif
}

INLINE few_rows few_keys(const lao_block *block, const lao_tensor *t, burst_dtype dtype, int64_t dims, int64_t first,
                         int64_t last) {
    return (few_rows){tensor_row(t, dtype, block->b, first, block->g), last - first,
                      t->token * (int64_t)dtype_bytes(dtype), dims};
}

/* One panel through the keys of a step that it sees through one rectangle; soon: what to ask for while K is read, and while
 * V is read. */
static void few_panel(const lao *local, const lao_forward_args *args, const lao_block *block, panels p, int64_t index,
                      const lao_rect *rect, const reach *r, int64_t step, ahead soon[2], forward_work *w) {
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim, rows = panel_rows(p, index);
    const int64_t wide_q = lao_round_up(d, LANES), wide_o = lao_round_up(dv, LANES);
    const int64_t width = panel_vectors(p, index) * LANES, first = step + r->begin, last = step + r->end;
    real *o = w->few_o + index * PANEL * wide_o;
    few_scores(dtype, rows, few_keys(block, &args->k, dtype, d, first, last), w->few_q + index * PANEL * wide_q, wide_q,
               w->score, width, &soon[0]);
    panel_fold(local, block, p, index, rect, r, step, w);
    if (r->full) {
        few_gather(dtype, rows, few_keys(block, &args->v, dtype, dv, first, last), w->score, width, w->keep, o, wide_o,
                   &soon[1]);
        return;
    }
    for (int64_t lane = 0; lane < rows; lane++) { /* 0 * NaN must not reach a row that may not see it */
        const few_rows v = few_keys(block, &args->v, dtype, dv, step + r->first[lane], step + r->last[lane]);
        if (v.n <= 0) continue;
        few_gather(dtype, 1, v, w->score + (r->first[lane] - r->begin) * width + lane, width, w->keep + lane,
                   o + lane * wide_o, wide_o, &soon[1]);
    }
}

/* The block and the rows of the n-th kv head of the task. */
static lao_block few_block(const lao *local, const lao_block *block, int64_t n) {
    lao_block one = *block;
    one.g += n;
    one.h0 += n * (local->shape.q_heads / local->shape.kv_heads);
    return one;
}
static forward_work few_work(const lao *local, const lao_block *block, const forward_work *w, int64_t n) {
    const int64_t rows = panels_of(block).count * PANEL * n;
    forward_work one = *w;
    one.few_q += rows * lao_round_up(local->shape.head_dim, LANES);
    one.few_o += rows * lao_round_up(local->shape.value_dim, LANES);
    one.m = w->few_m + rows;
    one.sum = w->few_sum + rows;
    return one;
}

/* paired: Q in pair_order, for body_one.h */
static void few_open(const lao *local, const lao_forward_args *args, const lao_block *block, bool paired,
                     forward_work *w) {
    const panels p = panels_of(block);
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, wide = lao_round_up(d, LANES);
    const int64_t some = lao_round_up(p.rows, FEW_GROUP == 1 ? 1 : FEW_MANY); /* products take whole groups */
    memset(w->few_q, 0, (size_t)(some * wide) * sizeof(real));
    memset(w->few_o, 0, (size_t)(some * lao_round_up(local->shape.value_dim, LANES)) * sizeof(real));
    for (int64_t r = 0; r < p.count * PANEL; r++) w->m[r] = -(real)INFINITY, w->sum[r] = 0;
    for (int64_t r = 0; r < p.rows; r++) {
        real *q = w->few_q + r * wide;
        const char *from = tensor_row(&args->q, dtype, block->b, row_query(block, r), row_head(block, r));
#ifdef SIMD_PAIRS
        if (!paired) {
            key_put(dtype, from, d, q);
            if (local->shape.scale < 0) key_negate(d, q);
            continue;
        }
#endif
        row_load(dtype, from, d, w->row);
        for (int64_t x = 0; x < d; x++)
            q[paired ? pair_order(dtype, x, d) : x] = local->shape.scale < 0 ? -w->row[x] : w->row[x];
    }
}

/* Leaves the rows' sums in partial, or the result. */
static void few_close(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w,
                      char *partial) {
    const panels p = panels_of(block);
    const int64_t dv = local->shape.value_dim, wide = lao_round_up(dv, LANES), padded = lao_round_up(dv, GROUP);
    if (partial) {
        forward_state state;
        state_carve(local, partial, &state);
        memcpy(state.m, w->m, (size_t)(p.count * PANEL) * sizeof(real));
        memcpy(state.sum, w->sum, (size_t)(p.count * PANEL) * sizeof(real));
        w->o = state.o;
    }
    const int64_t whole = p.count - 1; /* all panels but the last are full */
    memset(w->o, 0, (size_t)((whole * PANEL + panel_vectors(p, whole) * LANES) * padded) * sizeof(real));
    for (int64_t r = 0; r < p.rows; r++) {
        const int64_t index = r / PANEL, width = panel_vectors(p, index) * LANES;
        real *o = w->o + index * PANEL * padded + r % PANEL;
        for (int64_t x = 0; x < dv; x++) o[x * width] = w->few_o[r * wide + pair_order(local->shape.dtype, x, dv)];
    }
    if (!partial) forward_finish(local, args, block, w);
}

/* Keys of a step: FEW_BYTES of K, of all kv heads of the task, or FEW_LEAST if that is more. */
static int64_t few_step(const lao *local, int64_t heads) {
    const int64_t bytes = heads * local->shape.head_dim * (int64_t)dtype_bytes(local->shape.dtype);
    return lao_max(FEW_LEAST, lao_min(FEW_MOST, FEW_BYTES / bytes / 12 * 12)); /* whole groups of 3 and of 4 keys */
}

/* What the n-th kv head of a task asks for while it reads K (soon[0]) and V (soon[1]) of keys step .. last-1. Heads that lie
 * side by side: its share of the next step's rows, all heads wide, so that memory is read in order. Otherwise nearer: V of
 * this step, then K of the head or step that follows. */
static void few_soon(const lao *local, const lao_forward_args *args, const lao_block *block, int64_t n, int64_t step,
                     int64_t last, ahead soon[2]) {
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim, all = block->together;
    const int64_t after = lao_min(2 * last - step, block->j1), rows = after - last;
    if (all > 1 && args->k.head == d && args->v.head == dv) {
        const int64_t from = last + rows * n / all, to = last + rows * (n + 1) / all;
        soon[0] = ahead_keys(block, &args->k, dtype, d * all, from, to);
        soon[1] = ahead_keys(block, &args->v, dtype, dv * all, from, to);
    } else {
        const bool over = n + 1 == all;
        const lao_block one = few_block(local, block, n), then = few_block(local, block, over ? 0 : n + 1);
        soon[0] = ahead_keys(&one, &args->v, dtype, dv, step, last);
        soon[1] = ahead_keys(&then, &args->k, dtype, d, over ? last : step, over ? after : last);
        soon[0].near = soon[1].near = NEAR;
    }
}

/* One panel of every kv head of the task through keys step .. last-1, of which it sees `r`. */
static void few_heads(const lao *local, const lao_forward_args *args, const lao_block *block, panels p, int64_t index,
                      const lao_rect *rect, const reach *r, int64_t step, int64_t last, forward_work *w) {
    for (int64_t n = 0; n < block->together; n++) {
        const lao_block one = few_block(local, block, n);
        forward_work rows = few_work(local, block, w, n);
        ahead soon[2];
        few_soon(local, args, block, n, step, last, soon);
        few_panel(local, args, &one, p, index, rect, r, step, soon, &rows);
    }
}

/* The keys that a rectangle leaves one panel of first .. last-1, `keys` at a time. */
static void few_rect(const lao *local, const lao_forward_args *args, const lao_block *block, panels p, int64_t index,
                     const lao_rect *rect, int64_t first, int64_t last, int64_t keys, forward_work *w) {
    reach all, r;
    reach_of(block, p, index, rect, first, last, &all);
    const int64_t end = first + all.end;
    for (int64_t step = first + all.begin, next; step < end; step = next) {
        next = lao_min(step + keys, end);
        if (all.full)
            r.begin = 0, r.end = next - step, r.full = true;
        else
            reach_of(block, p, index, rect, step, next, &r);
        if (r.begin < r.end) few_heads(local, args, block, p, index, rect, &r, step, next, w);
    }
}

/* All kv heads of the task, side by side, a step of keys at a time: so their keys are read in the order of memory. */
static void forward_few(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w,
                        char *partial, lao_run *run) {
    const panels p = panels_of(block);
    const int64_t keys = few_step(local, block->together);
    memset(w->score, 0, FEW_SCORES * PANEL * sizeof(real)); /* lanes without a row stay finite */
    for (int64_t n = 0; n < block->together; n++) {
        const lao_block one = few_block(local, block, n);
        forward_work rows = few_work(local, block, w, n);
        few_open(local, args, &one, false, &rows);
    }
    for (int64_t first = block->j0; first < block->j1; first += FEW_TILE) {
        const int64_t last = lao_min(first + FEW_TILE, block->j1);
        int64_t begin, end;
        const size_t count = active_rects(block, first, last, w->active, &begin, &end);
        for (size_t id = 0; id < count; id++)
            for (int64_t index = 0; index < p.count; index++)
                few_rect(local, args, block, p, index, &block->rects[w->active[id]], first, last, keys, w);
        lao_tick(run, (double)(p.rows * block->together * (last - first)));
        if (lao_stopped(run)) return;
    }
    for (int64_t n = 0; n < block->together; n++) {
        const lao_block one = few_block(local, block, n);
        forward_work rows = few_work(local, block, w, n);
        few_close(local, args, &one, &rows,
                  partial ? partial + (size_t)(n * local->forward.chunks) * local->partial_stride : NULL);
    }
}
