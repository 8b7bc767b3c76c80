/* test_calls.c - how calls behave around their arithmetic: plans side by side in threads, errors per thread, one call
 * at a time, progress, cancelling, many calls of one plan, skipped and added gradients. */
#include <math.h>
#include <pthread.h>

#include "run.h"

enum { HEADS = 4, KV_HEADS = 2, DIM = 16, TOKENS = 90, LONG = 1500, HALF_WAY = 1500 };

/* One problem with all its buffers, filled with something smooth that depends on the seed. */
typedef struct bench {
    int64_t tokens;
    burst_plan *plan;
    float *q, *k, *v, *o, *d_o, *lse, *d_q, *d_k, *d_v;
    double *stats;
} bench;

static float *make_array(int64_t count, double seed) {
    float *array = malloc((size_t)count * sizeof *array);
    assert_non_null(array);
    for (int64_t i = 0; i < count; i++) array[i] = (float)sin(seed * (double)(i + 1));
    return array;
}

static bench bench_make(int64_t tokens, const burst_options *options, double seed) {
    bench b = {.tokens = tokens};
    burst_mask_spec causal = BURST_MASK_SPEC_INIT;
    causal.q_tokens = causal.k_tokens = tokens;
    causal.causal = 1;
    burst_mask *mask = NULL;
    assert_int_equal(burst_mask_create(&causal, &mask), BURST_OK);
    burst_problem problem = BURST_PROBLEM_INIT;
    problem.q_heads = HEADS, problem.kv_heads = KV_HEADS;
    problem.q_tokens = problem.k_tokens = tokens;
    problem.head_dim = DIM;
    problem.mask = mask;
    assert_int_equal(burst_plan_create(&problem, NULL, options, &b.plan), BURST_OK);
    burst_mask_free(mask); /* the plan has its own copy */
    const int64_t q = tokens * HEADS * DIM, k = tokens * KV_HEADS * DIM;
    b.q = make_array(q, 0.7 + seed), b.k = make_array(k, 0.3 + seed), b.v = make_array(k, 0.11 + seed);
    b.o = make_array(q, 0), b.d_o = make_array(q, 0.05 + seed), b.lse = make_array(tokens * HEADS, 0);
    b.d_q = make_array(q, 0), b.d_k = make_array(k, 0), b.d_v = make_array(k, 0);
    b.stats = malloc(burst_plan_stats_bytes(b.plan));
    assert_non_null(b.stats);
    return b;
}

static void bench_free(bench *b) {
    float *const arrays[] = {b->q, b->k, b->v, b->o, b->d_o, b->lse, b->d_q, b->d_k, b->d_v};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) free(arrays[i]);
    free(b->stats);
    burst_plan_free(b->plan);
}

static burst_status run_forward(const bench *b) {
    burst_forward_args a = BURST_FORWARD_ARGS_INIT;
    a.q.data = b->q, a.k.data = b->k, a.v.data = b->v, a.o.data = b->o, a.lse = b->lse, a.stats = b->stats;
    return burst_forward(b->plan, &a);
}

static burst_backward_args backward_args(const bench *b) {
    burst_backward_args a = BURST_BACKWARD_ARGS_INIT;
    a.q.data = b->q, a.k.data = b->k, a.v.data = b->v, a.o.data = b->o, a.d_o.data = b->d_o, a.stats = b->stats;
    a.d_q.data = b->d_q, a.d_k.data = b->d_k, a.d_v.data = b->d_v;
    return a;
}

static burst_status run_backward(const bench *b) {
    const burst_backward_args a = backward_args(b);
    return burst_backward(b->plan, &a);
}

static size_t q_bytes(const bench *b) { return (size_t)(b->tokens * HEADS * DIM) * sizeof(float); }

static size_t k_bytes(const bench *b) { return (size_t)(b->tokens * KV_HEADS * DIM) * sizeof(float); }

static float *copy_of(const float *array, size_t bytes) {
    float *copy = malloc(bytes);
    assert_non_null(copy);
    memcpy(copy, array, bytes);
    return copy;
}

/* ---- threads ----------------------------------------------------------------------------------------------------- */

typedef struct job {
    bench bench;
    float *o, *d_k; /* what it must give */
    int wrong;      /* assertions belong to the main thread */
    char sentence[128];
} job;

static void *run_job(void *user) {
    job *j = user;
    for (int round = 0; round < 20; round++) {
        if (burst_last_error()[0] != '\0') j->wrong++; /* this thread has not failed */
        if (run_forward(&j->bench) != BURST_OK || run_backward(&j->bench) != BURST_OK) j->wrong++;
        if (memcmp(j->o, j->bench.o, q_bytes(&j->bench)) != 0) j->wrong++;
        if (memcmp(j->d_k, j->bench.d_k, k_bytes(&j->bench)) != 0) j->wrong++;
    }
    burst_problem bad = BURST_PROBLEM_INIT;
    bad.batch = -(int64_t)(1 + (j->bench.tokens == TOKENS));
    burst_plan *plan = NULL;
    if (burst_plan_create(&bad, NULL, NULL, &plan) != BURST_INVALID) j->wrong++;
    strncpy(j->sentence, burst_last_error(), sizeof j->sentence - 1);
    return NULL;
}

static void test_two_plans_in_two_threads(void **state) {
    (void)state;
    job jobs[2];
    pthread_t threads[2];
    memset(jobs, 0, sizeof jobs);
    assert_int_equal(burst_forward(NULL, NULL), BURST_INVALID); /* this thread's error, not theirs */
    for (int i = 0; i < 2; i++) {
        job *j = &jobs[i];
        j->bench = bench_make(TOKENS + i, NULL, 0.01 * i);
        assert_int_equal(run_forward(&j->bench), BURST_OK);
        assert_int_equal(run_backward(&j->bench), BURST_OK);
        j->o = copy_of(j->bench.o, q_bytes(&j->bench));
        j->d_k = copy_of(j->bench.d_k, k_bytes(&j->bench));
    }
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, run_job, &jobs[i]), 0);
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(jobs[i].wrong, 0);
        assert_non_null(strstr(jobs[i].sentence, i == 0 ? "batch is -2" : "batch is -1"));
        free(jobs[i].o);
        free(jobs[i].d_k);
        bench_free(&jobs[i].bench);
    }
    assert_string_equal(burst_last_error(), "plan is NULL");
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

typedef struct watch {
    pthread_t caller;
    int calls, wrong;
    double last;
    const bench *reenter; /* called into from the callback, must be refused */
    int refusals;
    int *cancel; /* set at the first call */
} watch;

static void on_progress(void *user, double done) {
    watch *w = user;
    w->calls++;
    if (!pthread_equal(pthread_self(), w->caller)) w->wrong++;
    if (done < w->last || done > 1) w->wrong++;
    w->last = done;
    if (w->reenter && run_forward(w->reenter) == BURST_INVALID && strstr(burst_last_error(), "busy")) w->refusals++;
    if (w->cancel) __atomic_store_n(w->cancel, 1, __ATOMIC_RELAXED);
}

static void test_progress(void **state) {
    (void)state;
    watch w = {.caller = pthread_self()};
    burst_options options = BURST_OPTIONS_INIT;
    options.progress = on_progress;
    options.progress_user = &w;
    options.isa = BURST_ISA_SCALAR; /* long enough to be asked on the way */
    bench b = bench_make(LONG, &options, 0);
    assert_int_equal(run_forward(&b), BURST_OK);
    assert_true(w.calls >= 3 && w.wrong == 0 && w.last == 1.0);
    w = (watch){.caller = pthread_self()};
    assert_int_equal(run_backward(&b), BURST_OK);
    assert_true(w.calls >= 3 && w.wrong == 0 && w.last == 1.0);
    bench_free(&b);
}

static void test_plan_is_busy(void **state) {
    (void)state;
    watch w = {.caller = pthread_self()};
    burst_options options = BURST_OPTIONS_INIT;
    options.progress = on_progress;
    options.progress_user = &w;
    bench b = bench_make(TOKENS, &options, 0);
    w.reenter = &b;
    assert_int_equal(run_forward(&b), BURST_OK);
    assert_true(w.refusals >= 1 && w.refusals == w.calls);
    w.reenter = NULL;
    w.last = 0;
    assert_int_equal(run_forward(&b), BURST_OK); /* free again */
    bench_free(&b);
}

/* Runs `whole` through; `b` has the same results, bit for bit. */
static void assert_same_as_run(const bench *b, bench *whole) {
    assert_int_equal(run_forward(whole), BURST_OK);
    assert_int_equal(run_backward(whole), BURST_OK);
    assert_memory_equal(b->o, whole->o, q_bytes(b));
    assert_memory_equal(b->d_q, whole->d_q, q_bytes(b));
    assert_memory_equal(b->d_k, whole->d_k, k_bytes(b));
    assert_memory_equal(b->d_v, whole->d_v, k_bytes(b));
}

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

static void test_cancel(void **state) {
    (void)state;
    int cancel = 1;
    burst_options options = BURST_OPTIONS_INIT;
    options.cancel = &cancel;
    bench b = bench_make(TOKENS, &options, 0);
    memset(b.o, 0xA5, q_bytes(&b));
    assert_int_equal(run_forward(&b), BURST_CANCELLED);
    assert_non_null(strstr(burst_last_error(), "cancel flag"));
    assert_int_equal(run_backward(&b), BURST_CANCELLED);
    cancel = 0;
    assert_int_equal(run_forward(&b), BURST_OK);
    assert_int_equal(run_backward(&b), BURST_OK);
    bench whole = bench_make(TOKENS, NULL, 0);
    assert_same_as_run(&b, &whole);
    bench_free(&whole);
    bench_free(&b);
}

/* In the middle of a pass; a machine that is through before the first progress call has nothing to cancel, but with more
 * than a thread for each core the lock of the queue is waited for, too. */
static void test_cancel_half_way(void **state) {
    (void)state;
    int cancel = 0, cancelled = 0;
    watch w = {.caller = pthread_self(), .cancel = &cancel};
    burst_options options = BURST_OPTIONS_INIT;
    options.progress = on_progress;
    options.progress_user = &w;
    options.cancel = &cancel;
    options.isa = BURST_ISA_SCALAR;
    options.threads = 3;
    bench b = bench_make(HALF_WAY, &options, 0);
    for (int pass = 0; pass < 2; pass++) {
        w.last = 0;
        __atomic_store_n(&cancel, 0, __ATOMIC_RELAXED);
        const burst_status status = pass == 0 ? run_forward(&b) : run_backward(&b);
        assert_true(w.last == 1.0 ? status == BURST_OK : status == BURST_CANCELLED);
        cancelled += status == BURST_CANCELLED;
        w.last = 0;
        w.cancel = NULL;
        __atomic_store_n(&cancel, 0, __ATOMIC_RELAXED);
        assert_int_equal(pass == 0 ? run_forward(&b) : run_backward(&b), BURST_OK); /* the plan still works */
        w.cancel = &cancel;
    }
    assert_true(cancelled > 0);
    burst_options plain = BURST_OPTIONS_INIT;
    plain.isa = BURST_ISA_SCALAR;
    bench whole = bench_make(HALF_WAY, &plain, 0);
    assert_same_as_run(&b, &whole);
    bench_free(&whole);
    bench_free(&b);
}

/* ---- many calls, chosen gradients -------------------------------------------------------------------------------- */

static void test_plan_serves_many_calls(void **state) {
    (void)state;
    bench a = bench_make(TOKENS, NULL, 0), b = bench_make(TOKENS, NULL, 0.2);
    assert_int_equal(run_forward(&a), BURST_OK);
    assert_int_equal(run_backward(&a), BURST_OK);
    float *o = copy_of(a.o, q_bytes(&a)), *d_v = copy_of(a.d_v, k_bytes(&a));
    burst_plan *own = b.plan;
    b.plan = a.plan; /* another layer, the same plan, in any order */
    assert_int_equal(run_forward(&b), BURST_OK);
    assert_int_equal(run_forward(&a), BURST_OK);
    assert_int_equal(run_backward(&b), BURST_OK);
    assert_int_equal(run_backward(&a), BURST_OK);
    assert_int_equal(run_backward(&a), BURST_OK);
    assert_memory_equal(a.o, o, q_bytes(&a));
    assert_memory_equal(a.d_v, d_v, k_bytes(&a));
    assert_memory_not_equal(b.o, o, q_bytes(&a));
    b.plan = own;
    free(o);
    free(d_v);
    bench_free(&a);
    bench_free(&b);
}

/* Chunks of keys that no row sees have no partial results: what an earlier call left in their place is not read. */
static void test_calls_leave_nothing(void **state) {
    static const char *const words[] = {"b1h8n1k20000d32:window=100/0", "b1h4g1n6k9000d16:window=40/0:sink",
                                        "b1h1n100k9000d16:window=40/0", "b1h2n24k16000d16:docs=20/4:kdocs=15000/1000"};
    (void)state;
    for (size_t n = 0; n < sizeof words / sizeof *words; n++) {
        run first, r;
        run_make(words[n], 2, BURST_ISA_AUTO, &first);
        run_make(words[n], 2, BURST_ISA_AUTO, &r);
        assert_int_equal(check_forward(first.plan, &first.data, NULL), BURST_OK);
        run_both(&r);
        assert_int_equal(check_forward(r.plan, &r.data, NULL), BURST_OK);
        assert_true(run_same(&first.data.o, &r.data.o));
        run_both(&first);
        run_both(&r);
        run_assert_same(&first, &r);
        run_free(&first);
        run_free(&r);
    }
}

static void test_null_gradients_are_skipped(void **state) {
    (void)state;
    bench b = bench_make(TOKENS, NULL, 0);
    assert_int_equal(run_forward(&b), BURST_OK);
    assert_int_equal(run_backward(&b), BURST_OK);
    float *d_q = copy_of(b.d_q, q_bytes(&b)), *d_k = copy_of(b.d_k, k_bytes(&b)), *d_v = copy_of(b.d_v, k_bytes(&b));
    for (int keep = 0; keep < 8; keep++) {
        burst_backward_args a = backward_args(&b);
        memset(b.d_q, 0, q_bytes(&b));
        memset(b.d_k, 0, k_bytes(&b));
        memset(b.d_v, 0, k_bytes(&b));
        if (!(keep & 1)) a.d_q.data = NULL;
        if (!(keep & 2)) a.d_k.data = NULL;
        if (!(keep & 4)) a.d_v.data = NULL;
        assert_int_equal(burst_backward(b.plan, &a), BURST_OK);
        assert_int_equal(memcmp(b.d_q, d_q, q_bytes(&b)) == 0, (keep & 1) != 0);
        assert_int_equal(memcmp(b.d_k, d_k, k_bytes(&b)) == 0, (keep & 2) != 0);
        assert_int_equal(memcmp(b.d_v, d_v, k_bytes(&b)) == 0, (keep & 4) != 0);
    }
    free(d_q);
    free(d_k);
    free(d_v);
    bench_free(&b);
}

static void check_added(const float *got, const float *once, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *got; i++)
        assert_true(fabsf(got[i] - 3.0f - once[i]) <= 1e-5f * (4.0f + fabsf(once[i])));
}

static void test_accumulate_adds(void **state) {
    (void)state;
    bench b = bench_make(TOKENS, NULL, 0);
    assert_int_equal(run_forward(&b), BURST_OK);
    assert_int_equal(run_backward(&b), BURST_OK);
    float *d_q = copy_of(b.d_q, q_bytes(&b)), *d_k = copy_of(b.d_k, k_bytes(&b)), *d_v = copy_of(b.d_v, k_bytes(&b));
    for (size_t i = 0; i < q_bytes(&b) / sizeof(float); i++) b.d_q[i] = 3;
    for (size_t i = 0; i < k_bytes(&b) / sizeof(float); i++) b.d_k[i] = b.d_v[i] = 3;
    burst_backward_args a = backward_args(&b);
    a.accumulate = 1;
    assert_int_equal(burst_backward(b.plan, &a), BURST_OK);
    check_added(b.d_q, d_q, q_bytes(&b));
    check_added(b.d_k, d_k, k_bytes(&b));
    check_added(b.d_v, d_v, k_bytes(&b));
    free(d_q);
    free(d_k);
    free(d_v);
    bench_free(&b);
}

/* ---- what a plan says of itself ---------------------------------------------------------------------------------- */

static void test_describe(void **state) {
    (void)state;
    burst_options options = BURST_OPTIONS_INIT;
    options.threads = 3;
    options.isa = BURST_ISA_SCALAR;
    bench b = bench_make(TOKENS, &options, 0);
    assert_int_equal(burst_plan_pairs(b.plan), TOKENS * (TOKENS + 1) / 2);
    assert_int_equal(burst_plan_threads(b.plan), 3);
    assert_int_equal(burst_plan_isa(b.plan), BURST_ISA_SCALAR);
    char text[4096], cut[50];
    const size_t length = burst_plan_describe(b.plan, text, sizeof text);
    assert_int_equal(length, strlen(text));
    assert_int_equal(burst_plan_describe(b.plan, NULL, 0), length);
    memset(cut, 'x', sizeof cut);
    for (size_t size = 1; size < sizeof cut; size++) {
        assert_int_equal(burst_plan_describe(b.plan, cut, size), length);
        assert_int_equal(strlen(cut), size - 1);
        assert_memory_equal(cut, text, size - 1);
        assert_int_equal(cut[size], 'x');
    }
    assert_non_null(strstr(text, "1 slice"));
    assert_non_null(strstr(text, "4095 pairs"));
    assert_non_null(strstr(text, "heads 4 on 2"));
    assert_non_null(strstr(text, "scalar"));
    assert_int_equal(burst_plan_describe(NULL, cut, sizeof cut), 0);
    assert_string_equal(cut, "");
    bench_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_plans_in_two_threads),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_plan_is_busy),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_cancel_half_way),
        cmocka_unit_test(test_plan_serves_many_calls),
        cmocka_unit_test(test_calls_leave_nothing),
        cmocka_unit_test(test_null_gradients_are_skipped),
        cmocka_unit_test(test_accumulate_adds),
        cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
