/* body_tiles.h - the products and forms of body_products.h for tile registers that multiply bf16 and add in f32; for bf16
 * tensors only. One idea: it loses nothing. Q, K, V and dO are bf16, and products of two are exact in f32. P and dS are f32:
 * they are cut into three bf16 numbers of 8 bits each, whose sum they are, and each takes its turn: three products instead
 * of one, on a unit that is 16 times as fast.
 * The same shapes as there: lanes are rows in scores and gather, dims in scatter. Sums run over pairs:
 *   panels   Q, dO    [dim / 2][row][2]          keys    K, V    [key][dim], dims a multiple of 32
 *   groups   V, K     [dim][key]                 rows    Q, dO   [dim / 32][row / 2][32 dims][2]
 *   weights  P, dS    [panel][part][key][32 rows]; for gather [part][key / 2][row][2]
 * Parts of numbers below 2^-102 may fall under 2^-126, where the unit sees 0. */

#define PANEL_VECTORS 2
#define PANEL (PANEL_VECTORS * LANES)
#define GROUP 16 /* dims of a tile */
#define KV_DIMS 32
#define KV_GROUPS 1
#define PARTS 3
#define STEP 32 /* what one tile holds of what is summed over */

typedef tile_shapes products_state;
INLINE void products_open(products_state *before) { tiles_open(before); }
INLINE void products_close(const products_state *before) { tiles_close(before); }
#define FORM_DIMS(dims) (lao_round_up(dims, STEP) / 2)
#define FORM_ROWS(rows, dims) ((rows)*lao_round_up(dims, KV_DIMS) / 2)
#define FORM_WEIGHTS(rows, keys) (PARTS * (rows) * (keys) / 2)
#define FORM_PANEL_WEIGHTS(keys) ((keys)*PANEL)
#define FORM_SPLIT(keys) (PARTS * lao_round_up(keys, STEP) / 2 * PANEL)

/* ---- forms -------------------------------------------------------------------------------------------------------- */

typedef uint16_t brief; /* a bf16 number */

INLINE uint32_t bits_of(real x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
INLINE real real_of(brief x) {
    const uint32_t bits = (uint32_t)x << 16;
    real y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
INLINE brief brief_of(real x) { return (brief)(bits_of(x) >> 16); } /* of what was bf16 */

/* Keys from one dim to the next: an odd number of cache lines, or a tile's rows fall on few cache sets. */
INLINE int64_t group_jump(int64_t k_tile) { return ((k_tile + STEP - 1) / STEP | 1) * STEP; }
INLINE int64_t form_groups(int64_t k_tile, int64_t dims) { return group_jump(k_tile) / 2 * lao_round_up(dims, GROUP); }

INLINE void key_put(burst_dtype dtype, const char *from, int64_t dims, real *to) {
    (void)dtype;
    memcpy(to, from, (size_t)dims * sizeof(brief));
    memset((brief *)(void *)to + dims, 0, (size_t)(lao_round_up(dims, STEP) - dims) * sizeof(brief));
}
INLINE void key_negate(int64_t dims, real *row) { pairs_negate(FORM_DIMS(dims), row); }
INLINE void group_put(const real *row, int64_t dims, real *out, int64_t k_tile, int64_t j) {
    const int64_t jump = group_jump(k_tile);
    brief *to = (brief *)(void *)out + j;
    for (int64_t x = 0; x < dims; x++) to[x * jump] = row ? brief_of(row[x]) : 0;
}
/* Keys behind the last of n meet weights of 0: they must be numbers. */
INLINE void group_end(int64_t n, int64_t dims, real *out, int64_t k_tile) {
    const int64_t jump = group_jump(k_tile);
    for (int64_t x = 0; x < dims; x++)
        memset((brief *)(void *)out + x * jump + n, 0, (size_t)(jump - n) * sizeof(brief));
}
static void spread_row(const real *row, int64_t dims, int64_t rows, int64_t r, real *out) {
    for (int64_t x = 0; x < lao_round_up(dims, KV_DIMS); x++) {
        brief *to = (brief *)(void *)out + (x / KV_DIMS * (rows / 2) + r / 2) * 2 * KV_DIMS;
        to[x % KV_DIMS * 2 + r % 2] = row && x < dims ? brief_of(row[x]) : 0;
    }
}

/* The three parts of x; their tops are what they are. */
INLINE void split(vf x, vf part[PARTS]) {
    const vf rest = v_sub(x, v_top(x));
    part[0] = x;
    part[1] = rest;
    part[2] = v_sub(rest, v_top(rest));
}
/* Weights p[n][nv * LANES], from key `lead` of a step on -> parts in pairs of keys, whole steps, 0 around. */
KERNEL void split_pairs(const int nv, int64_t n, int64_t lead, const real *restrict p, real *restrict out) {
    const int64_t pairs = lao_round_up(lead + n, STEP) / 2, jump = pairs * nv * LANES;
    for (int64_t u = 0; u < pairs; u++) {
        const int64_t j = 2 * u - lead;
        for (int v = 0; v < nv; v++) {
            vf even[PARTS], odd[PARTS];
            split(j >= 0 && j < n ? v_load(p + (j * nv + v) * LANES) : v_set(0), even);
            split(j + 1 >= 0 && j + 1 < n ? v_load(p + ((j + 1) * nv + v) * LANES) : v_set(0), odd);
            for (int part = 0; part < PARTS; part++)
                v_store_tops_mixed(out + part * jump + (u * nv + v) * LANES, even[part], odd[part]);
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Sums of na x nb tiles in registers 0 .. 3, a in 4 and 5, b in 6 and 7. Rows of a are `wide` bytes apart, of b `nb * 64`. */
INLINE void tiles_left(const int na, const char *a, int64_t wide) {
    T_LOAD(4, a, wide);
    if (na > 1) T_LOAD(5, a + 16 * wide, wide);
}
INLINE void tiles_right(const int na, const int nb, const char *b) {
    T_LOAD(6, b, nb * 64);
    if (nb > 1) T_LOAD(7, b + 64, nb * 64);
    T_DOT(0, 4, 6);
    if (nb > 1) T_DOT(1, 4, 7);
    if (na > 1) T_DOT(2, 5, 6);
    if (na > 1 && nb > 1) T_DOT(3, 5, 7);
}
INLINE void tiles_zero(void) {
    T_ZERO(0);
    T_ZERO(1);
    T_ZERO(2);
    T_ZERO(3);
}
/* out[na * 16][nb * 16] */
INLINE void tiles_load(const int na, const int nb, const real *from) {
    T_LOAD(0, from, nb * 64);
    if (nb > 1) T_LOAD(1, from + LANES, nb * 64);
    if (na > 1) T_LOAD(2, from + 16 * nb * LANES, nb * 64);
    if (na > 1 && nb > 1) T_LOAD(3, from + (16 * nb + 1) * LANES, nb * 64);
}
INLINE void tiles_store(const int na, const int nb, real *to) {
    T_STORE(0, to, nb * 64);
    if (nb > 1) T_STORE(1, to + LANES, nb * 64);
    if (na > 1) T_STORE(2, to + 16 * nb * LANES, nb * 64);
    if (na > 1 && nb > 1) T_STORE(3, to + (16 * nb + 1) * LANES, nb * 64);
}

INLINE void scores_block(const int na, const int nv, int64_t d, const real *q, const real *k, real *s) {
    const int64_t wide = FORM_DIMS(d) * (int64_t)sizeof(real);
    tiles_zero();
    for (int64_t x = 0; x < d; x += STEP) {
        tiles_left(na, (const char *)k + x * (int64_t)sizeof(brief), wide);
        tiles_right(na, nv, (const char *)(q + x / 2 * nv * LANES));
    }
    tiles_store(na, nv, s);
}
INLINE void scores_body(const int nv, int64_t n, int64_t d, const real *q, const real *k, real *s) {
    int64_t j = 0;
    for (; j + 16 < n; j += 32) scores_block(2, nv, d, q, k + j * FORM_DIMS(d), s + j * nv * LANES);
    if (j < n) scores_block(1, nv, d, q, k + j * FORM_DIMS(d), s + j * nv * LANES);
}
KERNEL void scores(int nv, int of, int64_t n, int64_t d, const real *q, const real *k, real *s) {
    (void)of; /* all of a panel */
    if (nv == 2) scores_body(2, n, d, q, k, s);
    if (nv == 1) scores_body(1, n, d, q, k, s);
}

INLINE void gather_block(const int na, const int nv, int64_t steps, const char *v, int64_t wide, const real *parts,
                         real *o) {
    const int64_t step = STEP / 2 * nv * LANES, jump = steps * step;
    tiles_load(na, nv, o);
    for (int64_t t = 0; t < steps; t++) {
        tiles_left(na, v + t * STEP * (int64_t)sizeof(brief), wide);
        for (int part = 0; part < PARTS; part++) tiles_right(na, nv, (const char *)(parts + part * jump + t * step));
    }
    tiles_store(na, nv, o);
}
INLINE void gather_body(const int nv, int64_t n, int64_t dims, const real *p, const real *groups, int64_t k_tile,
                        int64_t begin, real *o, const real *keep, real *scratch) {
    const int64_t lead = begin % STEP, steps = (lead + n + STEP - 1) / STEP;
    const int64_t wide = group_jump(k_tile) * (int64_t)sizeof(brief);
    const char *v = (const char *)groups + (begin - lead) * (int64_t)sizeof(brief);
    split_pairs(nv, n, lead, p, scratch);
    for (int c = 0; c < nv; c++) {
        const vf alpha = v_load(keep + c * LANES);
        for (int64_t x = 0; x < dims; x++) {
            real *at = o + (x * nv + c) * LANES;
            v_store(at, v_mul(alpha, v_load(at)));
        }
    }
    int64_t x = 0;
    for (; x + 2 * GROUP <= dims; x += 2 * GROUP)
        gather_block(2, nv, steps, v + x * wide, wide, scratch, o + x * nv * LANES);
    if (x < dims) gather_block(1, nv, steps, v + x * wide, wide, scratch, o + x * nv * LANES);
}
KERNEL void gather(int nv, int of, int64_t n, int64_t dims, const real *p, const real *groups, int64_t k_tile,
                   int64_t begin, real *o, const real *keep, real *scratch) {
    (void)of;
    if (nv == 2) gather_body(2, n, dims, p, groups, k_tile, begin, o, keep, scratch);
    if (nv == 1) gather_body(1, n, dims, p, groups, k_tile, begin, o, keep, scratch);
}

/* The parts' sums stand apart, in registers 0 to 5: six chains keep the unit busy, and small parts are added first. */
KERNEL void scatter(int groups, int64_t first, int64_t last, int64_t whole, int64_t width, int64_t k_tile, int64_t key,
                    const real *weights, const real *rows, int64_t next, real *c, int64_t padded) {
    const int64_t jump = k_tile * STEP / 2, wide = 2 * KV_DIMS * (int64_t)sizeof(brief);
    real sums[2 * PARTS][16 * LANES];
    (void)whole, (void)width; /* narrow panels are as wide as others, with 0 */
    (void)groups, (void)next; /* one group */
    tiles_zero();
    T_ZERO(4);
    T_ZERO(5);
    for (int64_t panel = first; panel < last; panel++) {
        const real *a = weights + panel * PARTS * jump + key * STEP / 2, *b = rows + panel * PANEL / 2 * KV_DIMS;
        T_LOAD(6, b, wide);
        T_LOAD(7, a, STEP * sizeof(brief));
        T_DOT(0, 7, 6);
        T_LOAD(7, a + jump, STEP * sizeof(brief));
        T_DOT(1, 7, 6);
        T_LOAD(7, a + 2 * jump, STEP * sizeof(brief));
        T_DOT(2, 7, 6);
        T_LOAD(6, b + LANES, wide);
        T_DOT(5, 7, 6);
        T_LOAD(7, a + jump, STEP * sizeof(brief));
        T_DOT(4, 7, 6);
        T_LOAD(7, a, STEP * sizeof(brief));
        T_DOT(3, 7, 6);
    }
    T_STORE(0, sums[0], 64);
    T_STORE(1, sums[1], 64);
    T_STORE(2, sums[2], 64);
    T_STORE(3, sums[3], 64);
    T_STORE(4, sums[4], 64);
    T_STORE(5, sums[5], 64);
    for (int i = 0; i < KV_ROWS; i++) {
        for (int v = 0; v < 2; v++) {
            real *at = c + i * padded + v * LANES;
            const vf small = v_add(v_load(sums[v * PARTS + 1] + i * LANES), v_load(sums[v * PARTS + 2] + i * LANES));
            v_store(at, v_add(v_load(at), v_add(v_load(sums[v * PARTS] + i * LANES), small)));
        }
    }
}

/* ---- P and dS of a block -------------------------------------------------------------------------------------------- */

INLINE real *weights_of_panel(real *weights, real *one, int64_t index, int64_t k_tile) {
    (void)weights, (void)index, (void)k_tile;
    return one;
}
KERNEL void weights_keep(int nv, int64_t from, int64_t to, const real *restrict one, real *restrict weights,
                         int64_t index, int64_t k_tile) {
    const int64_t jump = k_tile * STEP / 2;
    real *out = weights + index * PARTS * jump;
    for (int64_t j = from; j < to; j++) {
        vf first[PARTS], second[PARTS];
        split(v_load(one + j * nv * LANES), first);
        split(nv > 1 ? v_load(one + (j * nv + 1) * LANES) : v_set(0), second);
        for (int part = 0; part < PARTS; part++)
            v_store_tops(out + part * jump + j * STEP / 2, first[part], second[part]);
    }
}
INLINE real weight_at(const real *weights, int64_t row, int64_t width, int64_t key, int64_t k_tile) {
    const brief *at = (const brief *)(const void *)weights + (row / PANEL * PARTS * k_tile + key) * STEP + row % PANEL;
    (void)width;
    return real_of(at[0]) + (real_of(at[k_tile * STEP]) + real_of(at[2 * k_tile * STEP]));
}

/* D as the unit sums dP: even and odd dims of a step apart, and what is below 2^-126 is 0. */
KERNEL void panel_dots(int64_t rows, int64_t dims, const real *d_o, const real *o, real *D) {
    const unsigned before = flush_open();
    for (int64_t first = 0; first < rows; first += PANEL) {
        const int nv = (int)((lao_min(rows - first, PANEL) + LANES - 1) / LANES);
        for (int v = 0; v < nv; v++) {
            vf total = v_set(0);
            for (int64_t step = 0; step < FORM_DIMS(dims); step += STEP / 2) {
                vf sum[2] = {v_set(0), v_set(0)};
                for (int64_t x = step; x < step + STEP / 2; x++) {
                    const int64_t at = first * FORM_DIMS(dims) + (x * nv + v) * LANES;
                    vf a[2], b[2];
                    load_pair(BURST_BF16, (const char *)(o + at), a);
                    load_pair(BURST_BF16, (const char *)(d_o + at), b);
                    for (int odd = 0; odd < 2; odd++) sum[odd] = v_fma(a[odd], b[odd], sum[odd]);
                }
                total = v_add(total, v_add(sum[0], sum[1]));
            }
            v_store(D + first + v * LANES, total);
        }
    }
    flush_close(before);
}
