/* body_pack.h - brings rows of a tensor into the forms the products want, converting to reals on the way, and says which
 * panels and key intervals a block has. Packing is paid once per task (queries) or once per tile (keys). */

#define CACHE_LINE 64
/* Where decoding asks for what is read soon: a Zen 3 is faster with L1. CPUs of 16 lanes read faster than the few misses that
 * L1 can wait for bring (Zen 4, 1 thread, L1 -> L2: one query 17.7 -> 22 GB/s, 8 query heads a kv head 10.5 -> 15). */
#define NEAR (LANES < 16)
#define ROWS_AHEAD 6 /* rows asked for before they are packed: about a memory latency's worth of packing */

/* Carves aligned arrays out of one piece of memory; with base NULL it only measures. */
typedef struct carver {
    char *base;
    size_t used;
} carver;
INLINE void *carve(carver *c, int64_t count, size_t size) {
    void *at = c->base ? c->base + c->used : NULL;
    c->used += ((size_t)count * size + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    return at;
}

/* The rows of a block in panels of PANEL rows; the last may have fewer vectors. */
typedef struct panels {
    int64_t rows, count;
} panels;

INLINE panels panels_of(const lao_block *block) {
    const int64_t rows = block->heads * block->ni;
    return (panels){rows, (rows + PANEL - 1) / PANEL};
}
INLINE int panel_vectors(panels p, int64_t index) {
    const int64_t rows = lao_min(p.rows - index * PANEL, PANEL);
    return (int)((rows + LANES - 1) / LANES);
}
INLINE int64_t panel_rows(panels p, int64_t index) { return lao_min(p.rows - index * PANEL, PANEL); }
INLINE int64_t row_head(const lao_block *block, int64_t row) { return block->h0 + row / block->ni; }
INLINE int64_t row_query(const lao_block *block, int64_t row) { return block->i0 + row % block->ni; }

/* Rows that will be packed next, asked for a few at a time while the present ones are worked on: they lie far apart
 * ([tokens][heads][dim]), and the hardware does not see them coming. */
typedef struct ahead {
    const char *at;
    int64_t stride, bytes, left;
    int64_t x; /* how far the present row has been asked for */
    bool near; /* into L1, otherwise into L2 */
} ahead;

INLINE ahead ahead_of(const void *at, int64_t stride, int64_t bytes, int64_t rows) {
    return (ahead){at, stride, bytes, rows, 0, false};
}
INLINE int64_t cache_lines(int64_t bytes) { return (bytes + CACHE_LINE - 1) / CACHE_LINE; }
/* lines for each of n calls, so that all are asked for */
INLINE int64_t ahead_share(const ahead *a, int64_t n) { return (a->left * cache_lines(a->bytes) + n - 1) / n; }
INLINE void look_ahead(ahead *a, int64_t lines) {
    for (; lines > 0 && a->left > 0; lines--) {
        if (a->near)
            __builtin_prefetch(a->at + a->x, 0, 3);
        else
            __builtin_prefetch(a->at + a->x, 0, 2);
        a->x += CACHE_LINE;
        if (a->x >= a->bytes) a->left--, a->at += a->stride, a->x = 0;
    }
}
/* The keys first .. last-1 of a tensor. */
INLINE ahead ahead_keys(const lao_block *block, const lao_tensor *t, burst_dtype dtype, int64_t dims, int64_t first,
                        int64_t last) {
    if (first >= last) return ahead_of(NULL, 0, 0, 0);
    const int64_t size = (int64_t)dtype_bytes(dtype);
    return ahead_of(tensor_row(t, dtype, block->b, first, block->g), t->token * size, dims * size, last - first);
}

/* LANES rows, `pitch` reals apart <-> lanes[term][width]. Four terms of all rows at a time, so both sides may have up to three
 * terms more than are meant. Term by term it took 3 cycles a number, 8 % of all at 512 tokens. */
INLINE void rows_to_lanes(const real *rows, int64_t pitch, int64_t terms, real *lanes, int64_t width) {
#if LANES < 4
    for (int64_t x = 0; x < terms; x++)
        for (int lane = 0; lane < LANES; lane++) lanes[x * width + lane] = rows[lane * pitch + x];
#else
    for (int64_t x = 0; x < terms; x += 4) {
        vf four[4];
        for (int i = 0; i < 4; i++) four[i] = v_load_fours(rows + i * pitch + x, 4 * pitch);
        v_turn(four);
        for (int i = 0; i < 4 && x + i < terms; i++) v_store(lanes + (x + i) * width, four[i]);
    }
#endif
}
INLINE void lanes_to_rows(const real *lanes, int64_t width, int64_t terms, real *rows, int64_t pitch) {
#if LANES < 4
    for (int64_t x = 0; x < terms; x++)
        for (int lane = 0; lane < LANES; lane++) rows[lane * pitch + x] = lanes[x * width + lane];
#else
    for (int64_t x = 0; x < terms; x += 4) {
        vf four[4];
        for (int i = 0; i < 4; i++) four[i] = v_load(lanes + (x + i) * width);
        v_turn(four);
        for (int i = 0; i < 4; i++) v_store_fours(rows + i * pitch + x, 4 * pitch, four[i]);
    }
#endif
}

/* Row r of the block -> out[panel][term][lane], rows behind the last are 0; negated where wanted. rows: LANES, `pitch` apart. */
KERNEL void pack_panels(const lao_block *block, const lao_tensor *t, burst_dtype dtype, int64_t dims, bool negate,
                        real *rows, int64_t pitch, real *out) {
    const panels p = panels_of(block);
    const int64_t terms = FORM_DIMS(dims);
    for (int64_t first = 0; first < p.rows; first += LANES) {
        const int64_t index = first / PANEL, width = panel_vectors(p, index) * LANES;
        for (int64_t lane = 0; lane < LANES; lane++) {
            const int64_t r = first + lane;
            real *row = rows + lane * pitch;
            if (r >= p.rows) {
                memset(row, 0, (size_t)terms * sizeof *row);
                continue;
            }
            const int64_t later = lao_min(r + ROWS_AHEAD, p.rows - 1);
            ahead soon = ahead_of(tensor_row(t, dtype, block->b, row_query(block, later), row_head(block, later)), 0,
                                  dims * (int64_t)dtype_bytes(dtype), 1);
            look_ahead(&soon, cache_lines(soon.bytes));
            key_put(dtype, tensor_row(t, dtype, block->b, row_query(block, r), row_head(block, r)), dims, row);
            if (negate) key_negate(dims, row);
        }
        rows_to_lanes(rows, pitch, terms, out + index * PANEL * terms + first % PANEL, width);
    }
}

/* Keys first .. last-1 of kv head g -> out[key][dims]. */
KERNEL void pack_keys(const lao_block *block, const lao_tensor *t, burst_dtype dtype, int64_t dims, int64_t first,
                      int64_t last, real *out) {
    ahead soon = ahead_keys(block, t, dtype, dims, first + ROWS_AHEAD, last);
    for (int64_t j = first; j < last; j++) {
        look_ahead(&soon, cache_lines(soon.bytes));
        key_put(dtype, tensor_row(t, dtype, block->b, j, block->g), dims, out + (j - first) * FORM_DIMS(dims));
    }
}

/* Keys first .. last-1 -> groups, dims padded with 0; bad: those that are not finite. They go in as 0: 0 * NaN would reach
 * rows that may not see it (see add_bad_keys). With rows, the keys stand there too, as by pack_keys. scratch: a row. */
KERNEL int64_t pack_groups(const lao_block *block, const lao_tensor *t, burst_dtype dtype, int64_t dims, int64_t first,
                           int64_t last, real *rows, real *scratch, real *out, int64_t k_tile, int32_t *bad) {
    const int64_t padded = lao_round_up(dims, GROUP);
    int64_t bad_count = 0;
    ahead soon = ahead_keys(block, t, dtype, dims, first + ROWS_AHEAD, last);
    for (int64_t x = dims; x < padded; x++) scratch[x] = 0;
    for (int64_t j = first; j < last; j++) {
        look_ahead(&soon, cache_lines(soon.bytes));
        const char *from = tensor_row(t, dtype, block->b, j, block->g);
        const bool finite = row_load(dtype, from, dims, scratch);
        group_put(finite ? scratch : NULL, padded, out, k_tile, j - first);
        if (rows) key_put(dtype, from, dims, rows + (j - first) * FORM_DIMS(dims));
        if (!finite) bad[bad_count++] = (int32_t)(j - first);
    }
    group_end(last - first, padded, out, k_tile);
    return bad_count;
}

/* A tile of packed keys: K rows; forward V groups; backward K groups and V rows. bad: how many keys of what stands in
 * groups are not finite, and which. */
typedef struct packed_tile {
    real *k, *groups, *v;
    int32_t *bad;
} packed_tile;

static size_t packed_carve(const lao *local, const lao_cut *cut, char *base, packed_tile *tile) {
    const bool forward = cut == &local->forward;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim, slack = cut->k_tile + 2 * QK_ROWS;
    carver c = {base, 0};
    /* a score step starts at any key of the tile and may run over its end */
    tile->k = carve(&c, slack * FORM_DIMS(d), sizeof(real));
    tile->v = carve(&c, forward ? 0 : slack * FORM_DIMS(dv), sizeof(real));
    tile->groups = carve(&c, form_groups(cut->k_tile, forward ? dv : d), sizeof(real));
    tile->bad = carve(&c, cut->k_tile + 1, sizeof(int32_t));
    return c.used;
}
static size_t packed_bytes(const lao *local, const lao_cut *cut) {
    packed_tile tile;
    return packed_carve(local, cut, NULL, &tile);
}

/* Tile t of the kv head's shelf, packed by whoever comes first. false: stopped while waiting. */
static bool packed_get(const lao *local, const lao_cut *cut, const lao_block *block, const lao_tensor *k,
                       const lao_tensor *v, int64_t t, const lao_shelf *shelf, real *row, packed_tile *tile,
                       lao_run *run) {
    const burst_dtype dtype = local->shape.dtype;
    const int64_t d = local->shape.head_dim, dv = local->shape.value_dim, first = t * cut->k_tile;
    const int64_t last = lao_min(first + cut->k_tile, local->shape.k_tokens), wide = cut->k_tile;
    int32_t none = LAO_UNPACKED;
    packed_carve(local, cut, shelf->tiles + (shelf->ready ? (size_t)t * local->packed_stride : 0), tile);
    if (shelf->ready &&
        !__atomic_compare_exchange_n(&shelf->ready[t], &none, LAO_PACKING, false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE))
        return lao_await(&shelf->ready[t], LAO_PACKED, run);
    if (cut == &local->forward) {
        pack_keys(block, k, dtype, d, first, last, tile->k);
        tile->bad[0] =
            (int32_t)pack_groups(block, v, dtype, dv, first, last, NULL, row, tile->groups, wide, tile->bad + 1);
    } else {
        tile->bad[0] =
            (int32_t)pack_groups(block, k, dtype, d, first, last, tile->k, row, tile->groups, wide, tile->bad + 1);
        pack_keys(block, v, dtype, dv, first, last, tile->v);
    }
    if (shelf->ready) __atomic_store_n(&shelf->ready[t], LAO_PACKED, __ATOMIC_RELEASE);
    return true;
}

/* The next tile of the shelf, if it is there: its cache lines. */
INLINE ahead ahead_packed(const lao *local, const lao_shelf *shelf, int64_t t, int64_t tiles) {
    const bool there = shelf->ready && t < tiles && __atomic_load_n(&shelf->ready[t], __ATOMIC_RELAXED) == LAO_PACKED;
    return ahead_of(shelf->tiles + (size_t)t * local->packed_stride, CACHE_LINE, CACHE_LINE,
                    there ? (int64_t)local->packed_stride / CACHE_LINE : 0);
}

/* Which keys of a tile each lane of a panel sees through one rectangle, relative to the tile's first key. */
typedef struct reach {
    int32_t first[PANEL], last[PANEL];
    int64_t begin, end;           /* the union; empty: begin >= end */
    int64_t sure_begin, sure_end; /* every lane sees these */
    bool full;                    /* every lane sees begin .. end-1; first and last are not set then */
} reach;

/* Keys begin .. end-1, of which no vectors of the panel but first .. first + count - 1 see any. */
typedef struct stretch {
    int64_t begin, end;
    int first, count;
} stretch;

KERNEL void reach_of(const lao_block *block, panels p, int64_t index, const lao_rect *rect, int64_t tile_first,
                     int64_t tile_last, reach *out) {
    const int64_t row = index * PANEL, rows = panel_rows(p, index), keys = tile_last - tile_first;
    int64_t a, b, a1, b1;
    if (block->heads == 1 || block->ni == 1) {
        const int64_t top = row_query(block, row), bottom = row_query(block, row + rows - 1);
        out->full = false;
        out->begin = out->end = 0;
        if (bottom < rect->i0 || top >= rect->i0 + rect->ni) return;
        lao_interval(rect, lao_max(top, rect->i0), &a, &b);
        lao_interval(rect, lao_min(bottom, rect->i0 + rect->ni - 1), &a1, &b1);
        out->begin = lao_max(a - tile_first, 0); /* intervals move up with the row: first row's begin, last row's end */
        out->end = lao_min(b1 - tile_first, keys);
        if (out->begin >= out->end) return;
        out->full = top >= rect->i0 && bottom < rect->i0 + rect->ni && a1 - tile_first <= out->begin &&
                    b - tile_first >= out->end;
        if (out->full) return;
    }
    out->begin = keys, out->end = 0;
    out->sure_begin = 0, out->sure_end = keys;
    for (int64_t lane = 0; lane < PANEL; lane++) {
        out->first[lane] = 0, out->last[lane] = (int32_t)keys; /* behind the last row: anything */
        if (lane >= rows) continue;
        const int64_t i = row_query(block, row + lane);
        a = b = 0;
        if (i >= rect->i0 && i < rect->i0 + rect->ni) lao_interval(rect, i, &a, &b);
        a = lao_max(a - tile_first, 0);
        b = lao_min(b - tile_first, keys);
        if (a >= b) a = b = 0;
        out->first[lane] = (int32_t)a, out->last[lane] = (int32_t)b;
        if (a < b) out->begin = lao_min(out->begin, a), out->end = lao_max(out->end, b);
        out->sure_begin = lao_max(out->sure_begin, a), out->sure_end = lao_min(out->sure_end, b);
    }
    out->full = out->begin < out->end && out->sure_begin <= out->begin && out->sure_end >= out->end;
}

/* A panel's keys in order, cut where a vector of rows begins or ends to see any: along the edge of a band a third of the
 * products would be with keys that a whole vector may not see. Tiles take all vectors at once. Returns how many. */
KERNEL int stretches_of(const reach *r, panels p, int64_t index, stretch out[2 * PANEL_VECTORS]) {
    const int nv = panel_vectors(p, index);
    int64_t from[PANEL_VECTORS], to[PANEL_VECTORS], cut[2 * PANEL_VECTORS];
    int cuts = 0, count = 0;
    out[0] = (stretch){r->begin, r->end, 0, nv};
#ifdef SIMD_TILES
    return 1;
#endif
    /* stretches are LANES keys long where bands run along the diagonal; shorter than a step of scores they cost more */
    if (r->full || nv == 1 || LANES < 2 * QK_ROWS) return 1;
    for (int v = 0; v < nv; v++) {
        from[v] = r->end, to[v] = r->begin;
        for (int64_t lane = v * LANES; lane < lao_min((v + 1) * LANES, panel_rows(p, index)); lane++) {
            if (r->first[lane] >= r->last[lane]) continue;
            from[v] = lao_min(from[v], r->first[lane]), to[v] = lao_max(to[v], r->last[lane]);
        }
        const int64_t both[2] = {from[v], to[v]};
        for (int n = 0; n < 2; n++) {
            int at = cuts++;
            for (; at > 0 && cut[at - 1] > both[n]; at--) cut[at] = cut[at - 1];
            cut[at] = both[n];
        }
    }
    for (int n = 0; n + 1 < cuts; n++) {
        int first = nv, last = -1;
        for (int v = 0; v < nv; v++)
            if (from[v] <= cut[n] && cut[n] < to[v]) first = first < v ? first : v, last = v;
        if (cut[n] < cut[n + 1] && last >= 0) out[count++] = (stretch){cut[n], cut[n + 1], first, last - first + 1};
    }
    return count;
}

/* The rectangles of the block that meet keys first .. last-1; *begin, *end: the keys needed, over all rows. */
KERNEL size_t active_rects(const lao_block *block, int64_t first, int64_t last, uint32_t *active, int64_t *begin,
                           int64_t *end) {
    size_t count = 0;
    *begin = last, *end = first;
    for (size_t n = 0; n < block->count; n++) {
        const lao_rect *r = &block->rects[block->ids[n]];
        const int64_t top = lao_max(block->i0, r->i0), bottom = lao_min(block->i0 + block->ni, r->i0 + r->ni) - 1;
        int64_t a, b, a1, b1;
        if (top > bottom || r->j0 >= last || r->j0 + r->nj <= first) continue;
        lao_interval(r, top, &a, &b);
        lao_interval(r, bottom, &a1, &b1);
        a = lao_max(a, first), b1 = lao_min(b1, last);
        if (a >= b1) continue;
        *begin = lao_min(*begin, a), *end = lao_max(*end, b1);
        active[count++] = block->ids[n];
    }
    return count;
}
