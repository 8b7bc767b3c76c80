/* body_forward.h - one forward task: a block of rows against a range of keys, key tile by key tile, folded into a running
 * (accumulator, maximum, sum) per row, LAO of the paper. The score tile lives in L1, the key tile in L2.
 * o is kept transposed, o[panel][dim][lane]. */

/* A step of body_few.h: about 12 KiB of K of one head, or 24 keys. Shorter steps open and close o more often (12 keys: 10 % slower
 * at d = 128), longer ones leave L1 (48 keys in f32: up to 10 % slower); measured on Zen 3. */
#define FEW_BYTES 12288
#define FEW_LEAST 24
#define FEW_MOST 96
#define FEW_SCORES (FEW_MOST + 4)
/* One row a kv head, reading in the order of memory: K and V of one head take turns every 4 KiB (8 and 32 KiB: 10 and 15 % slower on
 * Zen 3), with 16 lanes every 8 KiB (bf16 17 -> 19 GB/s on Zen 4), of heads that go together every 32 KiB: a fold of all heads
 * at one key costs as much as one of one head at LANES keys. */
#define ONE_BYTES (LANES < 16 ? 4096 : 8192)
#define ONE_WIDE 32768
#define ONE_KEYS 96
#define FEW_TILE 384 /* keys for which the mask is looked at once, with one row too */

typedef struct forward_work {
    real *q, *o, *m, *sum; /* the block's rows, in panels */
    real *score, *split, *row, *old, *top, *keep;
    real *rows; /* LANES of them, on their way between tensors and panels */
    int64_t pitch;
    real *few_q, *few_o, *few_m, *few_sum; /* of all kv heads of a task, for body_few.h; Q and o in rows */
    uint32_t *active;
} forward_work;

static size_t forward_carve(const lao *local, char *base, forward_work *w) {
    const lao_cut *cut = &local->forward;
    const int64_t d = local->shape.head_dim, dv = lao_round_up(local->shape.value_dim, GROUP);
    const int64_t rows = lao_round_up(cut->rows, PANEL), wide = lao_round_up(lao_max(d, dv), LANES) + LANES;
    /* a stretch of keys may begin anywhere, and its scores run on to a whole step */
    const int64_t keys = lao_max(cut->k_tile + 2 * QK_ROWS, lao_max(FEW_SCORES, ONE_KEYS));
    carver c = {base, 0};
    w->q = carve(&c, rows * FORM_DIMS(d), sizeof(real));
    w->o = carve(&c, rows * dv, sizeof(real));
    w->m = carve(&c, rows, sizeof(real));
    w->sum = carve(&c, rows, sizeof(real));
    w->score = carve(&c, keys * PANEL, sizeof(real));
    w->split = carve(&c, FORM_SPLIT(keys), sizeof(real));
    w->active = carve(&c, cut->index.most, sizeof(uint32_t));
    const int64_t few = cut->rows <= LAO_FEW_ROWS ? rows * cut->together : 0;
    w->few_m = carve(&c, few, sizeof(real));
    w->few_sum = carve(&c, few, sizeof(real));
    w->few_q = carve(&c, few * lao_round_up(d, LANES), sizeof(real));
    w->few_o = carve(&c, few * lao_round_up(dv, LANES), sizeof(real));
    w->row = carve(&c, wide, sizeof(real));
    w->pitch = wide;
    w->rows = carve(&c, LANES * wide, sizeof(real));
    w->old = carve(&c, wide, sizeof(real));
    w->top = carve(&c, PANEL, sizeof(real));
    w->keep = carve(&c, PANEL, sizeof(real));
    return c.used;
}
static size_t forward_bytes(const lao *local) {
    forward_work w;
    return forward_carve(local, NULL, &w);
}

/* What a chunk of keys leaves for the merge. */
typedef struct forward_state {
    real *o, *m, *sum;
} forward_state;
static size_t state_carve(const lao *local, char *base, forward_state *s) {
    const int64_t rows = lao_round_up(local->forward.rows, PANEL);
    carver c = {base, 0};
    s->o = carve(&c, rows * lao_round_up(local->shape.value_dim, GROUP), sizeof(real));
    s->m = carve(&c, rows, sizeof(real));
    s->sum = carve(&c, rows, sizeof(real));
    return c.used;
}
/* Rows that have seen nothing. */
static void state_clear(forward_work *w, int64_t rows, int64_t dims) {
    memset(w->o, 0, (size_t)(rows * dims) * sizeof(real));
    for (int64_t r = 0; r < rows; r++) w->m[r] = -(real)INFINITY, w->sum[r] = 0;
}
static size_t forward_partial(const lao *local) {
    forward_state s;
    return state_carve(local, NULL, &s);
}

#define BEYOND 1100 /* 2^-1100 is 0, in double too */

/* c: what makes a raw score an exponent. */
static double score_factor(const lao *local) {
    if (local->shape.softcap > 0 || local->shape.alibi) return UNIT; /* modify() has done the rest */
    return fabs(local->shape.scale) * UNIT;
}

/* o += p * v for keys that are not finite, only in the rows that see them (see pack_groups). */
KERNEL void add_bad_keys(const lao *local, const lao_block *block, const lao_tensor *t, int64_t dims, int nv,
                         const reach *r, const real *p, const int32_t *bad, int64_t bad_count, int64_t tile_first,
                         real *row, real *o) {
    for (int64_t n = 0; n < bad_count; n++) {
        const int32_t j = bad[n];
        if (j < r->begin || j >= r->end) continue;
        row_load(local->shape.dtype, tensor_row(t, local->shape.dtype, block->b, tile_first + j, block->g), dims, row);
        for (int lane = 0; lane < nv * LANES; lane++) {
            if (!r->full && (j < r->first[lane] || j >= r->last[lane])) continue;
            const real weight = p[(j - r->begin) * nv * LANES + lane];
            for (int64_t x = 0; x < dims; x++) o[x * nv * LANES + lane] += weight * row[x];
        }
    }
}

/* A panel's raw scores of keys r->begin .. r->end-1 of the tile -> probabilities, folded into its maxima and sums. */
static void panel_fold(const lao *local, const lao_block *block, panels p, int64_t index, const lao_rect *rect,
                       const reach *r, int64_t tile_first, forward_work *w) {
    const int64_t n = r->end - r->begin;
    const int nv = panel_vectors(p, index);
    if (local->shape.softcap > 0 || local->shape.alibi) {
        slopes alibi;
        if (local->shape.alibi) slopes_of(local, block, p, index, rect, tile_first + r->begin, &alibi);
        modify(local, nv, n, w->score, local->shape.alibi ? &alibi : NULL, NULL);
    }
    hide_edges(nv, w->score, r);
    top_of(nv, n, w->score, w->top);
    fold(nv, n, w->score, (real)score_factor(local), w->top, w->m + index * PANEL, w->sum + index * PANEL, w->keep);
}

/* One panel through one rectangle of the packed key tile. */
static void forward_panel(const lao *local, const lao_forward_args *args, const lao_block *block, panels p,
                          int64_t index, const lao_rect *rect, const reach *r, int64_t tile_first,
                          const packed_tile *tile, forward_work *w) {
    const int64_t d = local->shape.head_dim, dv = lao_round_up(local->shape.value_dim, GROUP);
    const int nv = panel_vectors(p, index);
    const real *q = w->q + index * PANEL * FORM_DIMS(d);
    real *o = w->o + index * PANEL * dv;
    stretch all[2 * PANEL_VECTORS];
    const int count = stretches_of(r, p, index, all);
    products_state before;
    products_open(&before);
    for (const stretch *s = all; s < all + count; s++) {
        scores(s->count, nv, s->end - s->begin, d, q + s->first * LANES, tile->k + s->begin * FORM_DIMS(d),
               w->score + ((s->begin - r->begin) * nv + s->first) * LANES);
    }
    panel_fold(local, block, p, index, rect, r, tile_first, w);
    for (const stretch *s = all; s < all + count; s++) {
        const int64_t lane = s->first * LANES;
        gather(s->count, nv, s->end - s->begin, dv, w->score + (s->begin - r->begin) * nv * LANES + lane, tile->groups,
               local->forward.k_tile, s->begin, o + lane, w->keep + lane, w->split);
        for (int v = 0; v < s->count && s + 1 < all + count; v++) v_store(w->keep + lane + v * LANES, v_set(1));
    }
    products_close(&before);
    if (tile->bad[0]) {
        add_bad_keys(local, block, &args->v, local->shape.value_dim, nv, r, w->score, tile->bad + 1, tile->bad[0],
                     tile_first, w->row, o);
    }
}

/* Writes o, lse and statistics of one row from its sums. The sink joins the row's sum here, once; a maximum that the sink
 * raises is rounded first and everything then taken relative to it, so that backward sees the same numbers. */
static void finish_row(const lao *local, const lao_forward_args *args, int64_t b, int64_t h, int64_t i, double m,
                       double sum, real *row, real *old) {
    const int64_t at = (b * local->shape.q_heads + h) * local->shape.q_tokens + i;
    const burst_dtype dtype = local->shape.dtype;
    const double c = score_factor(local);
    double factor = 1, none = -INFINITY; /* none: lse of a row without weight */
    if (local->shape.sink) {
        const double sink = (double)((const real *)args->sink)[h] * UNIT;
        if (sum == 0 && m == -INFINITY) { /* no key: the sink alone, whatever it is */
            none = sink;
        } else if (isnan(sink)) {
            sum = sink;
        } else if (sink - m * c > BEYOND && !isnan(sum)) { /* no score counts beside it */
            factor = 0, sum = 0, none = sink;
        } else {
            const double top = sink > m * c ? (double)(real)(sink / c) : m;
            factor = base_exp((m - top) * c);
            sum = sum * factor + base_exp(sink - top * c);
            m = top;
        }
    }
    const double inverse = sum == 0 ? 0 : 1 / sum; /* a row that saw nothing; NaN stays */
    const real weight = (real)(factor * inverse);
    for (int64_t x = 0; x < local->shape.value_dim; x++) row[x] *= weight;
    row_store(dtype, row, local->shape.value_dim, tensor_row(&args->o, dtype, b, i, h), false, old);
    if (args->lse) ((real *)args->lse)[at] = (real)((sum == 0 ? none : m * c + base_log(sum)) / UNIT);
    if (args->stats) {
        real *stats = (real *)args->stats + 2 * at;
        stats[0] = (real)(sum == 0 ? 0 : m);
        stats[1] = (real)inverse;
    }
}

/* One row of a running result. */
typedef struct state_row {
    real *acc, *ms;
} state_row;
INLINE state_row state_row_at(const lao *local, const lao_state *state, int64_t at) {
    return (state_row){(real *)state->acc + at * local->shape.value_dim, (real *)state->ms + 2 * at};
}

/* into = into (+) (acc, m, sum): safe for -inf on either side and both, for gaps of any size, and NaN stays NaN. */
KERNEL void fold_row(const lao *local, state_row into, const real *acc, real m, real sum) {
    const real old = into.ms[0], top = m > old ? m : old;
    const double c = score_factor(local);
    /* -inf on both sides: nothing was seen, or nothing but NaN, which has no maximum and must not get lost */
    const real keep = old == top ? 1 : (real)base_exp((double)(old - top) * c);
    const real add = m == top ? 1 : (real)base_exp((double)(m - top) * c);
    into.ms[0] = top;
    into.ms[1] = into.ms[1] * keep + sum * add;
    for (int64_t x = 0; x < local->shape.value_dim; x++) into.acc[x] = into.acc[x] * keep + acc[x] * add;
}

static void store_row(const lao *local, const lao_forward_args *args, int64_t b, int64_t h, int64_t i, real m, real sum,
                      const real *acc) {
    const state_row row = state_row_at(local, &args->state, (b * local->shape.q_heads + h) * local->shape.q_tokens + i);
    if (args->fresh) {
        row.ms[0] = m, row.ms[1] = sum;
        memcpy(row.acc, acc, (size_t)local->shape.value_dim * sizeof(real));
    } else {
        fold_row(local, row, acc, m, sum);
    }
}

/* The rows of a block: written, or folded into the running result. */
static void forward_finish(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w) {
    const panels p = panels_of(block);
    const int64_t dv = lao_round_up(local->shape.value_dim, GROUP);
    for (int64_t r = 0; r < p.rows; r++) {
        const int64_t index = r / PANEL, lane = r % PANEL, width = panel_vectors(p, index) * LANES;
        const int64_t h = row_head(block, r), i = row_query(block, r);
        real *row = w->rows + r % LANES * w->pitch;
        if (r % LANES == 0) lanes_to_rows(w->o + index * PANEL * dv + lane, width, dv, w->rows, w->pitch);
        if (args->state.acc)
            store_row(local, args, block->b, h, i, w->m[r], w->sum[r], row);
        else
            finish_row(local, args, block->b, h, i, (double)w->m[r], (double)w->sum[r], row, w->old);
    }
}

/* ---- between rounds ---------------------------------------------------------------------------------------------- */

static void state_fold(const lao *local, const lao_state *into, const lao_state *from, int64_t first, int64_t last) {
    for (int64_t at = first; at < last; at++) {
        const state_row row = state_row_at(local, from, at);
        fold_row(local, state_row_at(local, into, at), row.acc, row.ms[0], row.ms[1]);
    }
}

static void state_finish(const lao *local, const lao_forward_args *args, const lao_state *state, const lao_state *other,
                         int64_t first, int64_t last, void *work) {
    const lao_shape *s = &local->shape;
    forward_work w;
    forward_carve(local, work, &w);
    for (int64_t at = first; at < last; at++) {
        const state_row row = state_row_at(local, state, at);
        if (other) {
            const state_row more = state_row_at(local, other, at);
            fold_row(local, row, more.acc, more.ms[0], more.ms[1]);
        }
        memcpy(w.row, row.acc, (size_t)s->value_dim * sizeof(real));
        finish_row(local, args, at / (s->q_heads * s->q_tokens), at / s->q_tokens % s->q_heads, at % s->q_tokens,
                   (double)row.ms[0], (double)row.ms[1], w.row, w.old);
    }
}

/* ---- tasks ------------------------------------------------------------------------------------------------------- */

static void forward_panels(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w,
                           const lao_shelf *shelf, lao_run *run) {
    const panels p = panels_of(block);
    const lao_cut *cut = &local->forward;
    pack_panels(block, &args->q, local->shape.dtype, local->shape.head_dim, local->shape.scale < 0, w->rows, w->pitch,
                w->q);
    for (int64_t t = block->j0 / cut->k_tile; t * cut->k_tile < block->j1; t++) {
        const int64_t first = t * cut->k_tile, last = lao_min(first + cut->k_tile, block->j1);
        int64_t begin, end;
        packed_tile tile;
        const size_t count = active_rects(block, first, last, w->active, &begin, &end);
        if (!count) continue;
        if (!packed_get(local, cut, block, &args->k, &args->v, t, shelf, w->row, &tile, run)) return;
        ahead soon = ahead_packed(local, shelf, t + 1, local->forward_key_tiles);
        const int64_t lines = ahead_share(&soon, p.count);
        for (int64_t index = 0; index < p.count; index++) {
            double pairs = 0;
            look_ahead(&soon, lines);
            for (size_t n = 0; n < count; n++) {
                const lao_rect *rect = &block->rects[w->active[n]];
                reach r;
                reach_of(block, p, index, rect, first, last, &r);
                if (r.begin >= r.end) continue;
                forward_panel(local, args, block, p, index, rect, &r, first, &tile, w);
                pairs += (double)((r.end - r.begin) * panel_rows(p, index));
            }
            lao_tick(run, pairs);
            if (lao_stopped(run)) return;
        }
    }
}

static void forward_few(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w,
                        char *partial, lao_run *run);
static void forward_one(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w,
                        char *partial, lao_run *run);

static void forward_task(const lao *local, const lao_forward_args *args, const lao_block *block, void *work,
                         void *partial, const lao_shelf *shelf, lao_run *run) {
    forward_work w;
    forward_state state;
    forward_carve(local, work, &w);
    if (!shelf) {
        const bool one = block->ni == 1 && local->shape.q_heads == local->shape.kv_heads;
        (one ? forward_one : forward_few)(local, args, block, &w, partial, run);
        return;
    }
    if (partial) {
        state_carve(local, partial, &state);
        w.o = state.o, w.m = state.m, w.sum = state.sum;
    }
    state_clear(&w, panels_of(block).count * PANEL, lao_round_up(local->shape.value_dim, GROUP));
    forward_panels(local, args, block, &w, shelf, run);
    if (!partial && !lao_stopped(run)) forward_finish(local, args, block, &w);
}

/* Folds the chunks' partial results in their order, safe for -inf on either side, then finishes. Chunks that the block does
 * not meet have none. */
static void forward_merge(const lao *local, const lao_forward_args *args, const lao_block *block, void *work,
                          const void *partials, size_t stride) {
    forward_work w;
    forward_carve(local, work, &w);
    const panels p = panels_of(block);
    const int64_t dv = lao_round_up(local->shape.value_dim, GROUP);
    const vf c = v_set((real)score_factor(local)), least = v_set(-127 / (real)score_factor(local));
    bool some = false;
    for (int64_t chunk = 0; chunk < local->forward.chunks; chunk++) {
        const int64_t first = chunk * local->forward.chunk;
        forward_state part;
        if (!lao_block_meets(block, first, first + local->forward.chunk)) continue;
        state_carve(local, (char *)(uintptr_t)partials + (size_t)chunk * stride, &part);
        for (int64_t index = 0; index < p.count; index++) {
            const int nv = panel_vectors(p, index);
            for (int v = 0; v < nv; v++) {
                const int64_t at = index * PANEL + v * LANES;
                const vf old = some ? v_load(w.m + at) : v_set(-(real)INFINITY), new = v_load(part.m + at);
                const vf top = v_max(old, new), ref = reference(top);
                const vf keep = v_power_of(v_sub(old, ref), c, least), add = v_power_of(v_sub(new, ref), c, least);
                const vf sum = some ? v_mul(v_load(w.sum + at), keep) : v_set(0);
                v_store(w.m + at, top);
                v_store(w.sum + at, v_fma(v_load(part.sum + at), add, sum));
                for (int64_t x = 0; x < dv; x++) {
                    const int64_t o = index * PANEL * dv + (x * nv + v) * LANES;
                    const vf before = some ? v_mul(v_load(w.o + o), keep) : v_set(0);
                    v_store(w.o + o, v_fma(v_load(part.o + o), add, before));
                }
            }
        }
        some = true;
    }
    if (!some) state_clear(&w, p.count * PANEL, dv);
    forward_finish(local, args, block, &w);
}
