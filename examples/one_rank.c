/* one_rank.c - causal attention over a short sequence on one rank: forward, backward, and a property that must hold.
 * Build: cc one_rank.c $(pkg-config --cflags --libs burst) -lm */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "burst.h"

enum { HEADS = 4, KV_HEADS = 2, TOKENS = 300, DIM = 64 };

static int failed(burst_status status) {
    if (status != BURST_OK) {
        fprintf(stderr, "%s: %s\n", burst_status_name(status), burst_last_error());
    }
    return status != BURST_OK;
}

/* [tokens][heads][dim], values between -1 and 1 */
static float *tensor(int heads) {
    float *x = malloc(sizeof *x * TOKENS * (size_t)heads * DIM);
    for (int i = 0; x && i < TOKENS * heads * DIM; i++) {
        x[i] = 2.0f * (float)rand() / (float)RAND_MAX - 1.0f;
    }
    return x;
}

static double sum(const float *x, int heads) {
    double total = 0.0;
    for (int i = 0; i < TOKENS * heads * DIM; i++) {
        total += (double)x[i];
    }
    return total;
}

int main(void) {
    float *q = tensor(HEADS), *k = tensor(KV_HEADS), *v = tensor(KV_HEADS), *o = tensor(HEADS), *d_o = tensor(HEADS);
    float *d_q = tensor(HEADS), *d_k = tensor(KV_HEADS), *d_v = tensor(KV_HEADS);
    if (!q || !k || !v || !o || !d_o || !d_q || !d_k || !d_v) {
        return 1;
    }

    /* What is computed: sizes and a causal mask. The plan keeps its own copy of the mask. */
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    spec.q_tokens = spec.k_tokens = TOKENS;
    spec.causal = 1;
    burst_mask *mask = NULL;
    burst_problem problem = BURST_PROBLEM_INIT;
    problem.q_heads = HEADS, problem.kv_heads = KV_HEADS;
    problem.q_tokens = problem.k_tokens = TOKENS;
    problem.head_dim = DIM;
    burst_plan *plan = NULL;
    if (failed(burst_mask_create(&spec, &mask))) {
        return 1;
    }
    problem.mask = mask;
    if (failed(burst_plan_create(&problem, NULL, NULL, &plan))) {
        return 1;
    }

    /* Forward leaves the statistics that backward wants in a buffer of ours. */
    void *stats = malloc(burst_plan_stats_bytes(plan));
    burst_forward_args forward = BURST_FORWARD_ARGS_INIT;
    forward.q.data = q, forward.k.data = k, forward.v.data = v, forward.o.data = o;
    forward.stats = stats;
    burst_backward_args backward = BURST_BACKWARD_ARGS_INIT;
    backward.q.data = q, backward.k.data = k, backward.v.data = v, backward.o.data = o, backward.d_o.data = d_o;
    backward.stats = stats;
    backward.d_q.data = d_q, backward.d_k.data = d_k, backward.d_v.data = d_v;
    if (!stats || failed(burst_forward(plan, &forward)) || failed(burst_backward(plan, &backward))) {
        return 1;
    }

    /* The first query sees one key only, so o = v there; and every row's weights sum to 1, so sum dV = sum dO. */
    double first = fabs((double)o[0] - (double)v[0]);
    double balance = fabs(sum(d_v, KV_HEADS) - sum(d_o, HEADS));
    printf("burst %s, %s, %d threads\n", burst_version(), burst_isa_name(burst_plan_isa(plan)),
           burst_plan_threads(plan));
    printf("o[0]    %9.6f   v[0]    %9.6f\n", (double)o[0], (double)v[0]);
    printf("sum dV  %9.4f   sum dO  %9.4f\n", sum(d_v, KV_HEADS), sum(d_o, HEADS));
    int wrong = !(first <= 1e-6) || !(balance <= 1e-2);
    printf("%s\n", wrong ? "WRONG" : "ok");

    burst_plan_free(plan);
    burst_mask_free(mask);
    free(q), free(k), free(v), free(o), free(d_o), free(d_q), free(d_k), free(d_v), free(stats);
    return wrong;
}
