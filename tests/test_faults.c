/* test_faults.c - how ranks that die, stall, disagree, fail or are cancelled become errors that name them, everywhere, in
 * time, with nothing left behind. */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "meddler.h"
#include "ranks.h"

enum { TOKENS = 120, LATE = 1500, LONG = 6000, HEADS = 2, DIM = 8 };

/* One rank of a small problem, with a fault of its own. */
typedef enum fault {
    FAULT_NONE,
    FAULT_POST,       /* the k-th post fails */
    FAULT_DIE,        /* leaves before the call */
    FAULT_STALL,      /* sleeps before the call */
    FAULT_STALL_LATE, /* sleeps in the midst of it */
    FAULT_ARGUMENT,   /* NULL where data is needed */
    FAULT_PROBLEM,    /* another head_dim */
    FAULT_OPTIONS,    /* a refused option */
    FAULT_CANCEL,     /* its cancel flag is set */
    FAULT_CANCEL_LATE,
    FAULT_SCALAR, /* forces a set that sums scores in another order */
    FAULT_SET     /* bf16, and it asks for a set of its own */
} fault;

typedef struct scene {
    int ranks, culprit;
    fault fault;
    int64_t fail_at;
    int custom; /* 0: threads; the meddler: 1 copying, 2 lending */
    double timeout;
    burst_side side;
    burst_strategy strategy;
    burst_isa own, others; /* asked for (FAULT_SET) */
    burst_status status[8];
    burst_isa isa[8];
    char sentence[8][256];
    double seconds[8];
    int broke; /* calls that came after the failure and were not refused */
} scene;

typedef struct member {
    scene *scene;
    int rank;
    volatile int cancel;
    int64_t pulses;
} member;

static void cancel_later(void *user, double done) {
    member *m = user;
    if (done > 0.3) m->cancel = 1;
}

static void sleep_later(void *user, double done) {
    member *m = user;
    if (done < 1 && m->pulses++ == 0) usleep((useconds_t)(m->scene->timeout * 3e6));
}

static burst_status run_calls(burst_plan *plan, member *m) {
    scene *s = m->scene;
    const bool guilty = m->rank == s->culprit;
    const size_t n = (size_t)burst_plan_tokens(plan, BURST_SIDE_Q), all = n * HEADS * DIM;
    float *arrays[9];
    for (int i = 0; i < 9; i++) {
        arrays[i] = malloc((all + 1) * sizeof(float));
        for (size_t x = 0; x < all; x++) arrays[i][x] = (float)sin((double)(x * (size_t)(i + 1)));
    }
    void *stats = malloc(burst_plan_stats_bytes(plan) + 1);
    burst_forward_args f = BURST_FORWARD_ARGS_INIT;
    f.q.data = arrays[0], f.k.data = arrays[1], f.v.data = arrays[2], f.o.data = arrays[3], f.stats = stats;
    burst_backward_args b = BURST_BACKWARD_ARGS_INIT;
    b.q = f.q, b.k = f.k, b.v = f.v, b.o.data = f.o.data, b.d_o.data = arrays[4], b.stats = stats;
    b.d_q.data = arrays[5], b.d_k.data = arrays[6], b.d_v.data = arrays[7];
    if (guilty && s->fault == FAULT_STALL) usleep((useconds_t)(s->timeout * 3e6));
    if (guilty && s->fault == FAULT_ARGUMENT) f.q.data = NULL;
    if (guilty && s->fault == FAULT_CANCEL) m->cancel = 1;
    burst_status status = burst_forward(plan, &f);
    if (status == BURST_OK) status = burst_backward(plan, &b);
    if (status != BURST_OK) {
        snprintf(s->sentence[m->rank], sizeof s->sentence[m->rank], "%s", burst_last_error());
        const bool usable = s->fault == FAULT_ARGUMENT || s->fault == FAULT_CANCEL; /* refused before a message */
        if (!usable && burst_forward(plan, &f) == BURST_OK) __atomic_add_fetch(&s->broke, 1, __ATOMIC_RELAXED);
        base_fail(status, "%s", s->sentence[m->rank]);
    }
    for (int i = 0; i < 9; i++) free(arrays[i]);
    free(stats);
    return status;
}

static burst_status play_on(burst_transport *t, member *m) {
    scene *s = m->scene;
    const bool guilty = m->rank == s->culprit;
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_options options = BURST_OPTIONS_INIT;
    burst_plan *plan = NULL;
    problem.q_heads = HEADS;
    const bool late = s->fault == FAULT_CANCEL_LATE || s->fault == FAULT_STALL_LATE;
    problem.q_tokens = problem.k_tokens = s->fault == FAULT_CANCEL_LATE ? LONG
                                          : late                        ? LATE
                                                                        : TOKENS; /* LATE: others wait soon */
    problem.head_dim = guilty && s->fault == FAULT_PROBLEM ? DIM + 1 : DIM;
    options.threads = guilty && s->fault == FAULT_OPTIONS ? -1 : 1;
    if (guilty && s->fault == FAULT_SCALAR) options.isa = BURST_ISA_SCALAR;
    if (s->fault == FAULT_SET) problem.dtype = BURST_BF16, options.isa = guilty ? s->own : s->others;
    options.timeout = s->timeout;
    options.side_forward = options.side_backward = s->side;
    options.strategy = s->strategy;
    options.cancel = &m->cancel;
    if (guilty && late) options.progress_user = m;
    if (guilty && late) options.progress = s->fault == FAULT_CANCEL_LATE ? cancel_later : sleep_later;
    burst_status status = burst_plan_create(&problem, t, &options, &plan);
    s->isa[m->rank] = burst_plan_isa(plan);
    if (status == BURST_OK && !(guilty && s->fault == FAULT_DIE)) status = run_calls(plan, m);
    burst_plan_free(plan);
    return status;
}

static burst_status play(burst_transport *inner, void *user) {
    scene *s = user;
    const int rank = burst_transport_rank(inner);
    member m = {.scene = s, .rank = rank};
    meddler meddling = {.fail_at = rank == s->culprit && s->fault == FAULT_POST ? s->fail_at : 0};
    burst_transport *t = s->custom ? NULL : inner;
    burst_status status = s->custom ? meddler_open(&meddling, inner, s->custom == 2, &t) : BURST_OK;
    const double since = base_seconds();
    if (status == BURST_OK) status = play_on(t, &m);
    s->status[rank] = status;
    s->seconds[rank] = base_seconds() - since;
    if (status != BURST_OK) snprintf(s->sentence[rank], sizeof s->sentence[rank], "%s", burst_last_error());
    if (s->custom) burst_transport_free(t);
    return status;
}

static void run_scene(scene *s) { burst_threads_run(s->ranks, play, s); }

static void assert_named(const scene *s, int rank) {
    char name[16];
    snprintf(name, sizeof name, "rank %d", s->culprit);
    if (!strstr(s->sentence[rank], name))
        fail_msg("fault %d: rank %d does not name rank %d: \"%s\"", (int)s->fault, rank, s->culprit, s->sentence[rank]);
}

/* The guilty rank has `own`; all others an error that names it. */
static void check_scene(scene s, burst_status own) {
    for (s.culprit = 0; s.culprit < s.ranks; s.culprit++) {
        scene one = s;
        run_scene(&one);
        for (int r = 0; r < s.ranks; r++) {
            if (r == s.culprit) {
                assert_int_equal(one.status[r], own);
                continue;
            }
            assert_true(one.status[r] == BURST_PEER || one.status[r] == BURST_TRANSPORT);
            assert_named(&one, r);
        }
        assert_int_equal(one.broke, 0);
    }
    ranks_assert_nothing_left();
}

static void test_a_refusal_is_everybodys(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 5; ranks++) {
        check_scene((scene){.ranks = ranks, .fault = FAULT_ARGUMENT, .timeout = 20}, BURST_INVALID);
        check_scene((scene){.ranks = ranks, .fault = FAULT_OPTIONS, .timeout = 20}, BURST_INVALID);
        check_scene((scene){.ranks = ranks, .fault = FAULT_CANCEL, .timeout = 20}, BURST_CANCELLED);
    }
}

/* In the middle of a round, with visitors on loan and copied: all return soon, and nothing is lost. */
static void test_cancel_on_one_rank(void **state) {
    int cancelled = 0;
    (void)state;
    for (int way = 0; way < 8; way++) {
        static const burst_side sides[] = {BURST_SIDE_Q, BURST_SIDE_K, BURST_SIDE_AUTO, BURST_SIDE_AUTO};
        for (int ranks = 2; ranks <= 4; ranks++) {
            scene s = {.ranks = ranks, .culprit = way % ranks, .fault = FAULT_CANCEL_LATE, .timeout = 20};
            s.side = sides[way / 2];
            s.strategy = way < 4 ? BURST_STRATEGY_RING : way < 6 ? BURST_STRATEGY_GATHER : BURST_STRATEGY_ULYSSES;
            s.custom = way & 1;
            if (s.strategy == BURST_STRATEGY_ULYSSES && ranks > HEADS) continue;
            run_scene(&s);
            cancelled += s.status[s.culprit] == BURST_CANCELLED;
            for (int r = 0; r < ranks; r++) {
                /* it may be over before the flag is seen: then everybody is fine */
                if (s.status[s.culprit] == BURST_OK)
                    assert_int_equal(s.status[r], BURST_OK);
                else
                    assert_int_equal(s.status[r], r == s.culprit ? BURST_CANCELLED : BURST_PEER);
                assert_true(s.seconds[r] < 5);
            }
            ranks_assert_nothing_left();
        }
    }
    assert_true(cancelled > 10);
}

static void test_mismatch_is_told(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int culprit = 1; culprit < ranks; culprit++) {
            scene s = {.ranks = ranks, .culprit = culprit, .fault = FAULT_PROBLEM, .timeout = 20};
            char wanted[64];
            run_scene(&s);
            snprintf(wanted, sizeof wanted, "head_dim is 8 on rank 0, 9 on rank %d", culprit);
            for (int r = 0; r < ranks; r++) {
                assert_int_equal(s.status[r], BURST_MISMATCH);
                assert_string_equal(s.sentence[r], wanted);
            }
        }
    ranks_assert_nothing_left();
}

/* bf16 over three ranks, one asking for `own`, the others for `others`. */
static scene sets_beside(burst_isa own, burst_isa others) {
    scene s = {.ranks = 3, .culprit = 1, .fault = FAULT_SET, .own = own, .others = others, .timeout = 20};
    run_scene(&s);
    return s;
}
static void assert_sets(burst_isa own, burst_isa others, burst_isa takes, burst_isa others_take) {
    const scene s = sets_beside(own, others);
    for (int r = 0; r < s.ranks; r++) {
        assert_int_equal(s.status[r], BURST_OK);
        assert_int_equal(s.isa[r], r == s.culprit ? takes : others_take);
    }
}
static void assert_sets_differ(const scene *s) {
    for (int r = 0; r < s->ranks; r++) {
        assert_int_equal(s->status[r], BURST_MISMATCH);
        assert_non_null(strstr(s->sentence[r], "the order in which isa sums scores"));
        assert_non_null(strstr(s->sentence[r], "is not the same on ranks 0 and 1"));
    }
}

/* Scores of backward have to be those of forward, whoever computes them. */
static void test_ranks_sum_alike(void **state) {
    (void)state;
    scene s = {.ranks = 3, .culprit = 1, .fault = FAULT_SCALAR, .timeout = 20};
    if (!burst_isa_supported(BURST_ISA_AVX2)) skip();
    run_scene(&s);
    assert_sets_differ(&s);
    const burst_isa wide = burst_isa_supported(BURST_ISA_AVX512) ? BURST_ISA_AVX512 : BURST_ISA_AVX2;
    const burst_isa pairs = burst_isa_supported(BURST_ISA_AVX512BF16) ? BURST_ISA_AVX512BF16 : wide;
    const burst_isa best = burst_isa_supported(BURST_ISA_AMX) ? BURST_ISA_AMX : pairs;
    assert_sets(BURST_ISA_AVX2, BURST_ISA_AUTO, BURST_ISA_AVX2, wide);
    assert_sets(BURST_ISA_AUTO, BURST_ISA_AUTO, best, best);
    assert_sets(pairs, BURST_ISA_AUTO, pairs, pairs);
    assert_sets(BURST_ISA_AUTO, pairs, pairs, pairs);
    if (pairs != wide) {
        s = sets_beside(pairs, wide);
        assert_sets_differ(&s);
    }
    ranks_assert_nothing_left();
}

static void test_a_dead_rank_is_named(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int custom = 0; custom < 2; custom++)
            for (int culprit = 0; culprit < ranks; culprit++) {
                scene s = {.ranks = ranks, .culprit = culprit, .fault = FAULT_DIE, .timeout = 20, .custom = custom};
                run_scene(&s);
                for (int r = 0; r < ranks; r++) {
                    if (r == culprit) continue;
                    assert_true(s.status[r] == BURST_PEER || s.status[r] == BURST_TRANSPORT);
                    assert_named(&s, r);
                    assert_true(s.seconds[r] < 10);
                }
            }
    ranks_assert_nothing_left();
}

static void test_a_stalled_rank_is_named(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 5; ranks += 3)
        for (int culprit = 0; culprit < ranks; culprit += 2) {
            scene s = {.ranks = ranks, .culprit = culprit, .fault = FAULT_STALL, .timeout = 0.4, .custom = culprit & 1};
            run_scene(&s);
            for (int r = 0; r < ranks; r++) {
                assert_true(s.status[r] == BURST_PEER || s.status[r] == BURST_TRANSPORT);
                assert_named(&s, r);
                if (r != culprit) assert_true(s.seconds[r] < 1.15); /* timeout, grace, and a busy machine */
            }
            assert_int_equal(s.broke, 0);
        }
    ranks_assert_nothing_left();
}

/* In the midst of a pass: with the round and the channel. */
static void test_a_late_stall_is_named(void **state) {
    int stalled = 0;
    (void)state;
    for (int ranks = 2; ranks <= 4; ranks++)
        for (int custom = 0; custom < 2; custom++) {
            scene s = {.ranks = ranks, .culprit = custom, .fault = FAULT_STALL_LATE, .timeout = 0.6, .custom = custom};
            run_scene(&s);
            int fine = 0;
            for (int r = 0; r < ranks; r++) fine += s.status[r] == BURST_OK;
            if (fine == ranks) continue; /* a slow machine: the others were computing all the while */
            stalled++;
            for (int r = 0; r < ranks; r++) {
                assert_true(s.status[r] == BURST_PEER || s.status[r] == BURST_TRANSPORT);
                assert_named(&s, r);
                assert_non_null(strstr(s.sentence[r], "has stalled"));
                assert_non_null(strstr(s.sentence[r], "channel "));
                /* what was copied is gone: a rank may be through with its rounds, and wait for the end of the call */
                if (!custom) assert_non_null(strstr(s.sentence[r], "round "));
            }
            assert_int_equal(s.broke, 0);
        }
    ranks_assert_nothing_left();
    assert_true(stalled > 0 || RANKS_SANITIZED);
}

/* A failure on the way of a visitor is told with its round, by the rank that met it and by all others. Returns 1 if it is
 * one. */
static int check_told(const scene *s) {
    const char *own = s->sentence[s->culprit];
    if (!strstr(own, "the cable was cut") || !(strstr(own, "channel read") || strstr(own, "channel write"))) return 0;
    for (int r = 0; r < s->ranks; r++) {
        assert_non_null(strstr(s->sentence[r], ", round "));
        assert_non_null(strstr(s->sentence[r], "the cable was cut"));
        if (r != s->culprit) assert_named(s, r);
    }
    return 1;
}

/* The k-th post of one rank fails, for every k until the call is through: all ranks return an error. Only in the very last
 * agreement, when all outputs are written, a rank may have heard all it needed before another fails to say it. */
static void test_every_post_can_fail(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++)
        for (int way = 0; way < 8; way++) {
            static const burst_side sides[] = {BURST_SIDE_Q, BURST_SIDE_K, BURST_SIDE_AUTO, BURST_SIDE_AUTO};
            const burst_strategy strategy = way % 4 < 2 ? BURST_STRATEGY_RING : (burst_strategy)(way % 4);
            int64_t k = 1, partial = INT64_MAX;
            int told = 0;
            if (strategy == BURST_STRATEGY_ULYSSES && ranks > HEADS) continue;
            for (;; k++) {
                scene s = {.ranks = ranks,
                           .culprit = (int)k % ranks,
                           .fault = FAULT_POST,
                           .fail_at = k,
                           .custom = 1 + way / 4,
                           .timeout = 20,
                           .side = sides[way % 4],
                           .strategy = strategy};
                run_scene(&s);
                int failed = 0;
                for (int r = 0; r < ranks; r++) failed += s.status[r] != BURST_OK;
                if (!failed) break; /* there is no k-th post */
                if (failed < ranks && k < partial) partial = k;
                told += check_told(&s);
                assert_true(k < 500);
            }
            assert_true(k > 20);
            assert_true(told > 0);
            assert_true(partial >= k - 2 * (ranks - 1)); /* two posts in each round of the agreement */
        }
    ranks_assert_nothing_left();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refusal_is_everybodys), cmocka_unit_test(test_cancel_on_one_rank),
        cmocka_unit_test(test_mismatch_is_told),        cmocka_unit_test(test_ranks_sum_alike),
        cmocka_unit_test(test_a_dead_rank_is_named),    cmocka_unit_test(test_a_stalled_rank_is_named),
        cmocka_unit_test(test_a_late_stall_is_named),   cmocka_unit_test(test_every_post_can_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
