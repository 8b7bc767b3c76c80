/* forward.c - runs the forward tasks on the cores, then the merge of key chunks if there are any.
 * Tasks go kv head by kv head, the longest tiles of each first. A head in work has a shelf where its keys are packed once
 * for all its tasks; the next head may begin while the last tasks of the one before still run.
 * Where keys serve one task only there is no shelf: each thread packs into a tile of its own, or reads keys where they lie
 * (few rows); and the heads of the same keys follow each other, because they share pages. */
#include <omp.h>
#include <string.h>

#include "kernel.h"

typedef struct forward_queue {
    lao *local;
    const lao_forward_args *args;
    lao_run *run;
    bool few, alone;
    int64_t next, tasks, per_head, together;
} forward_queue;

typedef struct forward_task_id {
    int64_t head, b, g, head_task, tile, chunk;
    int64_t block; /* number of the block: where its partial results lie */
} forward_task_id;

static forward_task_id task_of(const forward_queue *queue, int64_t n, int64_t chunks, int64_t together) {
    const lao_shape *s = &queue->local->shape;
    const lao_cut *cut = &queue->local->forward;
    const int64_t side = (s->kv_heads + together - 1) / together, heads = s->batch * side;
    const int64_t per_head = cut->head_tasks * cut->tiles * chunks;
    forward_task_id t;
    t.head = queue->alone ? n % heads : n / per_head;
    n = queue->alone ? n / heads : n % per_head;
    t.b = t.head / side, t.g = t.head % side * together;
    t.head = t.b * s->kv_heads + t.g;
    t.chunk = n % chunks, n /= chunks;
    t.head_task = n % cut->head_tasks, n /= cut->head_tasks;
    t.tile = queue->local->order[(s->list_count == 1 ? 0 : t.b) * cut->tiles + n];
    t.block = (t.head * cut->head_tasks + t.head_task) * cut->tiles + t.tile;
    return t;
}

/* Waits until the head has its slot; whoever has its first task takes the slot over. No deadlock: tasks of an earlier
 * head have all been handed out and wait for no later one. false: stopped. */
static bool open_shelf(forward_queue *queue, const forward_task_id *t, bool first, lao_shelf *shelf) {
    lao *local = queue->local;
    const int64_t slot = t->head % local->forward_slots, row = slot * local->forward_key_tiles;
    shelf->ready = local->ready + row;
    shelf->tiles = local->packed + (size_t)row * local->packed_stride;
    if (first) {
        while (__atomic_load_n(&local->left[slot], __ATOMIC_ACQUIRE) != 0) {
            if (lao_stopped(queue->run)) return false;
            lao_rest(queue->run);
        }
        memset(shelf->ready, 0, (size_t)local->forward_key_tiles * sizeof *shelf->ready);
        __atomic_store_n(&local->left[slot], queue->per_head, __ATOMIC_RELAXED);
        __atomic_store_n(&local->owner[slot], t->head, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&local->owner[slot], __ATOMIC_ACQUIRE) != t->head) {
        if (lao_stopped(queue->run)) return false;
        lao_rest(queue->run);
    }
    return true;
}

/* Nothing to add to the running result. */
static bool is_idle(const lao_forward_args *args, const lao_block *block) {
    return args->state.acc && !args->fresh && block->count == 0;
}

/* A chunk of keys that no row sees leaves nothing to merge. */
static bool is_empty(const lao_cut *cut, const lao_block *block) {
    return cut->chunks > 1 && !lao_block_meets(block, block->j0, block->j1);
}

static void work_on(forward_queue *queue, char *work) {
    lao *local = queue->local;
    const lao_cut *cut = &local->forward;
    for (;;) {
        const int64_t n = __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED);
        if (n >= queue->tasks || lao_stopped(queue->run)) return;
        const forward_task_id t = task_of(queue, n, cut->chunks, queue->together);
        lao_block block = lao_block_of(local, cut, t.b, t.g, t.head_task, t.tile, t.chunk);
        block.together = lao_min(queue->together, local->shape.kv_heads - t.g);
        const bool idle = is_idle(queue->args, &block) || is_empty(cut, &block);
        char *partial = local->partials + (size_t)(t.block * cut->chunks + t.chunk) * local->partial_stride;
        lao_shelf shelf;
        if (queue->alone) {
            shelf.ready = NULL;
            shelf.tiles = local->packed + (size_t)omp_get_thread_num() * local->packed_stride;
        } else if (!open_shelf(queue, &t, n % queue->per_head == 0, &shelf)) {
            return;
        }
        if (!idle) {
            local->kernels->forward(local, queue->args, &block, work, cut->chunks > 1 ? partial : NULL,
                                    queue->few ? NULL : &shelf, queue->run);
        }
        if (!queue->alone) __atomic_sub_fetch(&local->left[t.head % local->forward_slots], 1, __ATOMIC_RELEASE);
    }
}

burst_status lao_forward(lao *local, const lao_forward_args *args) {
    const lao_cut *cut = &local->forward;
    const int64_t blocks = lao_blocks(&local->shape, cut);
    lao_run run = {.pulse = args->pulse, .total = local->pairs * (double)local->shape.q_heads};
    forward_queue queue = {.local = local, .args = args, .run = &run};
    if (local->shape.q_tokens == 0) return BURST_OK;
    /* Backward takes its scores from the panels' products, bit for bit, or large scores would not fit their statistics:
     * a forward with statistics must do the same. */
    queue.few = cut->rows <= LAO_FEW_ROWS && !args->exact;
    queue.alone = local->forward_slots == 0;
    queue.per_head = cut->head_tasks * cut->tiles * cut->chunks;
    queue.together = queue.few ? cut->together : 1;
    queue.tasks = local->shape.batch * ((local->shape.kv_heads + queue.together - 1) / queue.together) * queue.per_head;
    for (int64_t slot = 0; slot < local->forward_slots; slot++) local->left[slot] = 0, local->owner[slot] = -1;
#pragma omp parallel num_threads(local->options.threads)
    {
        char *work = local->work + (size_t)omp_get_thread_num() * local->work_stride;
        work_on(&queue, work);
        lao_done(&run);
#pragma omp barrier
        if (cut->chunks > 1 && !lao_stopped(&run)) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < blocks; n++) {
                const forward_task_id t = task_of(&queue, n, 1, 1);
                const lao_block block = lao_block_of(local, cut, t.b, t.g, t.head_task, t.tile, 0);
                const char *partials = local->partials + (size_t)(t.block * cut->chunks) * local->partial_stride;
                if (is_idle(args, &block)) continue;
                local->kernels->forward_merge(local, args, &block, work, partials, local->partial_stride);
            }
        }
    }
    if (lao_stopped(&run)) return base_fail(BURST_CANCELLED, "forward was cancelled; its outputs are undefined");
    return BURST_OK;
}
