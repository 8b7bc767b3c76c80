/* word_problem.c - from the word to what the library is asked: a burst_mask by the matching builder, a burst_problem.
 *
 * Judges nothing: what the builders and the plan refuse comes back with their sentence. */
#include "data.h"
#include "need.h"
#include "word.h"

#include <stdlib.h>
#include <string.h>

static int64_t *cumulative(const word_list *lengths) {
    int64_t *offsets = need_array(lengths->count + 1, sizeof *offsets);
    for (size_t i = 0; i < lengths->count; i++) offsets[i + 1] = offsets[i] + lengths->at[i];
    return offsets;
}

static void fill_spec(const word *w, burst_mask_spec *spec) {
    spec->q_tokens = w->n, spec->k_tokens = w->k;
    spec->align = w->align;
    spec->causal = (w->parts & WORD_CAUSAL) != 0;
    spec->window_left = w->window_left, spec->window_right = w->window_right;
    spec->sink_tokens = w->sink_tokens;
    spec->prefix = w->prefix;
}

/* Raw slices carry the alignment of the whole problem: only ALiBi notices. */
static burst_status make_slices(const word *w, burst_mask **mask) {
    burst_slice *slices = need_array(w->slice_count, sizeof *slices);
    for (size_t i = 0; i < w->slice_count; i++) {
        slices[i] = w->slices[i];
        slices[i].diag = w->align == BURST_ALIGN_START ? 0 : w->k - w->n;
    }
    burst_status status = burst_mask_create_slices(w->n, w->k, slices, w->slice_count, mask);
    free(slices);
    return status;
}

static burst_status make_spec(const word *w, uint64_t seed, burst_mask **mask) {
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    fill_spec(w, &spec);
    int64_t *q_offsets = NULL, *k_offsets = NULL;
    if (w->parts & WORD_DOCS) {
        spec.documents = (int64_t)w->docs.count;
        spec.q_offsets = q_offsets = cumulative(&w->docs);
        spec.k_offsets = k_offsets = cumulative(word_documents(w, 1));
    }
    burst_status status;
    if (w->parts & WORD_BLOCKS) {
        unsigned char *bitmap = data_bitmap(w, seed);
        status = burst_mask_create_blocks(&spec, w->block, bitmap, mask);
        free(bitmap);
    } else {
        status = burst_mask_create(&spec, mask);
    }
    free(q_offsets);
    free(k_offsets);
    return status;
}

static burst_status make_mask(const word *w, uint64_t seed, burst_mask **mask) {
    const unsigned any = WORD_CAUSAL | WORD_WINDOW | WORD_PREFIX | WORD_SINKTOKENS | WORD_DOCS | WORD_BLOCKS |
                         WORD_LENGTHS | WORD_SHARED | WORD_SLICES | WORD_ALIGN;
    if (!(w->parts & any)) return BURST_OK; /* no mask: the library's own default is tested too */
    if (w->parts & WORD_SLICES) return make_slices(w, mask);
    if (w->parts & WORD_SHARED)
        return burst_mask_create_shared_question(w->shared.at[0], w->shared.at + 1, w->shared.count - 1, mask);
    if (!(w->parts & WORD_LENGTHS)) return make_spec(w, seed, mask);
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    fill_spec(w, &spec);
    return burst_mask_create_lengths(&spec, w->batch, w->lengths.at, word_lengths(w, 1)->at, mask);
}

burst_status word_problem_make(const word *w, uint64_t seed, word_problem *out) {
    memset(out, 0, sizeof *out);
    burst_status status = make_mask(w, seed, &out->mask);
    if (status != BURST_OK) return status;
    out->problem = (burst_problem)BURST_PROBLEM_INIT;
    burst_problem *p = &out->problem;
    p->dtype = w->dtype;
    p->batch = w->batch;
    p->q_heads = w->heads, p->kv_heads = w->groups;
    p->q_tokens = w->n, p->k_tokens = w->k;
    p->head_dim = w->d, p->value_dim = w->v;
    p->scale = w->scale;
    p->softcap = w->softcap;
    p->sink = (w->parts & WORD_SINK) != 0;
    p->mask = out->mask;
    if (w->parts & WORD_ALIBI) {
        out->slopes = need_array((size_t)w->heads, sizeof *out->slopes);
        for (int64_t h = 0; h < w->heads; h++) out->slopes[h] = data_slope(w, h);
        p->alibi = out->slopes;
    }
    return BURST_OK;
}

void word_problem_free(word_problem *problem) {
    burst_mask_free(problem->mask);
    free(problem->slopes);
    memset(problem, 0, sizeof *problem);
}
