/* body_products.h - the three matrix products, where all the time goes, and the forms that they want rows and keys in
 * (body_tiles.h has both anew, for tile registers). Lanes are queries in the first two:
 *   scores   s[key][row]   = sum over dims of k[key][dim] * q[dim][row]       keys are broadcast
 *   gather   o[dim][row]  += sum over keys of v[dim][key] * p[key][row]       value dims are broadcast
 *   scatter  c[key][dim]  += sum over rows of p[key][row] * b[row][dim]       lanes are dims, P is broadcast
 * Each is a plain loop over registers in a function of its own: inlined into its caller, the compiler spills. Unrolled by
 * 4 it does not need the whole front end, which another thread of the core may be using: 82 % -> 95 % of peak then.
 * A panel is at most 3 vectors of rows; narrower panels (1 or 2 vectors) take more broadcast rows to keep the FMAs busy. */

#define PANEL_VECTORS 3
#define PANEL (PANEL_VECTORS * LANES)
#define GROUP 4      /* value dims stored together: v[dim / GROUP][key][GROUP] */
#define KV_VECTORS 2 /* vectors of dims in a scatter step */
#define KV_DIMS (KV_VECTORS * LANES)
/* With 32 registers twice the sums fit: more of them to a load. AVX-512 on an Ice Lake, in cache: gather 162 -> 181 GFLOP/s,
 * scatter 159 -> 175, of 183 at the most. Each sum runs as before: the same bits. */
#define GATHER_GROUPS (QK_ROWS / GROUP) /* groups of value dims beside a panel of 2 or 3 vectors */
#define KV_GROUPS (KV_ROWS / 6)         /* groups of KV_DIMS dims beside KV_ROWS / KV_GROUPS keys */

/* ---- forms: what packing leaves for the products, in reals -------------------------------------------------------- */

/* around products, with nothing between that may call out: what they change in the thread */
typedef char products_state;
INLINE void products_open(products_state *before) { *before = 0; }
INLINE void products_close(const products_state *before) { (void)before; }
#define FORM_ROWS(rows, dims) ((rows)*lao_round_up(dims, KV_DIMS)) /* scatter's rows, [dim / KV_DIMS][row][KV_DIMS] */
#define FORM_WEIGHTS(rows, keys) ((rows) * (keys))                 /* P or dS of a block and a key tile */
#define FORM_PANEL_WEIGHTS(keys) 0 /* P or dS of one panel, if they do not stay where they are made */
#define FORM_SPLIT(keys) 0         /* gather's scratch */

/* From one group of dims to the next; an odd number of cache lines, or a row's groups fall on few cache sets. */
INLINE int64_t group_jump(int64_t k_tile) { return (lao_round_up(k_tile, 8) + 4) * GROUP; }
INLINE int64_t form_groups(int64_t k_tile, int64_t dims) {
    return group_jump(k_tile) / GROUP * lao_round_up(dims, GROUP);
}

/* What `scores` sums over: FORM_DIMS terms of a row or key. */
#ifdef SIMD_PAIRS
/* Two dims of bf16 in the place of a real, the first in its lower half; v_dot multiplies and adds both: half the steps for
 * scores and dP, and nothing is rounded that was not before. Everything else is as without pairs, in f32. */
#define FORM_DIMS(dims) (((dims) + 1) / 2)
INLINE vf v_term(vf a, vf b, vf sum) { return v_dot(a, b, sum); }
/* One row or key of a tensor -> a row of terms; it is bf16 already. */
INLINE void key_put(burst_dtype dtype, const char *from, int64_t dims, real *to) {
    (void)dtype;
    if (dims % 2) to[dims / 2] = 0;
    memcpy(to, from, (size_t)dims * sizeof(uint16_t));
}
INLINE void key_negate(int64_t dims, real *row) { pairs_negate(FORM_DIMS(dims), row); }
#else
#define FORM_DIMS(dims) (dims)
INLINE vf v_term(vf a, vf b, vf sum) { return v_fma(a, b, sum); }
/* One row or key of a tensor -> a row of terms. */
INLINE void key_put(burst_dtype dtype, const char *from, int64_t dims, real *to) { row_load(dtype, from, dims, to); }
INLINE void key_negate(int64_t dims, real *row) {
    for (int64_t x = 0; x < dims; x++) row[x] = -row[x];
}
#endif
/* Key j -> out[dim / GROUP][key][GROUP], dims a multiple of GROUP; row NULL: zeros. */
INLINE void group_put(const real *row, int64_t dims, real *out, int64_t k_tile, int64_t j) {
    const int64_t jump = group_jump(k_tile);
    out += j * GROUP;
    for (int64_t x = 0; x < dims; x += GROUP, out += jump) {
        if (row)
            memcpy(out, row + x, GROUP * sizeof *out);
        else
            memset(out, 0, GROUP * sizeof *out);
    }
}
/* What lies behind the last of n keys is never read. */
INLINE void group_end(int64_t n, int64_t dims, real *out, int64_t k_tile) {
    (void)n, (void)dims, (void)out, (void)k_tile;
}
/* Row r of `rows` -> [dim / KV_DIMS][row][KV_DIMS], 0 behind; row NULL: zeros. */
static void spread_row(const real *row, int64_t dims, int64_t rows, int64_t r, real *out) {
    for (int64_t x = 0; x < dims; x += KV_DIMS) {
        real *to = out + (x / KV_DIMS * rows + r) * KV_DIMS;
        const int64_t n = row ? lao_min(dims - x, KV_DIMS) : 0;
        if (n == KV_DIMS) {
            memcpy(to, row + x, KV_DIMS * sizeof *to);
        } else {
            memset(to, 0, KV_DIMS * sizeof *to);
            if (n) memcpy(to, row + x, (size_t)n * sizeof *to);
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* nv vectors of s[n][of * LANES], of keys k[n][FORM_DIMS]; n is rounded up to the step, so s and k need slack behind. (Taking
 * the maximum here, while the sums are in registers, costs more than reading them again: 4 % at d = 64.) */
INLINE void scores_body(const int nv, const int of, const int mr, int64_t n, int64_t dims, const real *restrict q,
                        const real *restrict k, real *restrict s) {
    const int64_t d = FORM_DIMS(dims);
    for (int64_t j = 0; j < n; j += mr) {
        vf sum[2 * QK_ROWS][PANEL_VECTORS];
        for (int i = 0; i < mr; i++)
            for (int v = 0; v < nv; v++) sum[i][v] = v_set(0);
        const real *key = k + j * d;
        const real *row = q;
#pragma GCC unroll 4
        for (int64_t x = 0; x < d; x++) {
            vf b[PANEL_VECTORS];
            for (int v = 0; v < nv; v++) {
                b[v] = v_load(row + v * LANES);
                V_KEEP(b[v]);
            }
            for (int i = 0; i < mr; i++) {
                const vf a = v_set(key[i * d + x]);
                for (int v = 0; v < nv; v++) sum[i][v] = v_term(a, b[v], sum[i][v]);
            }
            row += of * LANES;
        }
        real *out = s + j * of * LANES;
        for (int i = 0; i < mr; i++)
            for (int v = 0; v < nv; v++) v_store(out + (i * of + v) * LANES, sum[i][v]);
    }
}
KERNEL void scores_1(int of, int64_t n, int64_t d, const real *q, const real *k, real *s) {
    scores_body(1, of, 2 * QK_ROWS, n, d, q, k, s);
}
KERNEL void scores_2(int of, int64_t n, int64_t d, const real *q, const real *k, real *s) {
    scores_body(2, of, QK_ROWS, n, d, q, k, s);
}
KERNEL void scores_3(int64_t n, int64_t d, const real *q, const real *k, real *s) {
    scores_body(3, 3, QK_ROWS, n, d, q, k, s);
}
static void scores(int nv, int of, int64_t n, int64_t d, const real *q, const real *k, real *s) {
    if (nv == 3) scores_3(n, d, q, k, s);
    if (nv == 2) scores_2(of, n, d, q, k, s);
    if (nv == 1) scores_1(of, n, d, q, k, s);
}

/* nv vectors of o[dims][of * LANES] = o * keep[row] + sum over n keys; dims is a multiple of GROUP; v[dim / GROUP] starts
 * every `jump` reals. */
INLINE void gather_body(const int nv, const int of, const int groups, int64_t n, int64_t dims, const real *restrict p,
                        const real *restrict v, int64_t jump, real *restrict o, const real *restrict keep) {
    for (int64_t x = 0; x < dims; x += groups * GROUP) {
        vf sum[2 * GROUP][PANEL_VECTORS];
        real *out = o + x * of * LANES;
        for (int c = 0; c < nv; c++) {
            const vf alpha = v_load(keep + c * LANES);
            for (int i = 0; i < groups * GROUP; i++) sum[i][c] = v_mul(alpha, v_load(out + (i * of + c) * LANES));
        }
        const real *row = p;
        const real *val = v + x / GROUP * jump;
#pragma GCC unroll 4
        for (int64_t j = 0; j < n; j++) {
            vf b[PANEL_VECTORS];
            for (int c = 0; c < nv; c++) {
                b[c] = v_load(row + c * LANES);
                V_KEEP(b[c]);
            }
            for (int i = 0; i < groups * GROUP; i++) {
                const vf a = v_set(val[i / GROUP * jump + i % GROUP]);
                for (int c = 0; c < nv; c++) sum[i][c] = v_fma(a, b[c], sum[i][c]);
            }
            row += of * LANES;
            val += GROUP;
        }
        for (int i = 0; i < groups * GROUP; i++)
            for (int c = 0; c < nv; c++) v_store(out + (i * of + c) * LANES, sum[i][c]);
    }
}
INLINE void gather_dims(const int nv, const int of, const int groups, int64_t n, int64_t dims, const real *p,
                        const real *v, int64_t jump, real *o, const real *keep) {
    const int64_t most = dims / (groups * GROUP) * groups * GROUP;
    gather_body(nv, of, groups, n, most, p, v, jump, o, keep);
    if (groups > 1)
        gather_body(nv, of, 1, n, dims - most, p, v + most / GROUP * jump, jump, o + most * of * LANES, keep);
}
KERNEL void gather_1(int of, int64_t n, int64_t dims, const real *p, const real *v, int64_t jump, real *o,
                     const real *keep) {
    gather_dims(1, of, 2, n, dims, p, v, jump, o, keep);
}
KERNEL void gather_2(int of, int64_t n, int64_t dims, const real *p, const real *v, int64_t jump, real *o,
                     const real *keep) {
    gather_dims(2, of, GATHER_GROUPS, n, dims, p, v, jump, o, keep);
}
KERNEL void gather_3(int64_t n, int64_t dims, const real *p, const real *v, int64_t jump, real *o, const real *keep) {
    gather_dims(3, 3, GATHER_GROUPS, n, dims, p, v, jump, o, keep);
}
/* n keys of the groups, from key `begin` of the tile on */
static void gather(int nv, int of, int64_t n, int64_t dims, const real *p, const real *groups, int64_t k_tile,
                   int64_t begin, real *o, const real *keep, real *scratch) {
    const int64_t jump = group_jump(k_tile);
    const real *v = groups + begin * GROUP;
    (void)scratch;
    if (nv == 3) gather_3(n, dims, p, v, jump, o, keep);
    if (nv == 2) gather_2(of, n, dims, p, v, jump, o, keep);
    if (nv == 1) gather_1(of, n, dims, p, v, jump, o, keep);
}

/* `keys` keys against `groups` groups of KV_DIMS dims: c += over the `width` rows of each panel; panels follow each other
 * every `jump` reals, groups every `next`. p[panel][key][row], b[group][row][KV_DIMS]. */
INLINE void scatter_body(const int keys, const int groups, int64_t panels, int64_t jump, int64_t width,
                         const real *restrict p, const real *restrict b, int64_t next, real *restrict c,
                         int64_t stride) {
    const int vectors = groups * KV_VECTORS;
    vf sum[KV_ROWS][KV_GROUPS * KV_VECTORS];
    for (int i = 0; i < keys; i++)
        for (int v = 0; v < vectors; v++) sum[i][v] = v_set(0);
    for (int64_t panel = 0; panel < panels; panel++) {
        const real *a = p + panel * jump;
#pragma GCC unroll 4
        for (int64_t r = 0; r < width; r++) {
            vf row[KV_GROUPS * KV_VECTORS];
            for (int v = 0; v < vectors; v++) {
                row[v] = v_load(b + v / KV_VECTORS * next + v % KV_VECTORS * LANES);
                V_KEEP(row[v]);
            }
            for (int i = 0; i < keys; i++) {
                const vf e = v_set(a[i * width + r]);
                for (int v = 0; v < vectors; v++) sum[i][v] = v_fma(e, row[v], sum[i][v]);
            }
            b += KV_DIMS;
        }
    }
    /* the rows of a task first, then all tasks: rounding errors of two short sums, not of a long one */
    for (int i = 0; i < keys; i++)
        for (int v = 0; v < vectors; v++) {
            real *at = c + i * stride + v * LANES;
            v_store(at, v_add(v_load(at), sum[i][v]));
        }
}
/* full panels: the width is a constant; a narrower one stands alone */
KERNEL void scatter_full(int64_t panels, int64_t jump, const real *p, const real *b, real *c, int64_t stride) {
    scatter_body(KV_ROWS, 1, panels, jump, PANEL, p, b, 0, c, stride);
}
KERNEL void scatter_wide(int64_t panels, int64_t jump, const real *p, const real *b, int64_t next, real *c,
                         int64_t stride) {
    const int keys = KV_ROWS / KV_GROUPS;
    for (int i = 0; i < KV_ROWS; i += keys)
        scatter_body(keys, KV_GROUPS, panels, jump, PANEL, p + i * PANEL, b, next, c + i * stride, stride);
}
KERNEL void scatter_narrow(int64_t width, const real *p, const real *b, real *c, int64_t stride) {
    scatter_body(KV_ROWS, 1, 1, 0, width, p, b, 0, c, stride);
}
/* c[key][padded] of KV_ROWS keys from `key` on += over the rows of panels first .. last-1, of which `whole` are full and the
 * next, if there is one, has `width` rows. `groups`: of dims, KV_GROUPS or 1; `next` from one to the next. */
static void scatter(int groups, int64_t first, int64_t last, int64_t whole, int64_t width, int64_t k_tile, int64_t key,
                    const real *weights, const real *rows, int64_t next, real *c, int64_t padded) {
    const int64_t full = lao_min(last, whole);
    if (first < full) {
        const real *p = weights + first * PANEL * k_tile + key * PANEL, *b = rows + first * PANEL * KV_DIMS;
        if (groups > 1)
            scatter_wide(full - first, k_tile * PANEL, p, b, next, c, padded);
        else
            scatter_full(full - first, k_tile * PANEL, p, b, c, padded);
    }
    if (last > whole) {
        const real *p = weights + whole * PANEL * k_tile + key * width, *b = rows + whole * PANEL * KV_DIMS;
        for (int g = 0; g < groups; g++) scatter_narrow(width, p, b + g * next, c + g * KV_DIMS, padded);
    }
}

/* ---- P and dS of a block, [panel][key][lane] --------------------------------------------------------------------- */

/* Where panel `index` writes them; weights_keep then brings keys from .. to-1 to their place. */
INLINE real *weights_of_panel(real *weights, real *one, int64_t index, int64_t k_tile) {
    (void)one;
    return weights + index * PANEL * k_tile;
}
INLINE void weights_keep(int nv, int64_t from, int64_t to, const real *one, real *weights, int64_t index,
                         int64_t k_tile) {
    (void)nv, (void)from, (void)to, (void)one, (void)weights, (void)index, (void)k_tile;
}
INLINE real weight_at(const real *weights, int64_t row, int64_t width, int64_t key, int64_t k_tile) {
    return weights[row / PANEL * PANEL * k_tile + key * width + row % PANEL];
}

/* D = rowsum(dO * O), summed term by term as `scores` sums dP: a row that sees one key then has dS = 0 exactly. d_o, o:
 * [panel][FORM_DIMS][lane]. */
KERNEL void panel_dots(int64_t rows, int64_t dims, const real *d_o, const real *o, real *D) {
    const int64_t terms = FORM_DIMS(dims);
    for (int64_t first = 0; first < rows; first += PANEL) {
        const int nv = (int)((lao_min(rows - first, PANEL) + LANES - 1) / LANES);
        for (int v = 0; v < nv; v++) {
            vf sum = v_set(0);
            for (int64_t x = 0; x < terms; x++) {
                const int64_t at = first * terms + (x * nv + v) * LANES;
                sum = v_term(v_load(o + at), v_load(d_o + at), sum);
            }
            v_store(D + first + v * LANES, sum);
        }
    }
}
