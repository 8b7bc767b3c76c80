/* rows.c - what happens between rounds: running results folded, finished and stored, rows prepared for backward.
 * One idea: every row stands alone, so all of it is one loop over rows cut into pieces, and the number of threads cannot
 * show in the bits. Bound by memory; nothing here is worth a pulse. */
#include <omp.h>

#include "kernel.h"

enum { PIECE = 256 }; /* rows: some 100 KiB, enough to forget the cost of handing out a piece */

static char *work_of(const lao *local) { return local->work + (size_t)omp_get_thread_num() * local->work_stride; }

static int64_t query_rows(const lao *local) {
    return local->shape.batch * local->shape.q_heads * local->shape.q_tokens;
}

void lao_fold(lao *local, const lao_state *into, const lao_state *from) {
    const int64_t rows = query_rows(local);
#pragma omp parallel for num_threads(local->options.threads) schedule(static)
    for (int64_t first = 0; first < rows; first += PIECE)
        local->kernels->state_fold(local, into, from, first, lao_min(first + PIECE, rows));
}

void lao_finish(lao *local, const lao_state *state, const lao_state *other, const lao_forward_args *args) {
    const int64_t rows = query_rows(local);
#pragma omp parallel for num_threads(local->options.threads) schedule(static)
    for (int64_t first = 0; first < rows; first += PIECE)
        local->kernels->state_finish(local, args, state, other, first, lao_min(first + PIECE, rows), work_of(local));
}

void lao_dots(lao *local, const lao_backward_args *args, void *ms, void *dots, double *sink_sums) {
    const lao_shape *s = &local->shape;
    const lao_cut *cut = &local->backward;
    const int64_t blocks = s->q_tokens ? lao_blocks(s, cut) : 0;
#pragma omp parallel for num_threads(local->options.threads) schedule(static)
    for (int64_t n = 0; n < blocks; n++) {
        const int64_t head = n / (cut->head_tasks * cut->tiles), b = head / s->kv_heads, g = head % s->kv_heads;
        const lao_block block = lao_block_of(local, cut, b, g, n / cut->tiles % cut->head_tasks, n % cut->tiles, 0);
        local->kernels->backward_dots(local, args, &block, work_of(local), ms, dots,
                                      sink_sums ? local->d_sink + n * cut->heads : NULL);
    }
    for (int64_t n = 0; n < blocks && sink_sums; n++) { /* in their order */
        const int64_t head = n / (cut->head_tasks * cut->tiles), b = head / s->kv_heads, g = head % s->kv_heads;
        const lao_block block = lao_block_of(local, cut, b, g, n / cut->tiles % cut->head_tasks, n % cut->tiles, 0);
        for (int64_t h = 0; h < block.heads; h++) sink_sums[block.h0 + h] += local->d_sink[n * cut->heads + h];
    }
}

void lao_store(lao *local, const lao_sums *sums, const lao_tensor *out, bool accumulate) {
    const int64_t rows = local->shape.batch * sums->heads * sums->tokens;
#pragma omp parallel for num_threads(local->options.threads) schedule(static)
    for (int64_t first = 0; first < rows; first += PIECE)
        local->kernels->rows_store(local, sums, out, accumulate, first, lao_min(first + PIECE, rows), work_of(local));
}

void lao_add(lao *local, bool narrow, int64_t count, void *into, const void *from) {
    const burst_dtype dtype = local->shape.dtype, wide = dtype == BURST_F64 ? BURST_F64 : BURST_F32;
    const burst_dtype given = narrow ? dtype : wide;
    const int64_t piece = (int64_t)1 << 16;
#pragma omp parallel for num_threads(local->options.threads) schedule(static)
    for (int64_t first = 0; first < count; first += piece) {
        local->kernels->rows_add(given, lao_min(piece, count - first), (char *)into + (size_t)first * dtype_bytes(wide),
                                 (const char *)from + (size_t)first * dtype_bytes(given));
    }
}
