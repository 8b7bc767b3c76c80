/* test_memory.c - memory runs out at every place where it can: the status, the sentence, nothing leaks; the limit; and
 * that calls allocate nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base.h"

enum { TOKENS = 50, HEADS = 4, DIM = 8 };

static const float slopes[HEADS] = {0.5f, 0.25f, 0.125f, 0.0625f};

static burst_problem make_problem(const burst_mask *mask) {
    burst_problem problem = BURST_PROBLEM_INIT;
    problem.batch = 2;
    problem.q_heads = HEADS;
    problem.q_tokens = problem.k_tokens = TOKENS;
    problem.head_dim = DIM;
    problem.alibi = slopes;
    problem.sink = 1;
    problem.mask = mask;
    return problem;
}

/* ---- the k-th allocation fails ----------------------------------------------------------------------------------- */

static burst_status make_spec_mask(burst_mask **mask) {
    int64_t offsets[TOKENS + 1];
    for (int64_t i = 0; i <= TOKENS; i++) offsets[i] = i; /* enough documents for the list to grow twice */
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    spec.q_tokens = spec.k_tokens = TOKENS;
    spec.documents = TOKENS;
    spec.q_offsets = spec.k_offsets = offsets;
    return burst_mask_create(&spec, mask);
}

static burst_status make_slices_mask(burst_mask **mask) {
    burst_slice slices[TOKENS];
    for (int64_t i = 0; i < TOKENS; i++) slices[i] = (burst_slice){i, i + 1, 0, TOKENS, INT64_MIN, INT64_MAX, 0};
    return burst_mask_create_slices(TOKENS, TOKENS, slices, TOKENS, mask);
}

static burst_status make_blocks_mask(burst_mask **mask) {
    unsigned char bits[25 * 25];
    for (size_t i = 0; i < sizeof bits; i++) bits[i] = i % 3 == 0;
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    spec.q_tokens = spec.k_tokens = TOKENS;
    return burst_mask_create_blocks(&spec, 2, bits, mask);
}

static burst_status make_lengths_mask(burst_mask **mask) {
    int64_t lengths[40];
    for (int i = 0; i < 40; i++) lengths[i] = i;
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    spec.q_tokens = spec.k_tokens = TOKENS;
    spec.causal = 1;
    return burst_mask_create_lengths(&spec, 40, lengths, lengths, mask);
}

static burst_status make_shared_mask(burst_mask **mask) {
    int64_t answers[20];
    for (int i = 0; i < 20; i++) answers[i] = 2;
    return burst_mask_create_shared_question(10, answers, 20, mask);
}

static void test_masks(void **state) {
    (void)state;
    burst_status (*const builders[])(burst_mask **) = {make_spec_mask, make_slices_mask, make_blocks_mask,
                                                       make_lengths_mask, make_shared_mask};
    for (size_t b = 0; b < sizeof builders / sizeof *builders; b++) {
        const int64_t blocks = base_live_allocations(), bytes = base_live_bytes();
        burst_mask *mask = NULL;
        burst_status status = BURST_MEMORY;
        int64_t k = 0;
        while (status == BURST_MEMORY) {
            base_fail_allocation(++k);
            status = builders[b](&mask);
            base_fail_allocation(0);
            if (status == BURST_OK) break;
            assert_int_equal(status, BURST_MEMORY);
            assert_non_null(strstr(burst_last_error(), "no memory"));
            assert_null(mask);
            assert_int_equal(base_live_allocations(), blocks);
            assert_int_equal(base_live_bytes(), bytes);
        }
        assert_true(k > 2); /* it did fail */
        burst_mask_free(mask);
        assert_int_equal(base_live_allocations(), blocks);
        assert_int_equal(base_live_bytes(), bytes);
    }
}

static void test_plan(void **state) {
    (void)state;
    burst_mask *mask = NULL;
    assert_int_equal(make_spec_mask(&mask), BURST_OK);
    for (int with_mask = 0; with_mask < 2; with_mask++) {
        const burst_problem problem = make_problem(with_mask ? mask : NULL);
        const int64_t blocks = base_live_allocations(), bytes = base_live_bytes();
        burst_plan *plan = NULL;
        int64_t k = 0;
        for (;;) {
            base_fail_allocation(++k);
            const burst_status status = burst_plan_create(&problem, NULL, NULL, &plan);
            base_fail_allocation(0);
            if (status == BURST_OK) break;
            assert_int_equal(status, BURST_MEMORY);
            assert_non_null(strstr(burst_last_error(), "no memory"));
            assert_null(plan);
            assert_int_equal(base_live_allocations(), blocks);
            assert_int_equal(base_live_bytes(), bytes);
        }
        assert_true(k > 4);
        /* what the plan says it holds is what it holds */
        assert_int_equal(base_live_bytes() - bytes, burst_plan_workspace_bytes(plan));
        burst_plan_free(plan);
        assert_int_equal(base_live_allocations(), blocks);
        assert_int_equal(base_live_bytes(), bytes);
    }
    burst_mask_free(mask);
}

static void test_transport(void **state) {
    (void)state;
    burst_transport *self = NULL;
    base_fail_allocation(1);
    assert_int_equal(burst_transport_create_self(&self), BURST_MEMORY);
    assert_null(self);
    assert_int_equal(burst_transport_create_self(&self), BURST_OK);
    burst_transport_free(self);
}

/* ---- the limit --------------------------------------------------------------------------------------------------- */

/* The largest number in the sentence, without the limit itself, is what is needed. */
static size_t bytes_in_sentence(void) {
    size_t most = 0;
    for (const char *at = burst_last_error(); *at;) {
        char *end = NULL;
        const size_t number = *at >= '0' && *at <= '9' ? (size_t)strtoull(at, &end, 10) : 0;
        if (number > most) most = number;
        at = end ? end : at + 1;
    }
    return most;
}

static void test_limit(void **state) {
    (void)state;
    burst_mask *mask = NULL;
    assert_int_equal(make_spec_mask(&mask), BURST_OK);
    const burst_problem problem = make_problem(mask);
    const int64_t bytes = base_live_bytes();
    burst_options options = BURST_OPTIONS_INIT;
    burst_plan *plan = NULL;
    options.memory_limit = 10;
    assert_int_equal(burst_plan_create(&problem, NULL, &options, &plan), BURST_MEMORY);
    assert_null(plan);
    assert_int_equal(base_live_bytes(), bytes);
    const size_t needed = options.memory_limit = bytes_in_sentence();
    assert_int_equal(burst_plan_create(&problem, NULL, &options, &plan), BURST_OK);
    const size_t held = burst_plan_workspace_bytes(plan);
    assert_true(held <= needed);
    burst_plan_free(plan);
    plan = NULL;
    options.memory_limit = held - 1;
    assert_int_equal(burst_plan_create(&problem, NULL, &options, &plan), BURST_MEMORY);
    assert_int_equal(bytes_in_sentence(), held);
    options.memory_limit = held;
    assert_int_equal(burst_plan_create(&problem, NULL, &options, &plan), BURST_OK);
    burst_plan_free(plan);
    burst_mask_free(mask);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

enum { ELEMENTS = 2 * TOKENS * HEADS * DIM, ROWS = 2 * HEADS * TOKENS };

/* Who asks the C library for memory while `counting`: also what is not base_alloc, and not ours. */
#if defined(__GLIBC__) && defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static int counting, asked;
extern void *__libc_malloc(size_t size), *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size), *__libc_memalign(size_t alignment, size_t size);
static void note(void) {
    if (__atomic_load_n(&counting, __ATOMIC_RELAXED)) __atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED);
}
void *malloc(size_t size) { return note(), __libc_malloc(size); }
void *calloc(size_t count, size_t size) { return note(), __libc_calloc(count, size); }
void *realloc(void *old, size_t size) { return note(), __libc_realloc(old, size); }
void *aligned_alloc(size_t alignment, size_t size) { return note(), __libc_memalign(alignment, size); }
static void count_begin(void) { asked = 0, counting = 1; }
static void count_end(int least, int most) {
    counting = 0;
    assert_in_range(asked, least, most);
}
#else
static void count_begin(void) {}
static void count_end(int least, int most) { (void)least, (void)most; }
#endif

static void test_calls_allocate_nothing(void **state) {
    (void)state;
    static float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], o[ELEMENTS], d_o[ELEMENTS], lse[ROWS];
    static float d_q[ELEMENTS], d_k[ELEMENTS], d_v[ELEMENTS], sink[HEADS], d_sink[HEADS];
    static double stats[2 * ROWS];
    const burst_problem problem = make_problem(NULL);
    burst_plan *plan = NULL;
    assert_int_equal(burst_plan_create(&problem, NULL, NULL, &plan), BURST_OK);
    burst_forward_args f = BURST_FORWARD_ARGS_INIT;
    f.q.data = q, f.k.data = k, f.v.data = v, f.o.data = o, f.sink = sink, f.lse = lse, f.stats = stats;
    burst_backward_args b = BURST_BACKWARD_ARGS_INIT;
    b.q.data = q, b.k.data = k, b.v.data = v, b.o.data = o, b.d_o.data = d_o, b.sink = sink, b.stats = stats;
    b.d_q.data = d_q, b.d_k.data = d_k, b.d_v.data = d_v, b.d_sink = d_sink;
    const int64_t blocks = base_live_allocations();
    base_fail_allocation(1);
    assert_int_equal(burst_forward(plan, &f), BURST_OK); /* OpenMP's own threads start at a thread's first call */
    count_begin();
    assert_int_equal(burst_forward(plan, &f), BURST_OK);
    assert_int_equal(burst_backward(plan, &b), BURST_OK);
    count_end(0, 0);
    count_begin();
    void *volatile one = malloc(1);
    free(one);
    count_end(1, 1); /* it does count */
    assert_int_equal(base_live_allocations(), blocks);
    assert_null(base_alloc(1)); /* the failure that was ordered is still to come: nobody asked for memory */
    burst_plan_free(plan);
}

static void test_base(void **state) {
    (void)state;
    size_t result = 7;
    assert_true(base_multiply(6, 7, &result));
    assert_int_equal(result, 42);
    assert_false(base_multiply(SIZE_MAX / 2, 3, &result));
    assert_false(base_add(SIZE_MAX, 1, &result));
    assert_int_equal(result, 42);
    assert_true(base_add(SIZE_MAX - 1, 1, &result));
    assert_null(base_alloc(SIZE_MAX));
    void *nothing = base_alloc(0);
    assert_non_null(nothing);
    assert_int_equal((uintptr_t)nothing % 64, 0);
    base_free(nothing);
    base_free(NULL);
    assert_true(base_cores() >= 1);
    assert_true(base_cpu_runs(BURST_ISA_SCALAR));
    assert_string_equal(burst_version(), "0.1.0");
    assert_string_equal(burst_status_name(BURST_MISMATCH), "BURST_MISMATCH");
    assert_string_equal(burst_status_name((burst_status)99), "unknown status");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_base),  cmocka_unit_test(test_masks),     cmocka_unit_test(test_plan),
        cmocka_unit_test(test_limit), cmocka_unit_test(test_transport), cmocka_unit_test(test_calls_allocate_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
