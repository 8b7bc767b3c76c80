/* api.h - what the public functions share: checks of everything a caller says, made before anything is computed.
 * Seen by the files of this folder only. */
#ifndef BURST_API_H
#define BURST_API_H

#include "gao.h"

/* Check, and fill in what was left to be chosen. */
burst_status problem_check(const burst_problem *problem, plan_request *request);
burst_status options_check(const burst_options *options, plan_request *request);
burst_status forward_check(const burst_plan *plan, const burst_forward_args *args, lao_forward_args *local);
burst_status backward_check(const burst_plan *plan, const burst_backward_args *args, lao_backward_args *local);

burst_status move_check(const burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *whole,
                        const void *local);

/* Do all ranks mean the same? BURST_MISMATCH says what differs. `checked`: what this rank's own checks said. Also finds out
 * whether all of them lend. */
burst_status request_agree(plan_request *request, burst_status checked);

/* The bytes of a strided tensor: runs of `run` bytes at address + sum of index * stride; empty if any count is 0. */
typedef struct overlap_region {
    uintptr_t address;
    int64_t run;
    int64_t stride[3], count[3];
} overlap_region;

typedef enum overlap_answer {
    OVERLAP_NONE,
    OVERLAP_SHARED,
    OVERLAP_UNKNOWN /* too much work to tell */
} overlap_answer;

/* Exact: is there a byte that both have? that one has twice? */
overlap_answer overlap_between(const overlap_region *a, const overlap_region *b);
overlap_answer overlap_itself(const overlap_region *a);

#endif
