/* gao.h - global attention: walks a plan, round by round; what all ranks do together. The only header of this folder that
 * other folders see. With one rank there is one round, in which the rank attends to its own block, and nobody to agree
 * with. */
#ifndef BURST_GAO_H
#define BURST_GAO_H

#include "plan.h"

/* `checked`: what this rank's check of the arguments said; if any rank's was not OK, none begins. The arguments' pulse is
 * filled here. One call at a time per plan: the caller sees to it. */
burst_status gao_forward(burst_plan *plan, const lao_forward_args *args, burst_status checked);
burst_status gao_backward(burst_plan *plan, const lao_backward_args *args, burst_status checked);

/* What all ranks must be doing. */
typedef struct gao_what {
    int64_t plan; /* its number; 0: making one */
    int32_t kind; /* of call */
    int32_t root;
    int64_t bytes;
} gao_what;
enum { GAO_CREATE, GAO_FORWARD, GAO_BACKWARD, GAO_SCATTER_Q, GAO_SCATTER_K, GAO_GATHER_Q, GAO_GATHER_K, GAO_END };

/* All ranks return the status: OK if all said OK; one's own if it is not; else BURST_PEER that names the first that
 * failed; BURST_MISMATCH if they are not in the same call. *flags: in, this rank's; out, those that any rank has. t NULL: one rank. */
burst_status gao_agree(burst_transport *t, const transport_patience *patience, burst_status mine, gao_what what,
                       unsigned *flags);

/* Whole tensors and shares of them, see burst_plan_scatter. */
burst_status gao_scatter(burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *whole,
                         void *local, burst_status checked);
burst_status gao_gather(burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *local, void *whole,
                        burst_status checked);

#endif
