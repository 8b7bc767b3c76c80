/* share.c - see share.h. Every number is a function of the seed and its place, so a rank makes its own part alone. */
#include "share.h"
#include "need.h"

#include <stdlib.h>
#include <string.h>

static int64_t *positions(const burst_plan *plan, burst_side side) {
    int64_t *out = need_array((size_t)burst_plan_tokens(plan, side), sizeof *out);
    burst_plan_positions(plan, side, out);
    return out;
}

void share_make(const word *w, uint64_t seed, int backward, const burst_plan *plan, share *out) {
    out->q_positions = positions(plan, BURST_SIDE_Q);
    out->k_positions = positions(plan, BURST_SIDE_K);
    const data_places places = {burst_plan_tokens(plan, BURST_SIDE_Q), burst_plan_tokens(plan, BURST_SIDE_K),
                                out->q_positions, out->k_positions};
    data_make_at(w, seed, backward, &places, &out->data);
}

void share_free(share *s) {
    data_free(&s->data);
    free(s->q_positions);
    free(s->k_positions);
}

/* ---- gathering --------------------------------------------------------------------------------------------------- */

/* Between a tensor in any layout and [batch][tokens][heads][dim]. */
static void copy_rows(const data_tensor *t, unsigned char *flat, int out) {
    const size_t row = (size_t)t->dim * data_size(t->dtype);
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t n = 0; n < t->tokens; n++)
            for (int64_t h = 0; h < t->heads; h++, flat += row) {
                unsigned char *at = data_place(t, b, n, h);
                memcpy(out ? flat : at, out ? at : flat, row);
            }
}

static burst_status gather(burst_plan *plan, burst_side side, const data_tensor *local, const data_tensor *whole) {
    const size_t token = (size_t)(local->heads * local->dim) * data_size(local->dtype);
    unsigned char *mine = need_bytes((size_t)(local->batch * local->tokens) * token);
    unsigned char *all = whole ? need_bytes((size_t)(whole->batch * whole->tokens) * token) : NULL;
    copy_rows(local, mine, 1);
    const burst_status status = burst_plan_gather(plan, side, 0, token, mine, all);
    if (status == BURST_OK && whole) copy_rows(whole, all, 0);
    free(mine);
    free(all);
    return status;
}

/* lse as a tensor of one number a head. */
static data_tensor lse_tensor(const word *w, int64_t tokens, void *lse) {
    return (data_tensor){.data = lse,
                         .dtype = data_wide(w->dtype),
                         .batch = w->batch,
                         .tokens = tokens,
                         .heads = w->heads,
                         .dim = 1,
                         .batch_stride = w->heads * tokens,
                         .token_stride = 1,
                         .head_stride = tokens};
}

burst_status share_gather(const word *w, int backward, burst_plan *plan, const share *s, data *whole) {
    const data_tensor mine = lse_tensor(w, s->data.o.tokens, s->data.lse);
    const data_tensor all = lse_tensor(w, w->n, whole ? whole->lse : NULL);
    burst_status status = gather(plan, BURST_SIDE_Q, &s->data.o, whole ? &whole->o : NULL);
    if (status == BURST_OK) status = gather(plan, BURST_SIDE_Q, &mine, whole ? &all : NULL);
    if (!backward || status != BURST_OK) return status;
    status = gather(plan, BURST_SIDE_Q, &s->data.d_q, whole ? &whole->d_q : NULL);
    if (status == BURST_OK) status = gather(plan, BURST_SIDE_K, &s->data.d_k, whole ? &whole->d_k : NULL);
    if (status == BURST_OK) status = gather(plan, BURST_SIDE_K, &s->data.d_v, whole ? &whole->d_v : NULL);
    if (whole && whole->d_sink)
        memcpy(whole->d_sink, s->data.d_sink, (size_t)w->heads * data_size(data_wide(w->dtype)));
    return status;
}
