/* gao.h - global attention: walks a plan, round by round. The only header of this folder that other folders see.
 * With one rank there is one round, in which the rank attends to its own block. */
#ifndef BURST_GAO_H
#define BURST_GAO_H

#include "plan.h"

/* The arguments are checked; their pulse is filled here. One call at a time per plan: the caller sees to it. */
burst_status gao_forward(burst_plan *plan, const lao_forward_args *args);
burst_status gao_backward(burst_plan *plan, const lao_backward_args *args);

#endif
