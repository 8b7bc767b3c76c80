/* forward.c - runs the forward tasks on the cores: a queue, longest first, then the merge of key chunks if there are any. */
#include <omp.h>

#include "kernel.h"

typedef struct forward_task_id {
    int64_t b, g, head_task, tile, chunk;
    int64_t block; /* number of the block: where its partial results lie */
} forward_task_id;

/* Task n of the queue: tiles in order of cost, and within a tile all that cost the same. */
static forward_task_id task_of(const lao *local, int64_t n, int64_t chunks) {
    const lao_shape *s = &local->shape;
    const lao_cut *cut = &local->forward;
    const int64_t rows = s->list_count == 1 ? s->batch : 1, same = rows * s->kv_heads * cut->head_tasks * chunks;
    const int64_t id = local->order[n / same];
    forward_task_id t;
    n %= same;
    t.head_task = n % cut->head_tasks, n /= cut->head_tasks;
    t.g = n % s->kv_heads, n /= s->kv_heads;
    t.chunk = n % chunks, n /= chunks; /* heads of the same keys one after the other: they share pages */
    t.b = s->list_count == 1 ? n : id / cut->tiles;
    t.tile = id % cut->tiles;
    t.block = ((t.b * s->kv_heads + t.g) * cut->head_tasks + t.head_task) * cut->tiles + t.tile;
    return t;
}

burst_status lao_forward(lao *local, const lao_forward_args *args) {
    const lao_cut *cut = &local->forward;
    const int64_t blocks = local->shape.batch * local->shape.kv_heads * cut->head_tasks * cut->tiles;
    const int64_t tasks = blocks * cut->chunks;
    lao_run run = {.pulse = args->pulse, .total = local->pairs * (double)local->shape.q_heads};
    if (local->shape.q_tokens == 0) return BURST_OK;
#pragma omp parallel num_threads(local->options.threads)
    {
        char *work = local->work + (size_t)omp_get_thread_num() * local->work_stride;
#pragma omp for schedule(dynamic, 1)
        for (int64_t n = 0; n < tasks; n++) {
            if (lao_stopped(&run)) continue;
            const forward_task_id t = task_of(local, n, cut->chunks);
            const lao_block block = lao_block_of(local, cut, t.b, t.g, t.head_task, t.tile, t.chunk);
            char *partial = local->partials + (size_t)(t.block * cut->chunks + t.chunk) * local->partial_stride;
            local->kernels->forward(local, args, &block, work, cut->chunks > 1 ? partial : NULL, &run);
        }
        if (cut->chunks > 1) {
#pragma omp for schedule(dynamic, 1)
            for (int64_t n = 0; n < blocks; n++) {
                if (lao_stopped(&run)) continue;
                const forward_task_id t = task_of(local, n, 1);
                const lao_block block = lao_block_of(local, cut, t.b, t.g, t.head_task, t.tile, 0);
                const char *partials = local->partials + (size_t)(t.block * cut->chunks) * local->partial_stride;
                local->kernels->forward_merge(local, args, &block, work, partials, local->partial_stride);
            }
        }
    }
    if (lao_stopped(&run)) return base_fail(BURST_CANCELLED, "forward was cancelled; its outputs are undefined");
    return BURST_OK;
}
