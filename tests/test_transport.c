/* test_transport.c - transports: what each must do (conform.c), what is refused, and that memory may fail anywhere. */
#include <stdio.h>

#include "conform.h"
#include "meddler.h"
#include "ranks.h"

/* ---- conformance ------------------------------------------------------------------------------------------------- */

static burst_status conform_rank(burst_transport *t, void *user) {
    int *wrong = user;
    __atomic_add_fetch(wrong, conform_run(t, (size_t)(RANKS_SANITIZED ? 5 : 33) << 20), __ATOMIC_RELAXED);
    return BURST_OK;
}

static void test_threads_conform(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++) {
        int wrong = 0;
        assert_int_equal(burst_threads_run(ranks, conform_rank, &wrong), BURST_OK);
        assert_int_equal(wrong, 0);
    }
    ranks_assert_nothing_left();
}

static burst_status conform_custom(burst_transport *inner, void *user) {
    int *wrong = user;
    meddler m = {.fail_at = 0};
    burst_transport *t = NULL;
    const burst_status status = meddler_open(&m, inner, false, &t);
    if (status == BURST_OK) __atomic_add_fetch(wrong, conform_run(t, (size_t)5 << 20), __ATOMIC_RELAXED);
    burst_transport_free(t);
    return status;
}

static void test_custom_conforms(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 5; ranks++) {
        int wrong = 0;
        assert_int_equal(burst_threads_run(ranks, conform_custom, &wrong), BURST_OK);
        assert_int_equal(wrong, 0);
    }
    ranks_assert_nothing_left();
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct plan_team {
    burst_strategy strategy;
    burst_status status[4];
} plan_team;

static burst_status make_plan(burst_transport *t, void *user) {
    plan_team *team = user;
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_options options = BURST_OPTIONS_INIT;
    burst_plan *plan = NULL;
    problem.q_heads = 3, problem.q_tokens = problem.k_tokens = 64, problem.head_dim = 8, problem.sink = 1;
    options.timeout = 20;
    options.strategy = team->strategy;
    const burst_status status = burst_plan_create(&problem, t, &options, &plan);
    team->status[burst_transport_rank(t)] = status;
    burst_plan_free(plan);
    return BURST_OK;
}

/* The k-th allocation of the process fails, on whichever rank: all return, and nothing is left. */
static void check_allocations(burst_strategy strategy) {
    for (int64_t k = 1;; k++) {
        plan_team team = {strategy, {BURST_OK, BURST_OK, BURST_OK, BURST_OK}};
        base_fail_allocation(k);
        const burst_status started = burst_threads_run(3, make_plan, &team);
        base_fail_allocation(0);
        ranks_assert_nothing_left();
        int failed = 0, memory = started == BURST_MEMORY;
        for (int r = 0; r < 3; r++) failed += team.status[r] != BURST_OK, memory += team.status[r] == BURST_MEMORY;
        if (!failed && started == BURST_OK) {
            assert_true(k > 20);
            return;
        }
        assert_true(started == BURST_MEMORY || failed == 3);
        assert_int_equal(memory, 1);
        assert_true(k < 1000);
    }
}

static void test_every_allocation_can_fail(void **state) {
    (void)state;
    for (int strategy = BURST_STRATEGY_RING; strategy <= BURST_STRATEGY_ULYSSES; strategy++)
        check_allocations((burst_strategy)strategy);
}

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void test_refusals(void **state) {
    burst_transport *t = NULL, *many[2];
    burst_carrier carrier = BURST_CARRIER_INIT;
    (void)state;
    assert_int_equal(burst_transport_create_threads(0, many), BURST_INVALID);
    assert_int_equal(burst_transport_create_threads(2, NULL), BURST_INVALID);
    assert_int_equal(burst_transport_create_threads(BURST_THREAD_RANKS_MAX + 1, many), BURST_INVALID);
    assert_int_equal(burst_transport_create_dry(2, 2, &t), BURST_INVALID);
    assert_int_equal(burst_transport_create_dry(-1, 2, &t), BURST_INVALID);
    assert_int_equal(burst_transport_create_custom(NULL, NULL, 0, 2, 0, &t), BURST_INVALID);
    assert_int_equal(burst_transport_create_custom(&carrier, NULL, 0, 2, 0, &t), BURST_INVALID);
    assert_non_null(strstr(burst_last_error(), "send, receive, test and cancel"));
    carrier = meddler_carrier(false);
    carrier.struct_size = 8;
    assert_int_equal(burst_transport_create_custom(&carrier, NULL, 0, 2, 0, &t), BURST_INVALID);
    carrier.struct_size = sizeof carrier;
    assert_int_equal(burst_transport_create_custom(&carrier, NULL, 0, 2, 3, &t), BURST_INVALID);
    carrier.close = NULL;
    carrier.give_back = meddler_carrier(true).give_back; /* without the rest of lending */
    assert_int_equal(burst_transport_create_custom(&carrier, NULL, 0, 2, 0, &t), BURST_INVALID);
    assert_int_equal(burst_threads_run(0, conform_rank, NULL), BURST_INVALID);
    assert_int_equal(burst_threads_run(2, NULL, NULL), BURST_INVALID);
}

static void test_a_dry_plan_only_tells(void **state) {
    burst_transport *t = NULL;
    burst_plan *plan = NULL;
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_forward_args args = BURST_FORWARD_ARGS_INIT;
    (void)state;
    problem.q_heads = 32, problem.q_tokens = problem.k_tokens = 1 << 24, problem.head_dim = 128;
    assert_int_equal(burst_transport_create_dry(3, 8, &t), BURST_OK);
    assert_int_equal(burst_plan_create(&problem, t, NULL, &plan), BURST_OK);
    assert_true(burst_plan_workspace_bytes(plan) > (size_t)1 << 34);
    assert_true(base_live_bytes() < 1 << 24);
    assert_int_equal(burst_plan_tokens(plan, BURST_SIDE_K), 1 << 21);
    assert_int_equal(burst_forward(plan, &args), BURST_UNSUPPORTED);
    burst_plan_free(plan);
    plan = NULL;
    const float slopes[32] = {1}; /* the distances of the whole problem count, not those of a share */
    problem.alibi = slopes, problem.q_tokens = problem.k_tokens = 1 << 30;
    assert_int_equal(burst_plan_create(&problem, t, NULL, &plan), BURST_UNSUPPORTED);
    assert_non_null(strstr(burst_last_error(), "ALiBi distances are 32 bit"));
    burst_transport_free(t);
    problem.alibi = NULL, problem.q_tokens = problem.k_tokens = 1 << 24; /* one rank, too */
    assert_int_equal(burst_transport_create_dry(0, 1, &t), BURST_OK);
    assert_int_equal(burst_plan_create(&problem, t, NULL, &plan), BURST_OK);
    assert_true(base_live_bytes() < 1 << 24);
    assert_int_equal(burst_forward(plan, &args), BURST_UNSUPPORTED);
    burst_plan_free(plan);
    burst_transport_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_threads_conform),           cmocka_unit_test(test_custom_conforms),
        cmocka_unit_test(test_every_allocation_can_fail), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_a_dry_plan_only_tells),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
