/* body_backward.h - one backward task: a block of rows against all its keys, key tile by key tile, five products:
 *   S = K Q^T, dP = V dO^T (lanes are rows), P = BASE^((S - m) c) / sum, dS = P (dP - D), dQ += dS K (lanes are rows),
 *   dV += P^T dO, dK += dS^T Q (lanes are dims).
 * The queries' side is packed once per task. dQ belongs to the task; dK and dV are shared by the tasks of a kv head,
 * which add to a key tile one after the other in a fixed order (lao_line): no atomics on sums, the same bits always.
 * The scale is applied when gradients are written. */

typedef struct backward_work {
    real *qt, *dot;       /* Q and dO in panels, [panel][dim][lane] */
    real *qr, *dor;       /* Q and dO as rows, [dim / KV_DIMS][row][KV_DIMS] */
    real *dq;             /* [panel][dim][lane] */
    real *m, *inv, *D;    /* the rows' statistics and rowsum(dO * O) */
    real *weight;         /* sum over keys of P * dP so far: with a sink, in 16 bits */
    real *s, *dp, *slope; /* one panel's scores, dP and softcap derivative */
    real *p, *ds;         /* of all panels */
    real *one_p, *one_ds; /* of one panel, where they do not stay */
    real *split;
    real *row, *old, *ones;
    real *rows; /* LANES of them, on their way between tensors and panels */
    int64_t pitch;
    int64_t *low, *high; /* keys of the tile that a panel meets */
    int32_t *bad_rows;
    int64_t bad_row_count;
    uint32_t *active;
} backward_work;

INLINE int64_t kv_pad(int64_t dims) { return lao_round_up(dims, KV_DIMS); }

static size_t backward_carve(const lao *local, char *base, backward_work *w) {
    const lao_cut *cut = &local->backward;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim;
    const int64_t rows = lao_round_up(cut->rows, PANEL), keys = cut->k_tile, slack = keys + 2 * QK_ROWS;
    const int64_t wide = lao_round_up(lao_round_up(lao_max(d, dv), GROUP), KV_DIMS) + LANES;
    carver c = {base, 0};
    w->qt = carve(&c, rows * FORM_DIMS(d), sizeof(real));
    w->dot = carve(&c, rows * FORM_DIMS(dv), sizeof(real));
    w->qr = carve(&c, FORM_ROWS(rows, d), sizeof(real));
    w->dor = carve(&c, FORM_ROWS(rows, dv), sizeof(real));
    w->dq = carve(&c, rows * lao_round_up(d, GROUP), sizeof(real));
    w->m = carve(&c, rows, sizeof(real));
    w->inv = carve(&c, rows, sizeof(real));
    w->D = carve(&c, rows, sizeof(real));
    w->weight = carve(&c, rows, sizeof(real));
    w->s = carve(&c, slack * PANEL, sizeof(real));
    w->dp = carve(&c, slack * PANEL, sizeof(real));
    w->slope = carve(&c, local->shape.softcap > 0 ? slack * PANEL : 0, sizeof(real));
    w->p = carve(&c, FORM_WEIGHTS(rows, keys), sizeof(real));
    w->ds = carve(&c, FORM_WEIGHTS(rows, keys), sizeof(real));
    w->one_p = carve(&c, FORM_PANEL_WEIGHTS(keys), sizeof(real));
    w->one_ds = carve(&c, FORM_PANEL_WEIGHTS(keys), sizeof(real));
    w->split = carve(&c, FORM_SPLIT(keys), sizeof(real));
    w->row = carve(&c, wide, sizeof(real));
    w->pitch = wide;
    w->rows = carve(&c, LANES * wide, sizeof(real));
    w->old = carve(&c, wide, sizeof(real));
    w->ones = carve(&c, PANEL, sizeof(real));
    w->low = carve(&c, rows / PANEL, sizeof(int64_t));
    w->high = carve(&c, rows / PANEL, sizeof(int64_t));
    w->bad_rows = carve(&c, rows, sizeof(int32_t));
    w->active = carve(&c, cut->index.most, sizeof(uint32_t));
    return c.used;
}
static size_t backward_bytes(const lao *local) {
    backward_work w;
    return backward_carve(local, NULL, &w);
}
static size_t backward_partial(const lao *local) {
    return (size_t)(lao_round_up(local->backward.rows, PANEL) * lao_round_up(local->shape.head_dim, GROUP)) *
           sizeof(real);
}

/* d_k then d_v of one kv head: [key][dims padded], keys padded to whole tiles */
static size_t sums_bytes(const lao *local) {
    const int64_t keys = local->key_tiles * local->backward.k_tile;
    return (size_t)(keys * (kv_pad(local->shape.head_dim) + kv_pad(local->shape.value_dim))) * sizeof(real);
}
INLINE real *sums_of_keys(const lao *local, void *sums, int64_t tile) {
    return (real *)sums + tile * local->backward.k_tile * kv_pad(local->shape.head_dim);
}
INLINE real *sums_of_values(const lao *local, void *sums, int64_t tile) {
    const int64_t keys = local->key_tiles * local->backward.k_tile;
    return (real *)sums + keys * kv_pad(local->shape.head_dim) +
           tile * local->backward.k_tile * kv_pad(local->shape.value_dim);
}

/* Where row r of the block stands in [batch][q_heads][q_tokens]. */
INLINE int64_t row_at(const lao *local, const lao_block *block, int64_t r) {
    return (block->b * local->shape.q_heads + row_head(block, r)) * local->shape.q_tokens + row_query(block, r);
}

/* The row's (m, 1 / sum), from statistics or from lse; what rounding takes from m is given to 1 / sum. */
static void row_stats(const lao *local, const lao_backward_args *args, int64_t at, real *m, real *inverse) {
    const double c = score_factor(local);
    *m = 0, *inverse = 0;
    if (args->stats) {
        *m = ((const real *)args->stats)[2 * at], *inverse = ((const real *)args->stats)[2 * at + 1];
    } else if (((const real *)args->lse)[at] != -(real)INFINITY) { /* else the row saw nothing */
        const double lse = (double)((const real *)args->lse)[at] * UNIT;
        const real top = (real)(lse / c);
        if (top != (real)INFINITY)
            *m = top, *inverse = (real)base_exp((double)top * c - lse); /* else a sink took all */
    }
    if (*inverse == 0)
        *m = (real)INFINITY; /* weights of 0, whatever the scores: not 0 times a power beyond all bounds */
}

/* D of every row, from O and the panels of dO; leaves O where the rows of dO will be. */
static void row_dots(const lao *local, const lao_backward_args *args, const lao_block *block, backward_work *w) {
    const int64_t dv = local->shape.value_dim;
    pack_panels(block, &args->o, local->shape.dtype, dv, false, w->rows, w->pitch, w->dor);
    panel_dots(panels_of(block).rows, dv, w->dot, w->dor, w->D);
}

/* Statistics and D of every row; packs Q and dO. */
static void backward_rows(const lao *local, const lao_backward_args *args, const lao_block *block, backward_work *w) {
    const panels p = panels_of(block);
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim, all = p.count * PANEL;
    pack_panels(block, &args->q, dtype, d, local->shape.scale < 0, w->rows, w->pitch, w->qt);
    pack_panels(block, &args->d_o, dtype, dv, false, w->rows, w->pitch, w->dot);
    if (!args->dots) row_dots(local, args, block, w);
    memset(w->dq, 0, (size_t)(all * lao_round_up(d, GROUP)) * sizeof(real));
    w->bad_row_count = 0;
    for (int64_t r = 0; r < all; r++) {
        w->inv[r] = w->weight[r] = 0;
        if (r >= p.rows) {
            w->m[r] = (real)INFINITY; /* as a row without weight: its lane may have scores */
            if (args->dots) w->D[r] = 0;
            spread_row(NULL, d, all, r, w->qr);
            spread_row(NULL, dv, all, r, w->dor);
            continue;
        }
        const int64_t h = row_head(block, r), i = row_query(block, r);
        const int64_t at = row_at(local, block, r);
        row_stats(local, args, at, &w->m[r], &w->inv[r]);
        if (args->dots) w->D[r] = ((const real *)args->dots)[at];
        bool finite = row_load(dtype, tensor_row(&args->q, dtype, block->b, i, h), d, w->old);
        finite = row_load(dtype, tensor_row(&args->d_o, dtype, block->b, i, h), dv, w->row) && finite;
        if (!finite) w->bad_rows[w->bad_row_count++] = (int32_t)r;
        /* a row that is not finite goes in as 0 (see add_bad_rows) */
        spread_row(finite ? w->old : NULL, d, all, r, w->qr);
        spread_row(finite ? w->row : NULL, dv, all, r, w->dor);
    }
}

INLINE bool sink_from_keys(burst_dtype dtype) { return dtype == BURST_BF16 || dtype == BURST_F16; }
INLINE bool sink_wanted(const lao_backward_args *args) { return args->d_sink || args->sink_sums; }

/* d_sink of the block's heads: -sum over rows of e^(sink - lse) * D. Here D is taken anew, more exactly: in double from O,
 * once (with the first keys, or by backward_dots); or, since O in 16 bits is too coarse, as the sum over keys of P * dP. */
static void sink_gradients(const lao *local, const lao_backward_args *args, const lao_block *block, backward_work *w,
                           double *d_sink) {
    const double c = score_factor(local);
    const burst_dtype dtype = local->shape.dtype;
    const int64_t dv = local->shape.value_dim;
    for (int64_t h = 0; h < block->heads; h++) d_sink[h] = 0;
    for (int64_t r = 0; r < block->heads * block->ni; r++) {
        const int64_t h = row_head(block, r), i = row_query(block, r);
        const double sink = (double)((const real *)args->sink)[h] * UNIT;
        double dot = 0;
        if (w->inv[r] == 0) continue;
        if (sink_from_keys(dtype)) {
            dot = (double)w->weight[r];
        } else if (block->j0 == 0 && !args->dots) {
            row_load(dtype, tensor_row(&args->o, dtype, block->b, i, h), dv, w->old);
            row_load(dtype, tensor_row(&args->d_o, dtype, block->b, i, h), dv, w->row);
            for (int64_t x = 0; x < dv; x++) dot += (double)w->row[x] * (double)w->old[x];
        }
        d_sink[h - block->h0] -= base_exp(sink - (double)w->m[r] * c) * (double)w->inv[r] * dot;
    }
}

/* s, dp -> P, dS for n keys of one panel. With r: only where a lane sees the key (j counts from `origin` of the tile);
 * the rest of P and dS is left as it is. derivative NULL: no softcap. total NULL, or += sum over keys of P * dP. */
INLINE void probabilities_body(const int nv, int64_t n, const real *restrict s, const real *restrict dp, real c,
                               const real *restrict m, const real *restrict inv, const real *restrict D,
                               const real *restrict derivative, real *restrict p, real *restrict ds, const reach *r,
                               int64_t origin, real *restrict total) {
    const vf factor = v_set(c), least = v_set(-127 / c);
    vf ref[PANEL_VECTORS], weight[PANEL_VECTORS], shift[PANEL_VECTORS], sum[PANEL_VECTORS];
    for (int v = 0; v < nv; v++) {
        ref[v] = v_load(m + v * LANES);
        weight[v] = v_load(inv + v * LANES);
        shift[v] = v_load(D + v * LANES);
        sum[v] = total ? v_load(total + v * LANES) : v_set(0);
    }
    for (int64_t j = 0; j < n; j++) {
        for (int v = 0; v < nv; v++) {
            const int64_t at = (j * nv + v) * LANES;
            const vf up = v_load(dp + at);
            vf a = v_mul(v_power_of(v_sub(v_load(s + at), ref[v]), factor, least), weight[v]);
            vf b = v_mul(a, v_sub(up, shift[v]));
            if (derivative) b = v_mul(b, v_load(derivative + at));
            if (r) {
                const vm seen = v_between(v_load_int(r->first + v * LANES), v_set_int((int32_t)(origin + j)),
                                          v_load_int(r->last + v * LANES));
                if (total) sum[v] = v_select(seen, v_fma(a, up, sum[v]), sum[v]);
                a = v_select(seen, a, v_load(p + at));
                b = v_select(seen, b, v_load(ds + at));
            } else if (total) {
                sum[v] = v_fma(a, up, sum[v]);
            }
            v_store(p + at, a);
            v_store(ds + at, b);
        }
    }
    for (int v = 0; v < nv && total; v++) v_store(total + v * LANES, sum[v]);
}
KERNEL void probabilities_full(int64_t n, const real *s, const real *dp, real c, const real *m, const real *inv,
                               const real *D, real *p, real *ds) {
    probabilities_body(PANEL_VECTORS, n, s, dp, c, m, inv, D, NULL, p, ds, NULL, 0, NULL);
}
KERNEL void probabilities(int nv, int64_t n, const real *s, const real *dp, real c, const real *m, const real *inv,
                          const real *D, const real *derivative, real *p, real *ds, const reach *r, int64_t origin,
                          real *total) {
    probabilities_body(nv, n, s, dp, c, m, inv, D, derivative, p, ds, r, origin, total);
}

/* What the end of a tile and the next tile will want, asked for between the steps of a panel's scores: a few lines at a
 * time, because more than the core can wait for stall it (5 -> 4 % of the pass at d = 64). */
#define STEP_KEYS (2 * QK_ROWS)
typedef struct tile_ahead {
    ahead soon[3];
    int64_t lines[3];
} tile_ahead;
INLINE void look_ahead_tile(tile_ahead *a) {
    for (int n = 0; n < 3; n++) look_ahead(&a->soon[n], a->lines[n]);
}

static void scores_ahead(int nv, int64_t n, int64_t d, const real *q, const real *k, real *s, tile_ahead *later) {
    for (int64_t j = 0; j < n; j += STEP_KEYS) {
        look_ahead_tile(later);
        scores(nv, nv, lao_min(STEP_KEYS, n - j), d, q, k + j * FORM_DIMS(d), s + j * nv * LANES);
    }
}

/* One panel against the packed key tile: P and dS of keys from .. to-1 of the tile (whole scatter steps), dQ. */
static void backward_panel(const lao *local, const lao_backward_args *args, const lao_block *block, panels p,
                           int64_t index, size_t count, int64_t tile_first, int64_t tile_keys, int64_t from, int64_t to,
                           const packed_tile *packed, tile_ahead *later, backward_work *w) {
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim, tile = local->backward.k_tile;
    const int nv = panel_vectors(p, index);
    const int64_t width = nv * LANES, row = index * PANEL;
    const bool modified = local->shape.softcap > 0 || local->shape.alibi;
    real *prob = weights_of_panel(w->p, w->one_p, index, tile), *ds = weights_of_panel(w->ds, w->one_ds, index, tile);
    real *slope = local->shape.softcap > 0 ? w->slope : NULL;
    int64_t low = tile_keys, high = 0;
    reach r;
    size_t met = 0;
    for (size_t n = 0; n < count; n++) {
        reach_of(block, p, index, &block->rects[w->active[n]], tile_first, tile_first + tile_keys, &r);
        if (r.begin >= r.end) continue;
        low = lao_min(low, r.begin), high = lao_max(high, r.end);
        met++;
    }
    const bool plain = met == 1 && r.full && count == 1;
    memset(prob + from * width, 0, (size_t)(((plain ? low : to) - from) * width) * sizeof(real));
    memset(ds + from * width, 0, (size_t)(((plain ? low : to) - from) * width) * sizeof(real));
    if (plain) {
        memset(prob + high * width, 0, (size_t)((to - high) * width) * sizeof(real));
        memset(ds + high * width, 0, (size_t)((to - high) * width) * sizeof(real));
    }
    w->low[index] = low, w->high[index] = high;
    const int64_t keys = high - low;
    const real *q = w->qt + row * FORM_DIMS(d), *d_o = w->dot + row * FORM_DIMS(dv);
    products_state before;
    products_open(&before);
    if (met) {
        scores_ahead(nv, keys, d, q, packed->k + low * FORM_DIMS(d), w->s, later);
        scores_ahead(nv, keys, dv, d_o, packed->v + low * FORM_DIMS(dv), w->dp, later);
    }
    for (size_t n = 0; n < count; n++) {
        const lao_rect *rect = &block->rects[w->active[n]];
        if (count > 1) reach_of(block, p, index, rect, tile_first, tile_first + tile_keys, &r);
        if (r.begin >= r.end) continue;
        const int64_t skip = (r.begin - low) * width, at = r.begin * width, m = r.end - r.begin;
        if (modified) {
            slopes alibi;
            if (local->shape.alibi) slopes_of(local, block, p, index, rect, tile_first + r.begin, &alibi);
            if (met > 1) scores(nv, nv, m, d, q, packed->k + r.begin * FORM_DIMS(d), w->s + skip);
            modify(local, nv, m, w->s + skip, local->shape.alibi ? &alibi : NULL, slope ? slope + skip : NULL);
        }
        const real c = (real)score_factor(local);
        real *total = sink_wanted(args) && sink_from_keys(local->shape.dtype) ? w->weight + row : NULL;
        if (r.full && !slope && !total && nv == PANEL_VECTORS) {
            probabilities_full(m, w->s + skip, w->dp + skip, c, w->m + row, w->inv + row, w->D + row, prob + at,
                               ds + at);
        } else {
            probabilities(nv, m, w->s + skip, w->dp + skip, c, w->m + row, w->inv + row, w->D + row,
                          slope ? slope + skip : NULL, prob + at, ds + at, r.full ? NULL : &r, r.begin, total);
        }
    }
    weights_keep(nv, from, to, prob, w->p, index, tile);
    weights_keep(nv, from, to, ds, w->ds, index, tile);
    real *dq = w->dq + row * lao_round_up(d, GROUP);
    const bool wanted = args->d_q.data && met;
    if (wanted)
        gather(nv, nv, keys, lao_round_up(d, GROUP), ds + low * width, packed->groups, tile, low, dq, w->ones,
               w->split);
    products_close(&before);
    for (size_t n = 0; wanted && n < count && packed->bad[0]; n++) {
        reach_of(block, p, index, &block->rects[w->active[n]], tile_first, tile_first + tile_keys, &r);
        if (r.begin >= r.end) continue;
        add_bad_keys(local, block, &args->k, d, nv, &r, ds + r.begin * width, packed->bad + 1, packed->bad[0],
                     tile_first, w->row, dq);
    }
}

/* c[key][dims] += over all rows of p[key][row] * b[row][dim], keys from .. to-1 of the tile. */
static void scatter_tile(const backward_work *w, panels p, int64_t tile, int64_t from, int64_t to, int64_t dims,
                         const real *prob, const real *b, real *c) {
    const int64_t padded = kv_pad(dims), all = p.count * PANEL, whole = p.rows / PANEL;
    const int64_t next = FORM_ROWS(all, KV_DIMS); /* from one group of dims to the next */
    for (int64_t x = 0, groups; x < padded; x += groups * KV_DIMS) {
        const real *rows = b + x / KV_DIMS * next;
        groups = padded - x < KV_GROUPS * KV_DIMS ? 1 : KV_GROUPS;
        for (int64_t key = from; key < to; key += KV_ROWS) {
            int64_t first = 0, last = p.count; /* panels that meet these keys */
            while (first < last && (w->high[first] <= key || w->low[first] >= key + KV_ROWS)) first++;
            while (first < last && (w->high[last - 1] <= key || w->low[last - 1] >= key + KV_ROWS)) last--;
            if (first == last) continue;
            scatter((int)groups, first, last, whole, last > whole ? panel_vectors(p, whole) * LANES : 0, tile, key,
                    prob, rows, next, c + key * padded + x, padded);
        }
    }
}

/* Rows that are not finite reach only the keys they see: what spread_row left out, pair by pair. */
static void add_bad_rows(const lao *local, const lao_backward_args *args, const lao_block *block, size_t count,
                         int64_t tile_first, int64_t tile_keys, backward_work *w, real *dk, real *dv) {
    const panels p = panels_of(block);
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, e = local->shape.value_dim, tile = local->backward.k_tile;
    for (int64_t n = 0; n < w->bad_row_count; n++) {
        const int64_t r = w->bad_rows[n], i = row_query(block, r), h = row_head(block, r);
        const int64_t width = panel_vectors(p, r / PANEL) * LANES;
        row_load(dtype, tensor_row(&args->q, dtype, block->b, i, h), d, w->row);
        row_load(dtype, tensor_row(&args->d_o, dtype, block->b, i, h), e, w->old);
        for (size_t c = 0; c < count; c++) {
            const lao_rect *rect = &block->rects[w->active[c]];
            int64_t a, b;
            if (i < rect->i0 || i >= rect->i0 + rect->ni) continue;
            lao_interval(rect, i, &a, &b);
            a = lao_max(a - tile_first, 0), b = lao_min(b - tile_first, tile_keys);
            for (int64_t j = a; j < b; j++) {
                const real ds = weight_at(w->ds, r, width, j, tile), prob = weight_at(w->p, r, width, j, tile);
                for (int64_t x = 0; x < d; x++) dk[j * kv_pad(d) + x] += ds * w->row[x];
                for (int64_t x = 0; x < e; x++) dv[j * kv_pad(e) + x] += prob * w->old[x];
            }
        }
    }
}

static void backward_tile(const lao *local, const lao_backward_args *args, const lao_block *block, int64_t t,
                          const lao_line *line, backward_work *w, lao_run *run) {
    const panels p = panels_of(block);
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim, tile = local->backward.k_tile;
    const int64_t first = t * tile, last = lao_min(first + tile, local->shape.k_tokens);
    int64_t begin, end;
    const size_t count =
        active_rects(block, lao_max(first, block->j0), lao_min(last, block->j1), w->active, &begin, &end);
    const int64_t from = (begin - first) / KV_ROWS * KV_ROWS, to = lao_round_up(end - first, KV_ROWS);
    packed_tile packed;
    if (!packed_get(local, &local->backward, block, &args->k, &args->v, t, &line->shelf, w->row, &packed, run)) return;
    real *dk = sums_of_keys(local, line->sums, t), *dval = sums_of_values(local, line->sums, t);
    const int64_t k_row = kv_pad(d) * (int64_t)sizeof(real), v_row = kv_pad(dv) * (int64_t)sizeof(real);
    tile_ahead later = {{ahead_of(dk, k_row, k_row, tile), ahead_of(dval, v_row, v_row, tile),
                         ahead_packed(local, &line->shelf, t + 1, local->key_tiles)},
                        {0}};
    const int64_t steps = lao_max(2 * ((end - begin) / STEP_KEYS), 1);
    for (int n = 0; n < 3; n++) later.lines[n] = ahead_share(&later.soon[n], p.count * steps);
    for (int64_t index = 0; index < p.count; index++) {
        backward_panel(local, args, block, p, index, count, first, last - first, from, to, &packed, &later, w);
        lao_tick(run, (double)(lao_max(w->high[index] - w->low[index], 0) * panel_rows(p, index)));
        if (lao_stopped(run)) return;
    }
    if (!args->d_k.data && !args->d_v.data) return;
    if (!lao_await(&line->passed[t], line->turn[t], run)) return;
    if (line->turn[t] == 0) {
        memset(dk, 0, (size_t)(tile * kv_pad(d)) * sizeof(real));
        memset(dval, 0, (size_t)(tile * kv_pad(dv)) * sizeof(real));
    }
    products_state before;
    products_open(&before);
    if (args->d_v.data) scatter_tile(w, p, tile, from, to, dv, w->p, w->dor, dval);
    if (args->d_k.data) scatter_tile(w, p, tile, from, to, d, w->ds, w->qr, dk);
    products_close(&before);
    if (w->bad_row_count) add_bad_rows(local, args, block, count, first, last - first, w, dk, dval);
    __atomic_store_n(&line->passed[t], line->turn[t] + 1, __ATOMIC_RELEASE);
}

/* What gradients are written as. */
INLINE burst_dtype gradient_dtype(const lao *local, const lao_backward_args *args) {
    if (!args->wide || local->shape.dtype == BURST_F64) return local->shape.dtype;
    return BURST_F32;
}

static void backward_finish(const lao *local, const lao_backward_args *args, const lao_block *block, backward_work *w) {
    const panels p = panels_of(block);
    const burst_dtype dtype = gradient_dtype(local, args);
    const int64_t d = local->shape.head_dim, padded = lao_round_up(d, GROUP);
    const real scale = (real)local->shape.scale;
    for (int64_t r = 0; r < p.rows; r++) {
        const int64_t index = r / PANEL, width = panel_vectors(p, index) * LANES;
        real *row = w->rows + r % LANES * w->pitch;
        if (r % LANES == 0) lanes_to_rows(w->dq + index * PANEL * padded + r % PANEL, width, padded, w->rows, w->pitch);
        for (int64_t x = 0; x < d; x++) row[x] *= scale;
        row_store(dtype, row, d, tensor_row(&args->d_q, dtype, block->b, row_query(block, r), row_head(block, r)),
                  args->accumulate_q, w->old);
    }
}

static void backward_task(const lao *local, const lao_backward_args *args, const lao_block *block, void *work,
                          void *partial, const lao_line *line, double *d_sink, lao_run *run) {
    backward_work w;
    backward_carve(local, work, &w);
    if (partial) w.dq = partial;
    for (int lane = 0; lane < PANEL; lane++) w.ones[lane] = 1;
    backward_rows(local, args, block, &w);
    const int64_t tile = local->backward.k_tile;
    for (int64_t t = block->j0 / tile; t * tile < block->j1; t++) {
        if (line->turn[t] < 0) continue;
        backward_tile(local, args, block, t, line, &w, run);
        if (lao_stopped(run)) return;
    }
    if (d_sink) sink_gradients(local, args, block, &w, d_sink);
    if (!partial && args->d_q.data) backward_finish(local, args, block, &w);
}

/* Sums the chunks' dQ in their order. */
static void backward_merge(const lao *local, const lao_backward_args *args, const lao_block *block, void *work,
                           const void *partials, size_t stride) {
    backward_work w;
    backward_carve(local, work, &w);
    const int64_t n = panels_of(block).count * PANEL * lao_round_up(local->shape.head_dim, GROUP);
    for (int64_t chunk = 0; chunk < local->backward.chunks; chunk++) {
        const real *part = (const real *)(const void *)((const char *)partials + (size_t)chunk * stride);
        for (int64_t x = 0; x < n; x++) w.dq[x] = chunk ? w.dq[x] + part[x] : part[x];
    }
    backward_finish(local, args, block, &w);
}

static void write_keys(const lao *local, const lao_backward_args *args, const lao_tensor *out, int64_t dims,
                       double scale, int64_t b, int64_t g, int64_t tile, bool touched, const real *sums,
                       backward_work *w) {
    const burst_dtype dtype = gradient_dtype(local, args);
    const int64_t first = tile * local->backward.k_tile;
    const int64_t last = lao_min(first + local->backward.k_tile, local->shape.k_tokens);
    if (!out->data || (!touched && args->accumulate_kv)) return;
    for (int64_t j = first; j < last; j++) {
        const real *from = sums + (j - first) * kv_pad(dims);
        for (int64_t x = 0; x < dims; x++) w->row[x] = touched ? from[x] * (real)scale : 0;
        row_store(dtype, w->row, dims, tensor_row(out, dtype, b, j, g), args->accumulate_kv, w->old);
    }
}
static void backward_keys(const lao *local, const lao_backward_args *args, int64_t b, int64_t g, int64_t tile,
                          bool touched, void *work, const void *sums) {
    backward_work w;
    backward_carve(local, work, &w);
    void *all = (void *)(uintptr_t)sums;
    write_keys(local, args, &args->d_k, local->shape.head_dim, local->shape.scale, b, g, tile, touched,
               sums_of_keys(local, all, tile), &w);
    write_keys(local, args, &args->d_v, local->shape.value_dim, 1, b, g, tile, touched,
               sums_of_values(local, all, tile), &w);
}

/* ---- between rounds ---------------------------------------------------------------------------------------------- */

static void backward_dots(const lao *local, const lao_backward_args *args, const lao_block *block, void *work, void *ms,
                          void *dots, double *d_sink) {
    const int64_t dv = local->shape.value_dim;
    backward_work w;
    backward_carve(local, work, &w);
    pack_panels(block, &args->d_o, local->shape.dtype, dv, false, w.rows, w.pitch, w.dot);
    row_dots(local, args, block, &w);
    for (int64_t r = 0; r < block->heads * block->ni; r++) {
        const int64_t at = row_at(local, block, r);
        real *pair = (real *)ms + 2 * at;
        row_stats(local, args, at, &w.m[r], &w.inv[r]);
        pair[0] = w.m[r], pair[1] = w.inv[r];
        ((real *)dots)[at] = w.D[r];
        w.weight[r] = 0;
    }
    if (d_sink) sink_gradients(local, args, block, &w, d_sink);
}

/* Rows first .. last-1 of sums (+ other) -> a tensor. */
static void rows_store(const lao *local, const lao_sums *s, const lao_tensor *out, bool accumulate, int64_t first,
                       int64_t last, void *work) {
    backward_work w;
    backward_carve(local, work, &w);
    const burst_dtype dtype = local->shape.dtype;
    for (int64_t at = first; at < last; at++) {
        const real *from = (const real *)s->sums + at * s->dim, *more = (const real *)s->other + at * s->dim;
        for (int64_t x = 0; x < s->dim; x++) w.row[x] = s->other ? from[x] + more[x] : from[x];
        char *to = tensor_row(out, dtype, at / (s->heads * s->tokens), at % s->tokens, at / s->tokens % s->heads);
        row_store(dtype, w.row, s->dim, to, accumulate, w.old);
    }
}

static void rows_add(burst_dtype dtype, int64_t count, void *into, const void *from) {
    enum { AT_ONCE = 256 };
    real add[AT_ONCE], *to = into;
    for (int64_t at = 0; at < count; at += AT_ONCE) {
        const int64_t n = lao_min(AT_ONCE, count - at);
        row_load(dtype, (const char *)from + (size_t)at * dtype_bytes(dtype), n, add);
        for (int64_t x = 0; x < n; x++) to[at + x] += add[x];
    }
}
