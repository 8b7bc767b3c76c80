/* lao.c - makes a local plan: how each pass is cut into tasks, which rectangles meet which tile, all memory.
 * One idea: the cut depends on the problem alone, so results have the same bits for any number of threads. */
#include <math.h>
#include <omp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel.h"

/* Tile sizes: measured on Zen 3 (32 KiB L1, 512 KiB L2). The query tile amortises packing keys and values: 84 / 87 / 89 %
 * of peak for 192 / 384 / 768 queries at d = 128; key tiles from 96 to 384 are alike. */
enum {
    FORWARD_Q = 1536,
    FORWARD_K = 192,
    BACKWARD_Q = 288,
    BACKWARD_K = 96,
    SMALLEST_Q = 192,  /* forward tiles are not cut smaller to make more tasks */
    ENOUGH_TASKS = 32, /* below this many, tiles shrink, then keys are split into chunks */
    MANY_TASKS = 64,
    SMALLEST_CHUNK = 1024,
    LARGEST_CHUNK = 4096, /* decoding: opening and closing a task costs some 1000 cycles */
    TOGETHER = 8,         /* kv heads: 8 of [tokens][heads][dim] are read at 12 GB/s side by side, at 8 one by one */
    KEY_STEP = 48,        /* key tiles are multiples of it: every kernel set's step divides it */
    ROW_STEP = 48         /* likewise for queries: a whole number of panels of 3 vectors for 1, 4, 8 and 16 lanes */
};

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Few queries: heads of a group share a task, so that a loaded key serves them all. */
static void cut_rows(const lao_shape *s, int64_t q_tile, lao_cut *cut) {
    const int64_t group = s->q_heads / s->kv_heads, n = lao_max(s->q_tokens, 1);
    cut->q_tile = lao_min(lao_round_up(q_tile, ROW_STEP), lao_round_up(n, ROW_STEP));
    cut->tiles = ceil_div(n, cut->q_tile);
    cut->heads = n <= 96 ? lao_min(group, lao_max(1, SMALLEST_Q / n)) : 1;
    cut->head_tasks = ceil_div(group, cut->heads);
    cut->rows = lao_min(cut->q_tile, n) * cut->heads;
}

static void cut_chunks(const lao_shape *s, lao_cut *cut) {
    const int64_t blocks = s->batch * s->kv_heads * cut->head_tasks * cut->tiles, n = lao_max(s->k_tokens, 1);
    cut->chunks = 1;
    cut->together = cut->rows <= LAO_FEW_ROWS ? lao_min(s->kv_heads, TOGETHER) : 1;
    const int64_t tasks = ceil_div(blocks, cut->together); /* of a chunk */
    if (cut->rows <= LAO_FEW_ROWS)                         /* decoding */
        cut->chunks = lao_max(1, n / lao_max(SMALLEST_CHUNK, lao_min(LARGEST_CHUNK, n * tasks / MANY_TASKS)));
    else if (blocks < ENOUGH_TASKS)
        cut->chunks = lao_max(1, lao_min(ceil_div(MANY_TASKS, blocks), n / SMALLEST_CHUNK));
    cut->chunk = lao_round_up(ceil_div(n, cut->chunks), cut->k_tile);
    cut->chunks = ceil_div(n, cut->chunk);
}

static void cut_forward(const lao_shape *s, const lao_options *o, lao_cut *cut) {
    const int64_t rows = s->batch * s->q_heads * lao_max(s->q_tokens, 1), wide = lao_max(s->head_dim, s->value_dim);
    int64_t q_tile = lao_max(SMALLEST_Q, lao_min(FORWARD_Q, rows / ENOUGH_TASKS));
    if (wide > 256) q_tile = lao_min(q_tile, FORWARD_Q / 2);
    cut->k_tile = o->k_tile ? lao_round_up(o->k_tile, KEY_STEP) : wide > 256 ? FORWARD_K / 2 : FORWARD_K;
    cut->k_tile = lao_min(cut->k_tile, lao_round_up(lao_max(s->k_tokens, 1), KEY_STEP));
    cut_rows(s, o->q_tile ? o->q_tile : q_tile, cut);
    cut_chunks(s, cut);
}

static void cut_backward(const lao_shape *s, lao_cut *cut) {
    const int64_t wide = lao_max(s->head_dim, s->value_dim);
    cut->k_tile = lao_min(BACKWARD_K, lao_round_up(lao_max(s->k_tokens, 1), KEY_STEP));
    cut_rows(s, wide > 256 ? BACKWARD_Q / 2 : BACKWARD_Q, cut);
    cut_chunks(s, cut);
}

/* Counts (ids NULL) or fills the index of one list. */
static size_t index_list(const lao_list *list, const lao_cut *cut, uint32_t *start, uint32_t *ids, size_t at) {
    if (!ids) memset(start, 0, (size_t)(cut->tiles + 1) * sizeof *start);
    for (size_t n = 0; n < list->count; n++) {
        const lao_rect *r = &list->rects[n];
        if (r->ni <= 0 || r->nj <= 0) continue;
        for (int64_t t = r->i0 / cut->q_tile; t <= (r->i0 + r->ni - 1) / cut->q_tile; t++) {
            if (ids)
                ids[start[t]++] = (uint32_t)n;
            else
                start[t + 1]++;
        }
    }
    if (ids) { /* start[t] has moved to the end of t: move back */
        for (int64_t t = cut->tiles; t > 0; t--) start[t] = start[t - 1];
        start[0] = (uint32_t)at;
        return at;
    }
    start[0] = (uint32_t)at;
    for (int64_t t = 0; t < cut->tiles; t++) start[t + 1] += start[t];
    return start[cut->tiles];
}

static size_t index_ids(const lao_shape *s, const lao_cut *cut) {
    size_t total = 0;
    for (int64_t l = 0; l < s->list_count; l++) {
        for (size_t n = 0; n < s->lists[l].count; n++) {
            const lao_rect *r = &s->lists[l].rects[n];
            if (r->ni > 0 && r->nj > 0) total += (size_t)((r->i0 + r->ni - 1) / cut->q_tile - r->i0 / cut->q_tile + 1);
        }
    }
    return total;
}

static void index_fill(const lao_shape *s, lao_cut *cut) {
    size_t at = 0;
    cut->index.tiles = cut->tiles;
    cut->index.most = 0;
    for (int64_t l = 0; l < s->list_count; l++) {
        uint32_t *start = cut->index.start + l * (cut->tiles + 1);
        const size_t end = index_list(&s->lists[l], cut, start, NULL, at);
        index_list(&s->lists[l], cut, start, cut->index.ids, at);
        for (int64_t t = 0; t < cut->tiles; t++) {
            cut->index.most = lao_max(cut->index.most, (int64_t)start[t + 1] - start[t]);
        }
        at = end;
    }
}

lao_block lao_block_of(const lao *local, const lao_cut *cut, int64_t b, int64_t g, int64_t head_task, int64_t tile,
                       int64_t chunk) {
    const lao_shape *s = &local->shape;
    const int64_t group = s->q_heads / s->kv_heads, list = s->list_count == 1 ? 0 : b;
    const uint32_t *start = cut->index.start + list * (cut->tiles + 1) + tile;
    lao_block block = {.b = b, .g = g};
    block.h0 = g * group + head_task * cut->heads;
    block.heads = lao_min(cut->heads, group - head_task * cut->heads);
    block.i0 = tile * cut->q_tile;
    block.ni = lao_min(cut->q_tile, s->q_tokens - block.i0);
    block.j0 = chunk * cut->chunk;
    block.j1 = lao_min(block.j0 + cut->chunk, s->k_tokens);
    block.rects = s->lists[list].rects;
    block.ids = cut->index.ids + start[0];
    block.count = start[1] - start[0];
    block.together = 1;
    return block;
}

bool lao_block_keys(const lao_block *block, size_t n, int64_t *first, int64_t *last) {
    const lao_rect *r = &block->rects[block->ids[n]];
    const int64_t top = lao_max(block->i0, r->i0), bottom = lao_min(block->i0 + block->ni, r->i0 + r->ni) - 1;
    int64_t end;
    if (top > bottom) return false;
    lao_interval(r, top, first, &end);
    lao_interval(r, bottom, &end, last);
    return *first < *last;
}

bool lao_block_meets(const lao_block *block, int64_t first, int64_t last) {
    for (size_t n = 0; n < block->count; n++) {
        int64_t from, to;
        if (lao_block_keys(block, n, &from, &to) && lao_max(from, first) < lao_min(to, last)) return true;
    }
    return false;
}

/* The keys that a tile's rows meet, roughly (a trapezoid per rectangle): for the order of tasks and for progress. */
static double tile_cost(const lao *local, int64_t list, int64_t tile) {
    const lao_cut *cut = &local->forward;
    const uint32_t *start = cut->index.start + list * (cut->tiles + 1) + tile;
    double pairs = 0;
    for (uint32_t n = start[0]; n < start[1]; n++) {
        const lao_rect *r = &local->shape.lists[list].rects[cut->index.ids[n]];
        const int64_t top = lao_max(tile * cut->q_tile, r->i0);
        const int64_t bottom = lao_min((tile + 1) * cut->q_tile, r->i0 + r->ni) - 1;
        int64_t a, b, a1, b1;
        lao_interval(r, top, &a, &b);
        lao_interval(r, bottom, &a1, &b1);
        pairs += 0.5 * (double)(b - a + b1 - a1) * (double)(bottom - top + 1);
    }
    return pairs;
}

typedef struct costed {
    double cost;
    int64_t list, tile;
} costed;

static int longer_first(const void *a, const void *b) {
    const costed *x = a, *y = b;
    if (x->list != y->list) return x->list < y->list ? -1 : 1;
    if (x->cost != y->cost) return x->cost > y->cost ? -1 : 1;
    return x->tile < y->tile ? -1 : x->tile > y->tile;
}

static burst_status order_tiles(lao *local) {
    const lao_shape *s = &local->shape;
    const int64_t count = s->list_count * local->forward.tiles;
    costed *all = base_alloc((size_t)count * sizeof *all);
    if (!all) return base_fail(BURST_MEMORY, "no memory for %lld task costs", (long long)count);
    local->pairs = 0;
    for (int64_t n = 0; n < count; n++) {
        const int64_t list = n / local->forward.tiles, tile = n % local->forward.tiles;
        all[n] = (costed){tile_cost(local, list, tile), list, tile};
        local->pairs += all[n].cost * (s->list_count == 1 ? (double)s->batch : 1);
    }
    qsort(all, (size_t)count, sizeof *all, longer_first);
    for (int64_t n = 0; n < count; n++) local->order[n] = all[n].tile;
    base_free(all);
    return BURST_OK;
}

/* Carves aligned arrays; with base NULL it only measures. Sizes are checked: `over` is set when they overflow. */
typedef struct ruler {
    char *base;
    size_t used;
    bool over;
} ruler;

static void *take(ruler *r, int64_t count, size_t size) {
    size_t bytes = 0, sum = 0;
    void *at = r->base ? r->base + r->used : NULL;
    if (!base_multiply((size_t)count, size, &bytes) || !base_add(bytes, 63, &bytes) ||
        !base_add(r->used, bytes / 64 * 64, &sum)) {
        r->over = true;
        return NULL;
    }
    r->used = sum;
    return at;
}

static void take_tables(lao *local, ruler *r) {
    const lao_shape *s = &local->shape;
    lao_cut *cuts[2] = {&local->forward, &local->backward};
    for (int n = 0; n < 2; n++) {
        cuts[n]->index.start = take(r, s->list_count * (cuts[n]->tiles + 1), sizeof(uint32_t));
        cuts[n]->index.ids = take(r, (int64_t)index_ids(s, cuts[n]), sizeof(uint32_t));
    }
    local->order = take(r, s->list_count * local->forward.tiles, sizeof(int64_t));
}

int64_t lao_blocks(const lao_shape *s, const lao_cut *cut) {
    return s->batch * s->kv_heads * cut->head_tasks * cut->tiles;
}

static void take_memory(lao *local, ruler *r) {
    const lao_shape *s = &local->shape;
    const bool forward = local->passes & BURST_PASS_FORWARD, backward = local->passes & BURST_PASS_BACKWARD;
    const int64_t threads = local->options.threads;
    int64_t partials_f = 0, partials_b = 0;
    if (forward && local->forward.chunks > 1) partials_f = lao_blocks(s, &local->forward) * local->forward.chunks;
    if (backward && local->backward.chunks > 1) partials_b = lao_blocks(s, &local->backward) * local->backward.chunks;
    const int64_t shelves = local->forward_slots * local->forward_key_tiles;
    const int64_t tiles_f = !forward ? 0 : local->forward_slots ? shelves : threads;
    const int64_t tiles_b = backward ? local->slots * local->key_tiles : 0;
    local->work = take(r, threads, local->work_stride);
    local->partials = take(r, lao_max(partials_f, partials_b), local->partial_stride);
    local->packed = take(r, lao_max(tiles_f, tiles_b), local->packed_stride);
    local->ready = take(r, lao_max(tiles_f, tiles_b), sizeof(int32_t));
    local->left = take(r, lao_max(local->slots, local->forward_slots), sizeof(int64_t));
    local->owner = take(r, local->forward_slots, sizeof(int64_t));
    if (!backward) return;
    local->sums = take(r, local->slots, local->sums_stride);
    local->issued = take(r, local->slots * local->key_tiles, sizeof(int32_t));
    local->passed = take(r, local->slots * local->key_tiles, sizeof(int32_t));
    local->turn = take(r, threads * local->key_tiles, sizeof(int32_t));
    local->d_sink = take(r, s->sink ? lao_blocks(s, &local->backward) * local->backward.chunks : 0,
                         (size_t)local->backward.heads * sizeof(double));
}

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Heads in work at a time, forward: enough tasks for all threads, and one more, so that the end of a head is no wait.
 * None where keys serve one task only: each thread then packs into a tile of its own. */
static int64_t forward_slots(const lao *local) {
    const lao_cut *cut = &local->forward;
    const int64_t tasks = cut->head_tasks * cut->tiles * cut->chunks;
    if (!(local->passes & BURST_PASS_FORWARD) || cut->head_tasks * cut->tiles == 1) return 0;
    return lao_min(local->shape.batch * local->shape.kv_heads, ceil_div(local->options.threads, tasks) + 1);
}

static void measure(lao *local) {
    const lao_kernels *k = local->kernels;
    const bool forward = local->passes & BURST_PASS_FORWARD;
    const bool backward = local->passes & BURST_PASS_BACKWARD;
    local->key_tiles = ceil_div(lao_max(local->shape.k_tokens, 1), local->backward.k_tile);
    local->slots = lao_min(local->options.threads, local->shape.batch * local->shape.kv_heads);
    local->forward_key_tiles = ceil_div(lao_max(local->shape.k_tokens, 1), local->forward.k_tile);
    local->forward_slots = forward_slots(local);
    local->work_stride = larger(forward ? k->forward_bytes(local) : 0, backward ? k->backward_bytes(local) : 0);
    /* neighbours' workspaces do not start at the same place of a cache set */
    local->work_stride += 4096 + 64;
    local->partial_stride = larger(forward ? k->forward_partial(local) : 0, backward ? k->backward_partial(local) : 0);
    local->partial_stride = (local->partial_stride + 63) / 64 * 64;
    local->packed_stride = larger(forward ? k->packed_bytes(local, &local->forward) : 0,
                                  backward ? k->packed_bytes(local, &local->backward) : 0);
    local->packed_stride = (local->packed_stride + 63) / 64 * 64;
    local->sums_stride = backward ? (k->sums_bytes(local) + 63) / 64 * 64 : 0;
}

/* What the tables cannot number is refused before they are made. */
static burst_status check_ranges(const lao *local) {
    const lao_shape *s = &local->shape;
    if (index_ids(s, &local->forward) > UINT32_MAX || index_ids(s, &local->backward) > UINT32_MAX)
        return base_fail(BURST_UNSUPPORTED, "the mask has too many slices for so many tiles of queries");
    for (int64_t l = 0; l < s->list_count && s->alibi; l++)
        for (size_t n = 0; n < s->lists[l].count; n++)
            if (s->lists[l].rects[n].diag > INT32_MAX / 4 || s->lists[l].rects[n].diag < -INT32_MAX / 4)
                return base_fail(BURST_UNSUPPORTED, "ALiBi distances are 32 bit: a slice's diag is %lld, at most %d",
                                 (long long)s->lists[l].rects[n].diag, INT32_MAX / 4);
    return BURST_OK;
}

/* The index and the order of tasks. Without them the rest of the memory is only known from above (`most`). */
static burst_status make_tables(lao *local, size_t limit, size_t *bytes) {
    const lao_shape *s = &local->shape;
    ruler r = {NULL, 0, false};
    take_tables(local, &r);
    *bytes = r.used;
    if (r.over) return base_fail(BURST_MEMORY, "the tables of this plan do not fit the address space");
    if (r.used > limit) {
        for (int64_t l = 0; l < s->list_count; l++) {
            local->forward.index.most = lao_max(local->forward.index.most, (int64_t)s->lists[l].count);
        }
        local->backward.index.most = local->forward.index.most;
        return BURST_OK;
    }
    r.base = local->tables = base_alloc(r.used);
    if (!r.base) return base_fail(BURST_MEMORY, "no memory for the plan's tables: %zu bytes needed", r.used);
    r.used = 0;
    take_tables(local, &r);
    index_fill(s, &local->forward);
    index_fill(s, &local->backward);
    return order_tiles(local);
}

/* The largest of the rounds' workspaces serves all. */
static burst_status make_memory(lao *first, size_t tables) {
    const lao_options *o = &first->options;
    size_t most = 0, total = 0;
    bool fits = true;
    for (size_t n = 0; n < first->count; n++) {
        ruler r = {NULL, 0, false};
        measure(first + n);
        take_memory(first + n, &r);
        fits = fits && !r.over;
        most = larger(most, r.used);
    }
    if (!fits || !base_add(most, tables, &first->bytes) ||
        !base_add(first->bytes, first->count * sizeof *first, &first->bytes) ||
        !base_add(first->bytes, o->memory_used, &total))
        return base_fail(BURST_MEMORY, "the workspace of this problem does not fit the address space");
    if (total > o->memory_limit) {
        return base_fail(BURST_MEMORY, "the plan needs %zu bytes of workspace, the memory limit is %zu", total,
                         o->memory_limit);
    }
    if (o->dry) return BURST_OK;
    first->memory = base_alloc(most);
    if (!first->memory) return base_fail(BURST_MEMORY, "no memory: the plan needs %zu bytes of workspace", total);
    for (size_t n = 0; n < first->count; n++) {
        ruler r = {first->memory, 0, false};
        take_memory(first + n, &r);
    }
    return BURST_OK;
}

static burst_status make_round(lao *local, const lao_round *round, const lao_options *options, size_t *tables) {
    size_t bytes = 0;
    local->shape = round->shape;
    local->passes = round->passes;
    local->options = *options;
    local->kernels = lao_kernels_of(options->isa, round->shape.dtype);
    cut_forward(&local->shape, options, &local->forward);
    cut_backward(&local->shape, &local->backward);
    burst_status status = check_ranges(local);
    if (status == BURST_OK) status = make_tables(local, options->memory_limit, &bytes);
    *tables += bytes; /* far from overflow: each has been allocated, or is beyond the limit */
    return status;
}

burst_status lao_create(const lao_round *rounds, size_t count, const lao_options *options, lao **result) {
    lao *first = base_alloc(count * sizeof *first);
    size_t tables = 0;
    burst_status status = BURST_OK;
    if (!first) return base_fail(BURST_MEMORY, "no memory for local plans: %zu bytes needed", count * sizeof *first);
    memset(first, 0, count * sizeof *first);
    first->count = count;
    for (size_t n = 0; n < count && status == BURST_OK; n++)
        status = make_round(first + n, &rounds[n], options, &tables);
    if (status == BURST_OK) status = make_memory(first, tables);
    if (status != BURST_OK) {
        lao_free(first);
        return status;
    }
    *result = first;
    return BURST_OK;
}

lao *lao_at(lao *first, size_t n) { return first + n; }

void lao_free(lao *first) {
    if (!first) return;
    for (size_t n = 0; n < first->count; n++) base_free(first[n].tables);
    base_free(first->memory);
    base_free(first);
}

size_t lao_bytes(const lao *first) { return first->bytes; }

static void describe_cut(const lao *local, const lao_cut *cut, const char *pass, char *text, size_t size) {
    const int64_t tasks = lao_blocks(&local->shape, cut) * cut->chunks;
    const int used =
        snprintf(text, size, "%s: tiles of %lld queries x %lld keys, %lld head%s a task, %lld key chunk%s, %lld tasks",
                 pass, (long long)cut->q_tile, (long long)cut->k_tile, (long long)cut->heads,
                 cut->heads == 1 ? "" : "s", (long long)cut->chunks, cut->chunks == 1 ? "" : "s", (long long)tasks);
    if (cut == &local->forward && cut->together > 1) /* see lao_forward */
        snprintf(text + used, size - (size_t)used, "; without statistics %lld, of up to %lld kv heads each\n",
                 (long long)(tasks / local->shape.kv_heads * ceil_div(local->shape.kv_heads, cut->together)),
                 (long long)cut->together);
    else
        snprintf(text + used, size - (size_t)used, "\n");
}

size_t lao_describe(const lao *local, char *text, size_t size) {
    size_t used = 0;
    char line[256];
    for (int n = 0; n < 3; n++) {
        if (n == 1 && !(local->passes & BURST_PASS_FORWARD)) continue;
        if (n == 2 && !(local->passes & BURST_PASS_BACKWARD)) continue;
        if (n == 0) {
            snprintf(line, sizeof line, "kernels: %s, %d lane%s, %d thread%s\n", local->kernels->name,
                     local->kernels->lanes, local->kernels->lanes == 1 ? "" : "s", local->options.threads,
                     local->options.threads == 1 ? "" : "s");
        } else {
            describe_cut(local, n == 1 ? &local->forward : &local->backward, n == 1 ? "forward" : "backward", line,
                         sizeof line);
        }
        const size_t length = strlen(line);
        if (used < size) snprintf(text + used, size - used, "%s", line);
        used += length;
    }
    return used;
}

static void pulse(lao_run *run) {
    const double now = base_seconds();
    if (now - run->last < 0.001) return; /* MPI wants to be asked about once a millisecond; a caller no more often */
    run->last = now;
    double done;
#pragma omp atomic read
    done = run->done;
    const double share = run->total > 0 ? done / run->total : 1;
    if (run->pulse.call(run->pulse.user, share < 1 ? share : 1)) __atomic_store_n(&run->stop, 1, __ATOMIC_RELAXED);
}

void lao_tick(lao_run *run, double pairs) {
    if (!run->pulse.call) return;
#pragma omp atomic update
    run->done += pairs;
    if (omp_get_thread_num() == 0) pulse(run);
}

void lao_rest(lao_run *run) {
    if (run->pulse.call && omp_get_thread_num() == 0) pulse(run);
    sched_yield();
}

void lao_done(lao_run *run) {
    const struct timespec pause = {0, 100000};
    if (omp_get_thread_num() != 0) {
        __atomic_add_fetch(&run->finished, 1, __ATOMIC_RELEASE);
        return;
    }
    if (!run->pulse.call) return;
    while (__atomic_load_n(&run->finished, __ATOMIC_ACQUIRE) < omp_get_num_threads() - 1) {
        pulse(run);
        nanosleep(&pause, NULL);
    }
}

bool lao_await(const int32_t *flag, int32_t value, lao_run *run) {
    for (int64_t spins = 0; __atomic_load_n(flag, __ATOMIC_ACQUIRE) != value; spins++) {
        if (lao_stopped(run)) return false;
        if (spins > 1000) lao_rest(run);
    }
    return true;
}
