/* body_few.h - forward for a few rows (decoding): lanes are dims, keys and values are read where they lie, once, and only
 * the keys a row sees are touched. Bound by memory: the keys of the next step are asked for meanwhile, a share by every
 * group of rows. Rows that see the same keys go together, four or two: a loaded key then serves them all. */

#define FEW_KEYS 64 /* keys whose scores are taken together: 32 KiB of K and as much of V at d = 128 in f32 */
#define FEW_STRIDE (FEW_KEYS + LANES)

/* n rows of a tensor, `stride` bytes apart; soon: rows that are wanted next (left 0: none) */
typedef struct few_rows {
    const char *at;
    int64_t n, stride, dims;
    ahead soon;
    int64_t rate; /* of soon, per 4 keys */
} few_rows;

/* score[row][j] = q[row] . k[j]; q rows are `wide` apart, padded with 0 to whole vectors. Eight sums at a time: 4 keys for
 * one or two rows, 2 keys for four. Scores behind the last key are written too: there is room, few_fold overwrites them. */
INLINE void few_scores_body(const burst_dtype dtype, const int rows, few_rows k, const real *q, int64_t wide,
                            real *score) {
    const int keys = rows == 4 ? 2 : 4;
    const int64_t size = (int64_t)dtype_bytes(dtype), whole = k.dims / LANES * LANES;
    for (int64_t j = 0; j < k.n; j += keys) {
        const char *key[4];
        vf sum[4][4];
        if (j % 4 == 0) look_ahead(&k.soon, k.rate);
        for (int i = 0; i < keys; i++) {
            key[i] = k.at + lao_min(j + i, k.n - 1) * k.stride;
            for (int r = 0; r < rows; r++) sum[r][i] = v_set(0);
        }
        for (int64_t x = 0; x < whole; x += LANES) {
            for (int i = 0; i < keys; i++) {
                const vf a = load_as(dtype, key[i] + x * size);
                for (int r = 0; r < rows; r++) sum[r][i] = v_fma(v_load(q + r * wide + x), a, sum[r][i]);
            }
        }
        if (whole < k.dims) {
            for (int i = 0; i < keys; i++) {
                const vf a = load_tail(dtype, key[i] + whole * size, k.dims - whole);
                for (int r = 0; r < rows; r++) sum[r][i] = v_fma(v_load(q + r * wide + whole), a, sum[r][i]);
            }
        }
        if (rows == 4) {
            for (int i = 0; i < keys; i++) {
                const vf column[4] = {sum[0][i], sum[1][i], sum[2][i], sum[3][i]};
                real out[4];
                v_sums(column, out);
                for (int r = 0; r < 4; r++) score[r * FEW_STRIDE + j + i] = out[r];
            }
        } else {
            for (int r = 0; r < rows; r++) v_sums(sum[r], score + r * FEW_STRIDE + j);
        }
    }
}

/* o[row][x] = o * keep[row] + sum over n keys of p[row][j] * v[j][x]; o rows are `wide` apart, padded to whole vectors */
INLINE void few_gather_body(const burst_dtype dtype, const int rows, few_rows v, const real *p, const real *keep,
                            real *o, int64_t wide) {
    const int vectors = rows == 4 ? 2 : 4;
    const int64_t size = (int64_t)dtype_bytes(dtype);
    int64_t x = 0;
    for (; x + vectors * LANES <= v.dims; x += vectors * LANES) {
        vf sum[4][4];
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < vectors; i++) sum[r][i] = v_mul(v_load(o + r * wide + x + i * LANES), v_set(keep[r]));
        for (int64_t j = 0; j < v.n; j++) {
            const char *at = v.at + j * v.stride + x * size;
            vf a[4];
            if (j % 4 == 0) look_ahead(&v.soon, v.rate);
            for (int i = 0; i < vectors; i++) a[i] = load_as(dtype, at + i * LANES * size);
            for (int r = 0; r < rows; r++) {
                const vf weight = v_set(p[r * FEW_STRIDE + j]);
                for (int i = 0; i < vectors; i++) sum[r][i] = v_fma(weight, a[i], sum[r][i]);
            }
        }
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < vectors; i++) v_store(o + r * wide + x + i * LANES, sum[r][i]);
    }
    for (; x < v.dims; x += LANES) {
        const int64_t rest = lao_min(v.dims - x, LANES);
        for (int r = 0; r < rows; r++) {
            vf sum = v_mul(v_load(o + r * wide + x), v_set(keep[r]));
            for (int64_t j = 0; j < v.n; j++) {
                const char *at = v.at + j * v.stride + x * size;
                const vf a = rest == LANES ? load_as(dtype, at) : load_tail(dtype, at, rest);
                sum = v_fma(v_set(p[r * FEW_STRIDE + j]), a, sum);
            }
            v_store(o + r * wide + x, sum);
        }
    }
}

/* one loop for each type and number of rows, so that neither is looked at inside */
INLINE void few_scores_of(const burst_dtype dtype, int rows, few_rows k, const real *q, int64_t wide, real *score) {
    if (rows == 4)
        few_scores_body(dtype, 4, k, q, wide, score);
    else if (rows == 2)
        few_scores_body(dtype, 2, k, q, wide, score);
    else
        few_scores_body(dtype, 1, k, q, wide, score);
}
INLINE void few_gather_of(const burst_dtype dtype, int rows, few_rows v, const real *p, const real *keep, real *o,
                          int64_t wide) {
    if (rows == 4)
        few_gather_body(dtype, 4, v, p, keep, o, wide);
    else if (rows == 2)
        few_gather_body(dtype, 2, v, p, keep, o, wide);
    else
        few_gather_body(dtype, 1, v, p, keep, o, wide);
}
KERNEL void few_scores(burst_dtype dtype, int rows, few_rows k, const real *q, int64_t wide, real *score) {
#ifdef SIMD_F64
    few_scores_of(dtype, rows, k, q, wide, score);
#else
    if (dtype == BURST_F32)
        few_scores_of(BURST_F32, rows, k, q, wide, score);
    else if (dtype == BURST_BF16)
        few_scores_of(BURST_BF16, rows, k, q, wide, score);
    else
        few_scores_of(BURST_F16, rows, k, q, wide, score);
#endif
}
KERNEL void few_gather(burst_dtype dtype, int rows, few_rows v, const real *p, const real *keep, real *o,
                       int64_t wide) {
#ifdef SIMD_F64
    few_gather_of(dtype, rows, v, p, keep, o, wide);
#else
    if (dtype == BURST_F32)
        few_gather_of(BURST_F32, rows, v, p, keep, o, wide);
    else if (dtype == BURST_BF16)
        few_gather_of(BURST_BF16, rows, v, p, keep, o, wide);
    else
        few_gather_of(BURST_F16, rows, v, p, keep, o, wide);
#endif
}

/* n scores -> probabilities; lanes are keys. Returns what older sums are worth; m and sum are updated. */
static real few_fold(const lao *local, int64_t n, real *s, const slopes *alibi, real *m, real *sum) {
    const vf c = v_set((real)score_factor(local)), least = v_set(-127 / (real)score_factor(local));
    if (local->shape.softcap > 0 || alibi)
        for (int64_t j = 0; j < n; j += LANES) modify_keys(local, s + j, j, alibi);
    for (int64_t j = n; j < lao_round_up(n, LANES); j++) s[j] = -(real)INFINITY;
    vf top = v_set(-(real)INFINITY);
    for (int64_t j = 0; j < n; j += LANES) top = v_max(top, v_load(s + j));
    real lanes[LANES], now = *m;
    v_store(lanes, top);
    for (int l = 0; l < LANES; l++)
        if (!(lanes[l] <= now)) now = lanes[l];
    const vf ref = v_set(now > -(real)INFINITY ? now : 0);
    v_store(lanes, v_power_of(v_sub(v_set(*m), ref), c, least));
    const real keep = lanes[0];
    vf total = v_set(0);
    for (int64_t j = 0; j < n; j += LANES) {
        const vf p = v_power_of(v_sub(v_load(s + j), ref), c, least);
        v_store(s + j, p);
        total = v_add(total, p);
    }
    *m = now;
    v_store(lanes, total);
    real add = 0;
    for (int l = 0; l < LANES; l++) add += lanes[l];
    *sum = *sum * keep + add;
    return keep;
}

/* One, two or four rows, from row r of the block, through keys first .. last-1 of one rectangle (FEW_KEYS at most). They look
 * ahead for their share of the step that begins at key `next`. */
static void few_step(const lao *local, const lao_forward_args *args, const lao_block *block, const lao_rect *rect,
                     int64_t first, int64_t last, int64_t r, int rows, int64_t next, forward_work *w) {
    const burst_dtype dtype = local->shape.dtype;
    const int64_t size = (int64_t)dtype_bytes(dtype), d = local->shape.head_dim, dv = local->shape.value_dim;
    const int64_t wide_q = lao_round_up(d, LANES), wide_o = lao_round_up(dv, LANES);
    const int64_t all = block->heads * block->ni, share = (FEW_KEYS * rows + all - 1) / all;
    const int64_t from = next + FEW_KEYS * r / all, to = lao_min(from + share, block->j1), rate = (share + 15) / 16;
    few_rows k = {tensor_row(&args->k, dtype, block->b, first, block->g), last - first, args->k.token * size, d,
                  ahead_keys(block, &args->k, dtype, d, from, to),        rate};
    const few_rows v = {tensor_row(&args->v, dtype, block->b, first, block->g),
                        last - first,
                        args->v.token * size,
                        dv,
                        ahead_keys(block, rows == all ? &args->k : &args->v, dtype, rows == all ? d : dv, from, to),
                        rate};
    if (rows == all)
        k.soon = ahead_keys(block, &args->v, dtype, dv, first, last); /* nearer is better for so little work */
    real keep[4];
    few_scores(dtype, rows, k, w->few_q + r * wide_q, wide_q, w->score);
    for (int n = 0; n < rows; n++) {
        slopes alibi;
        if (local->shape.alibi) {
            const lao_block one = {.b = block->b,
                                   .g = block->g,
                                   .h0 = row_head(block, r + n),
                                   .heads = 1,
                                   .i0 = row_query(block, r + n),
                                   .ni = 1};
            slopes_of(local, &one, panels_of(&one), 0, rect, first, &alibi);
        }
        keep[n] = few_fold(local, last - first, w->score + n * FEW_STRIDE, local->shape.alibi ? &alibi : NULL,
                           w->m + r + n, w->sum + r + n);
    }
    few_gather(dtype, rows, v, w->score, keep, w->few_o + r * wide_o, wide_o);
}

/* Keys of the step that row r sees through the rectangle. */
INLINE void few_interval(const lao_block *block, const lao_rect *rect, int64_t r, int64_t step, int64_t *first,
                         int64_t *last) {
    const int64_t i = row_query(block, r);
    *first = *last = 0;
    if (i < rect->i0 || i >= rect->i0 + rect->ni) return;
    lao_interval(rect, i, first, last);
    *first = lao_max(*first, step), *last = lao_min(*last, lao_min(step + FEW_KEYS, block->j1));
}

static void forward_few(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w,
                        lao_run *run) {
    const panels p = panels_of(block);
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim;
    const int64_t wide_q = lao_round_up(d, LANES), wide_o = lao_round_up(dv, LANES);
    memset(w->few_q, 0, (size_t)(p.rows * wide_q) * sizeof(real));
    memset(w->few_o, 0, (size_t)(p.rows * wide_o) * sizeof(real));
    for (int64_t r = 0; r < p.rows; r++) {
        real *q = w->few_q + r * wide_q;
        row_load(dtype, tensor_row(&args->q, dtype, block->b, row_query(block, r), row_head(block, r)), d, q);
        for (int64_t x = 0; x < d && local->shape.scale < 0; x++) q[x] = -q[x];
    }
    for (int64_t step = block->j0; step < block->j1; step += FEW_KEYS) {
        for (size_t n = 0; n < block->count; n++) {
            const lao_rect *rect = &block->rects[block->ids[n]];
            if (rect->j0 >= step + FEW_KEYS || rect->j0 + rect->nj <= step) continue;
            for (int64_t r = 0, rows = 1; r < p.rows; r += rows) {
                int64_t a, b, a1, b1;
                few_interval(block, rect, r, step, &a, &b);
                for (rows = 1; rows < 4 && r + rows < p.rows; rows++) {
                    few_interval(block, rect, r + rows, step, &a1, &b1);
                    if (a1 != a || b1 != b) break;
                }
                if (rows == 3) rows = 2;
                if (a < b) few_step(local, args, block, rect, a, b, r, (int)rows, step + FEW_KEYS, w);
            }
        }
        lao_tick(run, (double)(p.rows * FEW_KEYS));
        if (lao_stopped(run)) return;
    }
    for (int64_t r = 0; r < p.rows; r++) {
        const int64_t index = r / PANEL, width = panel_vectors(p, index) * LANES;
        real *o = w->o + index * PANEL * lao_round_up(dv, GROUP) + r % PANEL;
        for (int64_t x = 0; x < dv; x++) o[x * width] = w->few_o[r * wide_o + x];
    }
}
