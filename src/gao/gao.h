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

/* All ranks return the status: OK if all said OK; one's own if it is not; else BURST_PEER that names the first that
 * failed. *flags: in, this rank's; out, those that any rank has. t NULL: one rank. */
burst_status gao_agree(burst_transport *t, const transport_patience *patience, burst_status mine, unsigned *flags);

/* Whole tensors and shares of them, see burst_plan_scatter. */
burst_status gao_scatter(burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *whole,
                         void *local, burst_status checked);
burst_status gao_gather(burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *local, void *whole,
                        burst_status checked);

#endif
