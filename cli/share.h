/* share.h - one rank's part of a word's tensors, and the whole put together again on rank 0. */
#ifndef CLI_SHARE_H
#define CLI_SHARE_H

#include "data.h"

typedef struct share {
    data data; /* this rank's tokens, in the word's layout */
    int64_t *q_positions, *k_positions;
} share;

/* The same numbers as data_make gives the whole problem, at this rank's tokens. */
void share_make(const word *word, uint64_t seed, int backward, const burst_plan *plan, share *out);
void share_free(share *share);
/* Collective: o, lse, d_sink and, if backward, the gradients of all ranks -> whole (of rank 0; NULL elsewhere). */
burst_status share_gather(const word *word, int backward, burst_plan *plan, const share *share, data *whole);

#endif
