/* rival.h - systems that are not the library's, whole: the first RingAttention, which stores whole rows of scores (rsa), and
 * BurstAttention without local tiles, which stores the scores of a round (burst-gao). Their products are OpenBLAS's, their
 * messages the crew's. f32, masks whose rows see one interval of keys, no score modifiers: the rest is refused. */
#ifndef BENCH_RIVAL_H
#define BENCH_RIVAL_H

#include "crew.h"
#include "data.h"

typedef enum rival_kind { RIVAL_NONE, RIVAL_RSA, RIVAL_GAO } rival_kind;

/* NULL, or why this word cannot be had. */
const char *rival_refuses(rival_kind kind, const word *word);
/* Bytes that one rank of `ranks` holds beside its tensors, n and m being the queries and keys of the largest blocks. */
double rival_memory(rival_kind kind, const word *word, int ranks, int threads, int64_t n, int64_t m, int backward);
/* How tokens are dealt out. */
burst_partition rival_partition(rival_kind kind);

typedef struct rival rival;

/* `plan` tells who has which tokens; plan and `mine` outlive the rival. */
rival *rival_open(rival_kind kind, const word *word, const crew_member *me, int ranks, int threads,
                  const burst_plan *plan, const data *mine, int backward);
void rival_close(rival *r);
/* Of all ranks together: o and lse, then d_q, d_k and d_v, of this rank's tokens. */
void rival_forward(rival *r);
void rival_backward(rival *r);
/* Of the last pass. */
burst_report rival_report(const rival *r);

#endif
