/* test_plans.c - different plans may run at the same time, from different threads, and each thread has its own last
 * error. The thread sanitizer watches this test: it has the only threads that are not OpenMP's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "burst.h"

enum { CALLERS = 4, HEADS = 2, TOKENS = 70, DIM = 24, SIZE = TOKENS * HEADS * DIM, ROUNDS = 3 };

/* One caller's whole world; inputs are shared and only read. */
typedef struct caller {
    const float *q, *k, *v, *d_o;
    int number;
    burst_status status;
    int own_sentence; /* last error was this thread's own, every time */
    float o[SIZE], d_q[SIZE], d_k[SIZE], d_v[SIZE];
} caller;

static burst_status compute(caller *me, burst_plan *plan, void *stats) {
    burst_forward_args forward = BURST_FORWARD_ARGS_INIT;
    forward.q.data = me->q, forward.k.data = me->k, forward.v.data = me->v, forward.o.data = me->o;
    forward.stats = stats;
    burst_backward_args backward = BURST_BACKWARD_ARGS_INIT;
    backward.q.data = me->q, backward.k.data = me->k, backward.v.data = me->v;
    backward.o.data = me->o, backward.d_o.data = me->d_o, backward.stats = stats;
    backward.d_q.data = me->d_q, backward.d_k.data = me->d_k, backward.d_v.data = me->d_v;
    burst_status status = burst_forward(plan, &forward);
    return status == BURST_OK ? burst_backward(plan, &backward) : status;
}

static burst_status run(caller *me) {
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    spec.q_tokens = spec.k_tokens = TOKENS;
    spec.causal = 1;
    burst_problem problem = BURST_PROBLEM_INIT;
    problem.q_heads = HEADS, problem.head_dim = DIM;
    problem.q_tokens = problem.k_tokens = TOKENS;
    burst_options options = BURST_OPTIONS_INIT;
    options.threads = 1 + me->number % 3;
    burst_mask *mask = NULL;
    burst_plan *plan = NULL;
    burst_status status = burst_mask_create(&spec, &mask);
    problem.mask = mask;
    if (status == BURST_OK) status = burst_plan_create(&problem, NULL, &options, &plan);
    void *stats = plan ? malloc(burst_plan_stats_bytes(plan)) : NULL;
    for (int round = 0; status == BURST_OK && round < ROUNDS; round++) status = compute(me, plan, stats);
    free(stats);
    burst_plan_free(plan);
    burst_mask_free(mask);
    return status;
}

static void *thread(void *user) {
    caller *me = user;
    me->own_sentence = 1;
    for (int round = 0; round < ROUNDS; round++) {
        /* A refusal whose sentence has this caller's number in it. */
        burst_problem wrong = BURST_PROBLEM_INIT;
        wrong.head_dim = 1000 + me->number;
        wrong.q_tokens = wrong.k_tokens = 1;
        burst_plan *plan = NULL;
        char number[16];
        snprintf(number, sizeof number, "%d", 1000 + me->number);
        if (burst_plan_create(&wrong, NULL, NULL, &plan) == BURST_OK || !strstr(burst_last_error(), number))
            me->own_sentence = 0;
    }
    me->status = run(me);
    return NULL;
}

static void fill(float *x, unsigned seed) {
    for (int i = 0; i < SIZE; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
    }
}

static void test_plans_at_the_same_time(void **state) {
    (void)state;
    static float q[SIZE], k[SIZE], v[SIZE], d_o[SIZE];
    static caller alone, callers[CALLERS];
    fill(q, 1), fill(k, 2), fill(v, 3), fill(d_o, 4);
    alone = (caller){.q = q, .k = k, .v = v, .d_o = d_o};
    assert_int_equal(run(&alone), BURST_OK);

    pthread_t threads[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (caller){.q = q, .k = k, .v = v, .d_o = d_o, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, thread, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < CALLERS; i++) {
        assert_int_equal(callers[i].status, BURST_OK);
        assert_true(callers[i].own_sentence);
        assert_memory_equal(callers[i].o, alone.o, sizeof alone.o);
        assert_memory_equal(callers[i].d_q, alone.d_q, sizeof alone.d_q);
        assert_memory_equal(callers[i].d_k, alone.d_k, sizeof alone.d_k);
        assert_memory_equal(callers[i].d_v, alone.d_v, sizeof alone.d_v);
    }
}

static void test_no_error_at_first(void **state) {
    (void)state;
    assert_string_equal(burst_last_error(), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_error_at_first),
        cmocka_unit_test(test_plans_at_the_same_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
