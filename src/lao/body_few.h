/* body_few.h - forward for one to three rows (decoding): lanes are dims, keys and values are read where they lie, once,
 * and only the keys a row sees are touched. Bound by memory, not by arithmetic. */

#define FEW_KEYS 64 /* keys whose scores are taken together: 32 KiB of K and as much of V at d = 128 in f32 */

INLINE real sum_lanes(vf x) {
    real lanes[LANES], total = 0;
    v_store(lanes, x);
    for (int l = LANES / 2; l >= 1; l /= 2)
        for (int i = 0; i < l; i++) lanes[i] += lanes[i + l];
    total = lanes[0];
    return total;
}

/* score[j] = q . k[j] for n keys, `stride` bytes apart; q is padded with 0 to whole vectors */
INLINE void few_scores_body(const burst_dtype dtype, int64_t n, int64_t d, const real *q, const char *k, int64_t stride,
                            real *score) {
    const int64_t size = (int64_t)dtype_bytes(dtype), whole = d / LANES * LANES;
    for (int64_t j = 0; j < n; j += 4) {
        const char *key[4];
        vf sum[4];
        for (int i = 0; i < 4; i++) {
            key[i] = k + lao_min(j + i, n - 1) * stride;
            sum[i] = v_set(0);
        }
        for (int64_t x = 0; x < whole; x += LANES) {
            const vf a = v_load(q + x);
            for (int i = 0; i < 4; i++) sum[i] = v_fma(a, load_as(dtype, key[i] + x * size), sum[i]);
        }
        if (whole < d) {
            const vf a = v_load(q + whole);
            for (int i = 0; i < 4; i++) sum[i] = v_fma(a, load_tail(dtype, key[i] + whole * size, d - whole), sum[i]);
        }
        for (int i = 0; i < 4 && j + i < n; i++) score[j + i] = sum_lanes(sum[i]);
    }
}
KERNEL void few_scores_32(int64_t n, int64_t d, const real *q, const char *k, int64_t stride, real *score) {
    few_scores_body(sizeof(real) == 8 ? BURST_F64 : BURST_F32, n, d, q, k, stride, score);
}
#ifndef SIMD_F64
KERNEL void few_scores_bf16(int64_t n, int64_t d, const real *q, const char *k, int64_t stride, real *score) {
    few_scores_body(BURST_BF16, n, d, q, k, stride, score);
}
KERNEL void few_scores_f16(int64_t n, int64_t d, const real *q, const char *k, int64_t stride, real *score) {
    few_scores_body(BURST_F16, n, d, q, k, stride, score);
}
#endif

/* o[x] = o[x] * keep + sum over n keys of p[j] * v[j][x]; o is padded to whole vectors */
INLINE void few_gather_body(const burst_dtype dtype, int64_t n, int64_t dv, const real *p, const char *v,
                            int64_t stride, real keep, real *o) {
    enum { WIDE = 8 };
    const int64_t size = (int64_t)dtype_bytes(dtype);
    int64_t x = 0;
    for (; x + WIDE * LANES <= dv; x += WIDE * LANES) {
        vf sum[WIDE];
        for (int i = 0; i < WIDE; i++) sum[i] = v_mul(v_load(o + x + i * LANES), v_set(keep));
        for (int64_t j = 0; j < n; j++) {
            const vf weight = v_set(p[j]);
            const char *at = v + j * stride + x * size;
            for (int i = 0; i < WIDE; i++) sum[i] = v_fma(weight, load_as(dtype, at + i * LANES * size), sum[i]);
        }
        for (int i = 0; i < WIDE; i++) v_store(o + x + i * LANES, sum[i]);
    }
    for (; x < dv; x += LANES) {
        vf sum = v_mul(v_load(o + x), v_set(keep));
        const int64_t rest = lao_min(dv - x, LANES);
        for (int64_t j = 0; j < n; j++) {
            const char *at = v + j * stride + x * size;
            sum = v_fma(v_set(p[j]), rest == LANES ? load_as(dtype, at) : load_tail(dtype, at, rest), sum);
        }
        v_store(o + x, sum);
    }
}
KERNEL void few_gather_32(int64_t n, int64_t dv, const real *p, const char *v, int64_t stride, real keep, real *o) {
    few_gather_body(sizeof(real) == 8 ? BURST_F64 : BURST_F32, n, dv, p, v, stride, keep, o);
}
#ifndef SIMD_F64
KERNEL void few_gather_bf16(int64_t n, int64_t dv, const real *p, const char *v, int64_t stride, real keep, real *o) {
    few_gather_body(BURST_BF16, n, dv, p, v, stride, keep, o);
}
KERNEL void few_gather_f16(int64_t n, int64_t dv, const real *p, const char *v, int64_t stride, real keep, real *o) {
    few_gather_body(BURST_F16, n, dv, p, v, stride, keep, o);
}
#endif

static void few_scores(burst_dtype dtype, int64_t n, int64_t d, const real *q, const char *k, int64_t stride, real *s) {
#ifndef SIMD_F64
    if (dtype == BURST_BF16)
        few_scores_bf16(n, d, q, k, stride, s);
    else if (dtype == BURST_F16)
        few_scores_f16(n, d, q, k, stride, s);
    else
#endif
        (void)dtype, few_scores_32(n, d, q, k, stride, s);
}
static void few_gather(burst_dtype dtype, int64_t n, int64_t dv, const real *p, const char *v, int64_t stride,
                       real keep, real *o) {
#ifndef SIMD_F64
    if (dtype == BURST_BF16)
        few_gather_bf16(n, dv, p, v, stride, keep, o);
    else if (dtype == BURST_F16)
        few_gather_f16(n, dv, p, v, stride, keep, o);
    else
#endif
        (void)dtype, few_gather_32(n, dv, p, v, stride, keep, o);
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
    *sum = *sum * keep + sum_lanes(total);
    return keep;
}

/* One row through one rectangle. */
static void few_row(const lao *local, const lao_forward_args *args, const lao_block *block, const lao_rect *rect,
                    int64_t first, int64_t last, const real *q, int64_t r, real *o, forward_work *w) {
    const burst_dtype dtype = local->shape.dtype;
    const int64_t size = (int64_t)dtype_bytes(dtype);
    const panels p = {r + 1, 1};
    slopes alibi;
    for (int64_t j = first; j < last; j += FEW_KEYS) {
        const int64_t n = lao_min(last - j, FEW_KEYS);
        few_scores(dtype, n, local->shape.head_dim, q, tensor_row(&args->k, dtype, block->b, j, block->g),
                   args->k.token * size, w->score);
        if (local->shape.alibi) {
            slopes_of(local, block, p, 0, rect, j, &alibi);
            alibi.distance[0] = alibi.distance[r];
            alibi.slope[0] = alibi.slope[r];
        }
        const real keep = few_fold(local, n, w->score, local->shape.alibi ? &alibi : NULL, w->m + r, w->sum + r);
        few_gather(dtype, n, local->shape.value_dim, w->score, tensor_row(&args->v, dtype, block->b, j, block->g),
                   args->v.token * size, keep, o);
    }
}

static void forward_few(const lao *local, const lao_forward_args *args, const lao_block *block, forward_work *w,
                        lao_run *run) {
    const panels p = panels_of(block);
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim;
    const int64_t wide = lao_round_up(d, LANES), width = panel_vectors(p, 0) * LANES;
    for (int64_t r = 0; r < p.rows; r++) {
        real *q = w->q + r * wide, *o = w->tiles[0].v + r * lao_round_up(dv, LANES);
        memset(q, 0, (size_t)wide * sizeof *q);
        memset(o, 0, (size_t)lao_round_up(dv, LANES) * sizeof *o);
        row_load(dtype, tensor_row(&args->q, dtype, block->b, row_query(block, r), row_head(block, r)), d, q);
        if (local->shape.scale < 0)
            for (int64_t x = 0; x < d; x++) q[x] = -q[x];
    }
    /* steps of a few tiles: rows of one step share the keys in cache, and the caller gets its pulse */
    for (int64_t step = block->j0; step < block->j1; step += FEW_KEYS) {
        for (size_t n = 0; n < block->count; n++) {
            const lao_rect *rect = &block->rects[block->ids[n]];
            for (int64_t r = 0; r < p.rows; r++) {
                const int64_t i = row_query(block, r);
                int64_t a, b;
                if (i < rect->i0 || i >= rect->i0 + rect->ni) continue;
                lao_interval(rect, i, &a, &b);
                a = lao_max(a, step), b = lao_min(b, lao_min(step + FEW_KEYS, block->j1));
                if (a < b)
                    few_row(local, args, block, rect, a, b, w->q + r * wide, r, w->tiles[0].v + r * lao_round_up(dv, LANES), w);
            }
        }
        lao_tick(run, (double)(p.rows * FEW_KEYS));
        if (lao_stopped(run)) return;
    }
    for (int64_t r = 0; r < p.rows; r++)
        for (int64_t x = 0; x < dv; x++) w->o[x * width + r] = w->tiles[0].v[r * lao_round_up(dv, LANES) + x];
}
