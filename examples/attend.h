/* attend.h - one rank's part of a causal attention over a sequence that is split over ranks, whatever carries it: rank 0
 * has the whole sequence, hands out shares, every rank computes, and rank 0 puts the result together and looks at it. */
#ifndef EXAMPLES_ATTEND_H
#define EXAMPLES_ATTEND_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "burst.h"

enum { HEADS = 4, TOKENS = 1001, DIM = 32, ROW = HEADS * DIM };

static inline float *attend_tensor(int64_t tokens) { return calloc((size_t)tokens * ROW + 1, sizeof(float)); }

/* Shares of q, k, v and d_o, forward, backward, gather. whole: q, k, v, d_o, o, d_v of rank 0. */
static inline burst_status attend_run(burst_plan *plan, float *const whole[6]) {
    const int64_t n = burst_plan_tokens(plan, BURST_SIDE_Q);
    const size_t token = ROW * sizeof(float);
    float *mine[8];
    for (int i = 0; i < 8; i++) mine[i] = attend_tensor(n);
    void *stats = malloc(burst_plan_stats_bytes(plan) + 1);
    burst_status status = BURST_OK;
    for (int i = 0; i < 4 && status == BURST_OK; i++) {
        const burst_side side = i == 1 || i == 2 ? BURST_SIDE_K : BURST_SIDE_Q;
        status = burst_plan_scatter(plan, side, 0, token, whole[i], mine[i]);
    }
    burst_forward_args f = BURST_FORWARD_ARGS_INIT;
    f.q.data = mine[0], f.k.data = mine[1], f.v.data = mine[2], f.o.data = mine[4], f.stats = stats;
    burst_backward_args b = BURST_BACKWARD_ARGS_INIT;
    b.q = f.q, b.k = f.k, b.v = f.v, b.o.data = mine[4], b.d_o.data = mine[3], b.stats = stats;
    b.d_q.data = mine[5], b.d_k.data = mine[6], b.d_v.data = mine[7];
    if (status == BURST_OK) status = burst_forward(plan, &f);
    if (status == BURST_OK) status = burst_backward(plan, &b);
    if (status == BURST_OK) status = burst_plan_gather(plan, BURST_SIDE_Q, 0, token, mine[4], whole[4]);
    if (status == BURST_OK) status = burst_plan_gather(plan, BURST_SIDE_K, 0, token, mine[7], whole[5]);
    for (int i = 0; i < 8; i++) free(mine[i]);
    free(stats);
    return status;
}

static inline double attend_sum(const float *x) {
    double sum = 0;
    for (int i = 0; i < TOKENS * ROW; i++) sum += (double)x[i];
    return sum;
}

/* The first query sees one key only, so o = v there; every row's weights sum to 1, so sum dV = sum dO. */
static inline int attend_looks_right(float *const whole[6]) {
    double far = 0;
    const double d_o = attend_sum(whole[3]), d_v = attend_sum(whole[5]);
    for (int i = 0; i < ROW; i++) {
        const double one = fabs((double)whole[4][i] - (double)whole[2][i]);
        if (!(one <= far)) far = one;
    }
    printf("o - v of the first token %.1e, sum dV %.4f, sum dO %.4f\n", far, d_v, d_o);
    return far <= 1e-6 && fabs(d_o - d_v) <= 2e-2;
}

/* All ranks call it. */
static inline burst_status attend(burst_transport *transport) {
    const int first = burst_transport_rank(transport) == 0;
    float *whole[6] = {NULL};
    for (int i = 0; i < 6 && first; i++) {
        whole[i] = attend_tensor(TOKENS);
        for (int x = 0; x < TOKENS * ROW; x++) whole[i][x] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
    }
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    burst_mask *mask = NULL;
    burst_problem problem = BURST_PROBLEM_INIT; /* the whole one, on every rank */
    burst_plan *plan = NULL;
    spec.q_tokens = spec.k_tokens = problem.q_tokens = problem.k_tokens = TOKENS;
    spec.causal = 1;
    problem.q_heads = HEADS, problem.head_dim = DIM;
    burst_status status = burst_mask_create(&spec, &mask);
    problem.mask = mask;
    if (status == BURST_OK) status = burst_plan_create(&problem, transport, NULL, &plan);
    if (status == BURST_OK) status = attend_run(plan, whole);
    if (status != BURST_OK)
        fprintf(stderr, "rank %d: %s: %s\n", burst_transport_rank(transport), burst_status_name(status),
                burst_last_error());
    else if (first && !attend_looks_right(whole))
        status = BURST_INVALID;
    burst_plan_free(plan);
    burst_mask_free(mask);
    for (int i = 0; i < 6; i++) free(whole[i]);
    return status;
}

#endif
