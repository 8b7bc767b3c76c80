/* backward.c - runs the backward tasks on the cores. Tasks of one kv head add to the same d_k and d_v; every key tile
 * keeps a line, and tasks pass it in the order in which they were handed out, whoever runs them. So sums have the same
 * bits for any number of threads, all threads can work on one head, and no memory is spent on copies.
 * No deadlock: the oldest unfinished task never waits, because all before it in every line are done. */
#include <omp.h>
#include <string.h>

#include "kernel.h"

typedef struct backward_queue {
    lao *local;
    const lao_backward_args *args;
    lao_run *run;
    omp_lock_t lock;
    int64_t next, tasks, per_head; /* per_head: tasks of one kv head */
    bool sinks;                    /* their gradient is wanted */
} backward_queue;

typedef struct backward_task_id {
    int64_t slot, head, b, g, head_task, tile, chunk, block, nth; /* nth of its kv head */
} backward_task_id;

/* `slots` kv heads run side by side, so that threads seldom stand in the same line. Last tiles first: they have the most
 * keys where the mask is causal. */
static backward_task_id task_of(const lao *local, int64_t n, int64_t per_head) {
    const lao_shape *s = &local->shape;
    const lao_cut *cut = &local->backward;
    const int64_t heads = s->batch * s->kv_heads, wave = n / (local->slots * per_head);
    const int64_t abreast = lao_min(local->slots, heads - wave * local->slots);
    backward_task_id t;
    n -= wave * local->slots * per_head;
    t.slot = n % abreast;
    t.nth = n / abreast;
    t.head = wave * local->slots + t.slot;
    t.b = t.head / s->kv_heads, t.g = t.head % s->kv_heads;
    t.chunk = t.nth % cut->chunks;
    t.head_task = t.nth / cut->chunks % cut->head_tasks;
    t.tile = cut->tiles - 1 - t.nth / cut->chunks / cut->head_tasks;
    t.block = (t.head * cut->head_tasks + t.head_task) * cut->tiles + t.tile;
    return t;
}

/* The key tiles that a block meets: turn[k] 0, in *first .. *last-1; all others -1. */
static void mark_tiles(const lao_block *block, int64_t tile, int32_t *turn, int64_t *first, int64_t *last) {
    const int64_t begin = block->j0 / tile, end = (block->j1 + tile - 1) / tile;
    for (int64_t k = begin; k < end; k++) turn[k] = -1;
    *first = end, *last = begin;
    for (size_t n = 0; n < block->count; n++) {
        int64_t from, to;
        if (!lao_block_keys(block, n, &from, &to)) continue;
        const int64_t k0 = lao_max(from, block->j0) / tile, k1 = (lao_min(to, block->j1) + tile - 1) / tile;
        for (int64_t k = k0; k < k1; k++) turn[k] = 0;
        *first = lao_min(*first, k0), *last = lao_max(*last, k1);
    }
}

/* Under the lock: takes the next task and its place in the lines of the key tiles it meets. false: none left. */
static bool take_task(backward_queue *queue, backward_task_id *t, lao_block *block, int32_t *turn) {
    lao *local = queue->local;
    const int64_t tile = local->backward.k_tile;
    if (queue->next >= queue->tasks) return false;
    *t = task_of(local, queue->next, queue->per_head);
    int32_t *issued = local->issued + t->slot * local->key_tiles;
    if (t->nth == 0) {
        while (__atomic_load_n(&local->left[t->slot], __ATOMIC_ACQUIRE) != 0) { /* the slot's last head still runs */
            if (lao_stopped(queue->run)) return false;
            lao_rest(queue->run);
        }
        memset(issued, 0, (size_t)local->key_tiles * sizeof *issued);
        memset(local->passed + t->slot * local->key_tiles, 0, (size_t)local->key_tiles * sizeof *issued);
        memset(local->ready + t->slot * local->key_tiles, 0, (size_t)local->key_tiles * sizeof *issued);
        local->left[t->slot] = queue->per_head;
    }
    queue->next++;
    *block = lao_block_of(local, &local->backward, t->b, t->g, t->head_task, t->tile, t->chunk);
    int64_t first, last;
    mark_tiles(block, tile, turn, &first, &last);
    for (int64_t k = first; k < last; k++)
        if (turn[k] == 0) turn[k] = issued[k]++;
    return true;
}

/* The last block of a kv head writes d_k and d_v of its keys, tile by tile, once everyone has been there. */
static void write_keys(backward_queue *queue, const backward_task_id *t, const lao_block *block, void *work) {
    lao *local = queue->local;
    const int64_t tile = local->backward.k_tile;
    const int32_t *issued = local->issued + t->slot * local->key_tiles;
    const int32_t *passed = local->passed + t->slot * local->key_tiles;
    if (!queue->args->d_k.data && !queue->args->d_v.data) return;
    for (int64_t k = block->j0 / tile; k * tile < block->j1; k++) {
        if (!lao_await(&passed[k], issued[k], queue->run)) return;
        local->kernels->backward_keys(local, queue->args, t->b, t->g, k, issued[k] > 0, work,
                                      local->sums + (size_t)t->slot * local->sums_stride);
    }
}

static void work_on(backward_queue *queue, int thread) {
    lao *local = queue->local;
    const lao_cut *cut = &local->backward;
    char *work = local->work + (size_t)thread * local->work_stride;
    int32_t *turn = local->turn + thread * local->key_tiles;
    for (;;) {
        backward_task_id t;
        lao_block block;
        while (!omp_test_lock(&queue->lock)) lao_rest(queue->run); /* whoever has it may be waiting for a slot */
        const bool some = !lao_stopped(queue->run) && take_task(queue, &t, &block, turn);
        omp_unset_lock(&queue->lock);
        if (!some) return;
        const int64_t row = t.slot * local->key_tiles;
        const lao_line line = {turn,
                               local->passed + row,
                               local->sums + (size_t)t.slot * local->sums_stride,
                               {local->ready + row, local->packed + (size_t)row * local->packed_stride}};
        char *partial = local->partials + (size_t)(t.block * cut->chunks + t.chunk) * local->partial_stride;
        double *d_sink = local->d_sink + (t.block * cut->chunks + t.chunk) * cut->heads;
        local->kernels->backward(local, queue->args, &block, work, cut->chunks > 1 ? partial : NULL, &line,
                                 queue->sinks ? d_sink : NULL, queue->run);
        if (t.nth >= queue->per_head - cut->chunks) write_keys(queue, &t, &block, work);
        __atomic_sub_fetch(&local->left[t.slot], 1, __ATOMIC_RELEASE);
    }
}

/* The partial sums of the blocks and chunks, in their order. */
static void sum_sinks(const lao *local, const lao_backward_args *args) {
    const lao_shape *s = &local->shape;
    const lao_cut *cut = &local->backward;
    const int64_t group = s->q_heads / s->kv_heads;
    for (int64_t h = 0; h < s->q_heads; h++) {
        const int64_t g = h / group, head_task = h % group / cut->heads, within = h % group % cut->heads;
        double total = 0;
        for (int64_t b = 0; b < s->batch && s->q_tokens; b++) {
            const int64_t first = ((b * s->kv_heads + g) * cut->head_tasks + head_task) * cut->tiles;
            for (int64_t n = first * cut->chunks; n < (first + cut->tiles) * cut->chunks; n++)
                total += local->d_sink[n * cut->heads + within];
        }
        if (args->sink_sums) {
            args->sink_sums[h] += total;
        } else if (s->dtype == BURST_F64) {
            double *out = (double *)args->d_sink + h;
            *out = total + (args->accumulate_q ? *out : 0);
        } else {
            float *out = (float *)args->d_sink + h;
            *out = (float)(total + (args->accumulate_q ? (double)*out : 0));
        }
    }
}

/* No query or no key at all: the gradients that are wanted are 0. */
static void write_zeros(lao *local, const lao_backward_args *args) {
    for (int64_t head = 0; head < local->shape.batch * local->shape.kv_heads; head++) {
        for (int64_t k = 0; k * local->backward.k_tile < local->shape.k_tokens; k++) {
            local->kernels->backward_keys(local, args, head / local->shape.kv_heads, head % local->shape.kv_heads, k,
                                          false, local->work, local->sums);
        }
    }
}

burst_status lao_backward(lao *local, const lao_backward_args *args) {
    const lao_cut *cut = &local->backward;
    const int64_t heads = local->shape.batch * local->shape.kv_heads;
    lao_run run = {.pulse = args->pulse, .total = local->pairs * (double)local->shape.q_heads};
    backward_queue queue = {.local = local, .args = args, .run = &run};
    queue.sinks = args->d_sink || args->sink_sums;
    if (local->shape.q_tokens == 0) {
        write_zeros(local, args);
        if (queue.sinks) sum_sinks(local, args);
        return BURST_OK;
    }
    queue.per_head = cut->head_tasks * cut->tiles * cut->chunks;
    queue.tasks = heads * queue.per_head;
    memset(local->left, 0, (size_t)local->slots * sizeof *local->left);
    omp_init_lock(&queue.lock);
#pragma omp parallel num_threads(local->options.threads)
    {
        work_on(&queue, omp_get_thread_num());
        lao_done(&run);
#pragma omp barrier
        if (cut->chunks > 1 && args->d_q.data && !lao_stopped(&run)) {
            char *work = local->work + (size_t)omp_get_thread_num() * local->work_stride;
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < heads * cut->head_tasks * cut->tiles; n++) {
                const int64_t head = n / (cut->head_tasks * cut->tiles);
                const lao_block block =
                    lao_block_of(local, cut, head / local->shape.kv_heads, head % local->shape.kv_heads,
                                 n / cut->tiles % cut->head_tasks, n % cut->tiles, 0);
                local->kernels->backward_merge(local, args, &block, work,
                                               local->partials + (size_t)(n * cut->chunks) * local->partial_stride,
                                               local->partial_stride);
            }
        }
    }
    omp_destroy_lock(&queue.lock);
    if (lao_stopped(&run)) return base_fail(BURST_CANCELLED, "backward was cancelled; its outputs are undefined");
    if (queue.sinks) sum_sinks(local, args);
    return BURST_OK;
}
