/* body_softmax.h - from raw scores to probabilities, a panel at a time, lanes are rows: softcap, ALiBi, mask edges, and the
 * fold into the running (maximum, sum).
 * Raw scores are q.k; a probability is BASE^((s - m) c) with c = |scale| * UNIT (a negative scale's sign is in Q), m the row's largest raw score. The
 * difference is taken first: the largest score's weight is exactly 1, and a row that sees one key gives exactly its value.
 * Scores with softcap or ALiBi are made whole first (scaled, natural), and c is UNIT. */

/* Distances and slopes of the lanes of a panel, for ALiBi. */
typedef struct slopes {
    int32_t distance[PANEL]; /* k - q - diag at the first key */
    int32_t step;
    real slope[PANEL]; /* negative */
} slopes;

KERNEL void slopes_of(const lao *local, const lao_block *block, panels p, int64_t index, const lao_rect *rect,
                      int64_t key, slopes *out) {
    const int64_t rows = panel_rows(p, index);
    out->step = (int32_t)rect->sk;
    for (int64_t lane = 0; lane < PANEL; lane++) {
        const int64_t row = index * PANEL + lao_min(lane, rows - 1);
        const int64_t q = rect->q0 + rect->sq * (row_query(block, row) - rect->i0);
        const int64_t k = rect->k0 + rect->sk * (key - rect->j0);
        out->distance[lane] = (int32_t)(k - q - rect->diag);
        out->slope[lane] = -(real)local->shape.alibi[row_head(block, row)];
    }
}

/* s[n][nv * LANES] from q.k to scaled scores, with softcap and ALiBi. slope NULL: no ALiBi. derivative NULL, or where
 * d(score) / d(scale * q.k) goes (softcap). */
KERNEL void modify(const lao *local, int nv, int64_t n, real *s, const slopes *alibi, real *derivative) {
    const double scale = fabs(local->shape.scale), cap = local->shape.softcap;
    const vf linear = v_set((real)scale);
    const vf inner = v_set((real)(cap > 0 ? scale / cap : 0)), outer = v_set((real)cap);
    for (int64_t j = 0; j < n; j++) {
        for (int v = 0; v < nv; v++) {
            real *at = s + (j * nv + v) * LANES;
            vf x = v_load(at);
            if (cap > 0) {
                vf slope;
                const vf t = v_tanh(v_mul(x, inner), &slope);
                if (derivative) v_store(derivative + (j * nv + v) * LANES, slope);
                x = v_mul(t, outer);
            } else {
                x = v_mul(x, linear);
            }
            if (alibi) {
                const vi far = v_add_int(v_load_int(alibi->distance + v * LANES), v_set_int((int32_t)j * alibi->step));
                x = v_fma(v_load(alibi->slope + v * LANES), v_abs(v_from_int(far)), x);
            }
            v_store(at, x);
        }
    }
}

/* -inf where a lane may not look: keys from .. to-1 of s, whose first row is key `origin` of the tile. */
KERNEL void hide(int nv, int64_t from, int64_t to, real *s, int64_t origin, const reach *r) {
    const vf nothing = v_set(-(real)INFINITY);
    for (int64_t j = from; j < to; j++) {
        const vi key = v_set_int((int32_t)j);
        for (int v = 0; v < nv; v++) {
            real *at = s + ((j - origin) * nv + v) * LANES;
            const vm seen = v_between(v_load_int(r->first + v * LANES), key, v_load_int(r->last + v * LANES));
            v_store(at, v_select(seen, v_load(at), nothing));
        }
    }
}
static void hide_edges(int nv, real *s, const reach *r) {
    if (r->full) return;
    const int64_t low = lao_min(lao_max(r->sure_begin, r->begin), r->end);
    const int64_t high = lao_max(lao_min(r->sure_end, r->end), low);
    hide(nv, r->begin, low, s, r->begin, r);
    hide(nv, high, r->end, s, r->begin, r);
}

/* top[row] = the largest of n scores */
INLINE void top_body(const int nv, int64_t n, const real *s, real *top) {
    vf even[PANEL_VECTORS], odd[PANEL_VECTORS];
    for (int v = 0; v < nv; v++) even[v] = odd[v] = v_set(-(real)INFINITY);
    int64_t j = 0;
    for (; j + 2 <= n; j += 2, s += 2 * nv * LANES) {
        for (int v = 0; v < nv; v++) {
            even[v] = v_max(even[v], v_load(s + v * LANES));
            odd[v] = v_max(odd[v], v_load(s + (nv + v) * LANES));
        }
    }
    for (int v = 0; v < nv; v++) {
        if (j < n) even[v] = v_max(even[v], v_load(s + v * LANES));
        v_store(top + v * LANES, v_max(even[v], odd[v]));
    }
}
KERNEL void top_of(int nv, int64_t n, const real *s, real *top) {
    if (nv == PANEL_VECTORS)
        top_body(PANEL_VECTORS, n, s, top);
    else if (nv == 2)
        top_body(2, n, s, top);
    else
        top_body(1, n, s, top);
}

/* where a row has seen nothing its maximum is -inf; 0 then serves as reference, so that no -inf - -inf arises */
INLINE vf reference(vf m) { return v_select(v_less(v_set(-(real)INFINITY), m), m, v_set(0)); }

/* s -> BASE^((s - m) c), m and sum updated, keep: what older sums are worth under the new maximum. c > 0.
 * A row's bits depend on its own scores alone. */
INLINE void fold_body(const int nv, int64_t n, real *restrict s, real c, const real *restrict top, real *restrict m,
                      real *restrict sum, real *restrict keep) {
    vf ref[PANEL_VECTORS], total[PANEL_VECTORS];
    const vf factor = v_set(c), least = v_set(-127 / c);
    for (int v = 0; v < nv; v++) {
        const vf old = v_load(m + v * LANES), now = v_max(old, v_load(top + v * LANES));
        ref[v] = reference(now);
        const vf alpha = v_power_of(v_sub(old, ref[v]), factor, least);
        v_store(m + v * LANES, now);
        v_store(keep + v * LANES, alpha);
        total[v] = v_mul(v_load(sum + v * LANES), alpha);
    }
    for (int64_t j = 0; j < n; j++) {
        for (int v = 0; v < nv; v++) {
            const vf p = v_power_of(v_sub(v_load(s + v * LANES), ref[v]), factor, least);
            v_store(s + v * LANES, p);
            total[v] = v_add(total[v], p);
        }
        s += nv * LANES;
    }
    for (int v = 0; v < nv; v++) v_store(sum + v * LANES, total[v]);
}
KERNEL void fold_full(int64_t n, real *s, real c, const real *top, real *m, real *sum, real *keep) {
    fold_body(PANEL_VECTORS, n, s, c, top, m, sum, keep);
}
KERNEL void fold_narrow(int nv, int64_t n, real *s, real c, const real *top, real *m, real *sum, real *keep) {
    if (nv == 2) fold_body(2, n, s, c, top, m, sum, keep);
    if (nv == 1) fold_body(1, n, s, c, top, m, sum, keep);
}
static void fold(int nv, int64_t n, real *s, real c, const real *top, real *m, real *sum, real *keep) {
    if (nv == PANEL_VECTORS)
        fold_full(n, s, c, top, m, sum, keep);
    else
        fold_narrow(nv, n, s, c, top, m, sum, keep);
}
