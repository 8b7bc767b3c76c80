/* test_exchange.c - gather, ulysses and a ring that sends o, over threads: bytes, bits, leaks, memory, refusals. The oracle's
 * verdict over all of them is test_words'. */
#include "ranks.h"

#include <math.h>
#include <stdio.h>

#include "plan.h"
#include "word_mask.h"

static burst_options options_of(burst_strategy strategy, burst_partition partition) {
    burst_options o = BURST_OPTIONS_INIT;
    o.threads = 1;
    o.strategy = strategy;
    o.partition = partition;
    o.timeout = 20;
    return o;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* A head's pairs, by the plans of all ranks: met[q][k] counts how often. The places of keys and queries among all tokens
 * are looked up in the plan's own table; that the table is a permutation is checked too. */
enum { SMALL = 40 };

static void positions_at(const burst_plan *plan, burst_side side, int64_t tokens, int64_t *at) {
    for (int64_t n = 0; n < tokens; n++) at[n] = -1;
    for (int rank = 0; rank < plan->ranks; rank++) {
        const plan_share places = stage_places(plan, side, rank), owned = plan_share_of(plan, side, rank);
        int64_t position[SMALL], count = 0;
        for (int s = 0; s < owned.count; s++)
            for (int64_t i = 0; i < owned.spans[s].count; i++)
                position[count++] = owned.spans[s].begin + i * owned.spans[s].stride;
        int64_t n = 0;
        for (int s = 0; s < places.count; s++)
            for (int64_t i = 0; i < places.spans[s].count; i++) {
                const int64_t place = places.spans[s].begin + i * places.spans[s].stride;
                assert_true(place >= 0 && place < tokens && at[place] == -1);
                at[place] = position[n++];
            }
        assert_int_equal(n, count);
    }
}

static void check_pairs(const char *text, int ranks, const burst_options *o) {
    word w;
    word_problem made;
    char error[WORD_ERROR_SIZE];
    int met[SMALL][SMALL] = {{0}};
    if (word_parse(text, &w, error)) fail_msg("%s: %s", text, error);
    assert_int_equal(word_problem_make(&w, 1, &made), BURST_OK);
    int64_t work = 0;
    for (int r = 0; r < ranks; r++) {
        burst_transport *t = NULL;
        burst_plan *plan = NULL;
        int64_t q[SMALL], k[SMALL];
        assert_int_equal(burst_transport_create_dry(r, ranks, &t), BURST_OK);
        if (burst_plan_create(&made.problem, t, o, &plan)) fail_msg("%s: %s", text, burst_last_error());
        positions_at(plan, BURST_SIDE_K, w.k, k);
        if (o->strategy == BURST_STRATEGY_ULYSSES)
            positions_at(plan, BURST_SIDE_Q, w.n, q);
        else
            burst_plan_positions(plan, BURST_SIDE_Q, q);
        for (size_t n = 0; n < plan->lists[0].count; n++) {
            const lao_rect *rect = &plan->lists[0].rects[n];
            for (int64_t i = rect->i0; i < rect->i0 + rect->ni; i++)
                for (int64_t j = rect->j0; j < rect->j0 + rect->nj; j++) {
                    assert_int_equal(q[i], rect->q0 + rect->sq * (i - rect->i0));
                    assert_int_equal(k[j], rect->k0 + rect->sk * (j - rect->j0));
                    if (k[j] - q[i] >= rect->lo && k[j] - q[i] <= rect->hi) met[q[i]][k[j]]++;
                }
        }
        work += plan_work(plan, BURST_PASS_FORWARD);
        burst_plan_free(plan);
        burst_transport_free(t);
    }
    const int times = o->strategy == BURST_STRATEGY_ULYSSES ? ranks : 1; /* each rank, for heads of its own */
    word_mask mask;
    int64_t pairs = 0;
    word_mask_make(&w, 1, &mask);
    for (int64_t a = 0; a < w.n; a++)
        for (int64_t b = 0; b < w.k; b++) {
            const int allowed = word_mask_allows(&mask, 0, a, b);
            pairs += allowed;
            if (met[a][b] != allowed * times)
                fail_msg("%s over %d ranks: pair %d, %d is met %d times", text, ranks, (int)a, (int)b, met[a][b]);
        }
    assert_int_equal(work, pairs * w.heads);
    word_mask_free(&mask);
    word_problem_free(&made);
    word_free(&w);
}

static void test_every_pair_is_met_once(void **state) {
    static const char *const words[] = {"b1h4n37d4:causal",       "b1h4n23k40d4:causal",
                                        "b1h4n40d4:window=5/3",   "b1h4n39d4:docs=7/0/13/19:causal",
                                        "b1h4n33d4:blocks=8/0.4", "b1h4n3d4:causal"};
    (void)state;
    for (size_t n = 0; n < sizeof words / sizeof *words; n++)
        for (int ranks = 2; ranks <= 8; ranks++)
            for (int kind = BURST_PARTITION_AUTO; kind <= BURST_PARTITION_STRIPED; kind++) {
                const burst_options gather = options_of(BURST_STRATEGY_GATHER, (burst_partition)kind);
                const burst_options ulysses = options_of(BURST_STRATEGY_ULYSSES, (burst_partition)kind);
                check_pairs(words[n], ranks, &gather);
                if (ranks == 2 || ranks == 4) check_pairs(words[n], ranks, &ulysses);
            }
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Sent by all ranks together in a pass: the published formulas, times ranks, with n ranks = N; statistics and lse beside
 * ulysses' o. */
static double formula(const word *w, burst_strategy strategy, int send_o, int p, int backward) {
    const double e = (double)data_size(w->dtype), f = w->dtype == BURST_F64 ? 8 : 4, h = (double)w->heads;
    const double n = (double)(w->batch * w->n), m = (double)(w->batch * w->k), g = (double)w->groups;
    const double dq = h * (double)w->d, d_o = h * (double)w->v, kv = g * (double)(w->d + w->v);
    if (strategy == BURST_STRATEGY_RING) /* Q side backward */
        return (p - 1) * n * ((dq + d_o * (send_o ? 2 : 1)) * e + (send_o ? 2 : 3) * f * h + dq * f);
    if (strategy == BURST_STRATEGY_GATHER) return (p - 1) * m * kv * (e + (backward ? f : 0));
    const double copies = p > w->groups ? p / g : 1, k = kv * copies, gradient = copies > 1 ? f : e;
    if (!backward) return (p - 1.0) / p * (n * ((dq + d_o) * e + 3 * f * h) + m * k * e);
    return (p - 1.0) / p * (n * ((dq + d_o) * e + dq * gradient + 3 * f * h) + m * k * (e + gradient));
}

static void check_bytes(const char *text, int ranks, const burst_options *o) {
    ranks_result *r = malloc(sizeof *r);
    ranks_run(text, ranks, o, NULL, NULL, r);
    ranks_assert_ok(text, r, ranks);
    for (int pass = o->strategy == BURST_STRATEGY_RING; pass < 2; pass++) {
        double sent = 0;
        for (int n = 0; n < ranks; n++) {
            const burst_report *p = &r->reports[n][pass];
            assert_int_equal(p->read_bytes + p->write_bytes, r->wire[n][pass]);
            sent += (double)(p->read_bytes + p->write_bytes);
        }
        const double wanted = formula(&r->word, o->strategy, o->send_o, ranks, pass);
        if (fabs(sent - wanted) > 0.5)
            fail_msg("%s, strategy %d, %d ranks: %.0f bytes, by the formula %.0f", text, (int)o->strategy, ranks, sent,
                     wanted);
    }
    ranks_free(r);
    free(r);
}

static void test_bytes_equal_the_formulas(void **state) {
    static const char *const words[] = {"b2h8g4n48k72d8v12:causal", "b1h4n64d16:causal:bf16", "b1h4g1n48d8:f16",
                                        "b1h4n24d8:f64:sink"};
    (void)state;
    for (size_t n = 0; n < sizeof words / sizeof *words; n++)
        for (int ranks = 2; ranks <= 4; ranks++) {
            burst_options gather = options_of(BURST_STRATEGY_GATHER, BURST_PARTITION_AUTO);
            burst_options ulysses = options_of(BURST_STRATEGY_ULYSSES, BURST_PARTITION_AUTO);
            burst_options with_o = options_of(BURST_STRATEGY_RING, BURST_PARTITION_AUTO);
            with_o.side_backward = BURST_SIDE_Q;
            check_bytes(words[n], ranks, &gather);
            check_bytes(words[n], ranks, &with_o);
            with_o.send_o = 1;
            check_bytes(words[n], ranks, &with_o);
            if (ranks != 3) check_bytes(words[n], ranks, &ulysses);
        }
}

/* ---- bits and leaks ---------------------------------------------------------------------------------------------- */

static void assert_same(const ranks_result *a, const ranks_result *b) {
    assert_true(run_same(&a->data.o, &b->data.o));
    assert_true(run_same(&a->data.d_q, &b->data.d_q));
    assert_true(run_same(&a->data.d_k, &b->data.d_k));
    assert_true(run_same(&a->data.d_v, &b->data.d_v));
    assert_memory_equal(a->d_sink, b->d_sink, sizeof a->d_sink);
}

static void test_repeats_have_equal_bits(void **state) {
    static const char *const words[] = {"b2h4g2n150d16:causal:sink:bf16", "b1h4n90d16:sink"};
    ranks_result *first = malloc(sizeof *first), *again = malloc(sizeof *again);
    (void)state;
    for (size_t w = 0; w < 2; w++)
        for (int strategy = BURST_STRATEGY_GATHER; strategy <= BURST_STRATEGY_ULYSSES; strategy++) {
            burst_options o = options_of((burst_strategy)strategy, BURST_PARTITION_AUTO);
            ranks_run(words[w], 4, &o, NULL, NULL, first);
            ranks_assert_ok(words[w], first, 4);
            for (int r = 1; r < 4; r++) assert_memory_equal(&first->d_sink[r], &first->d_sink[0], sizeof(double));
            for (int n = 0; n < 30; n++) {
                o.threads = 1 + n % 3;
                o.no_overlap = n % 2;
                ranks_run(words[w], 4, &o, NULL, NULL, again);
                ranks_assert_ok(words[w], again, 4);
                assert_same(first, again);
                ranks_free(again);
            }
            ranks_free(first);
        }
    free(first);
    free(again);
}

/* The second half of the keys and values is NaN. */
static void poison(const word *w, share *mine, void *user) {
    const data_tensor *both[] = {&mine->data.k, &mine->data.v};
    (void)user;
    for (int i = 0; i < 2; i++)
        for (int64_t n = 0; n < both[i]->tokens; n++)
            for (int64_t h = 0; h < both[i]->heads && mine->k_positions[n] >= w->k / 2; h++)
                for (int64_t x = 0; x < both[i]->dim; x++) data_store(w->dtype, data_place(both[i], 0, n, h), x, NAN);
}

static void test_hidden_keys_do_not_leak(void **state) {
    static const char text[] = "b1h4n160d16:causal";
    ranks_result *clean = malloc(sizeof *clean), *bad = malloc(sizeof *bad);
    (void)state;
    for (int strategy = BURST_STRATEGY_GATHER; strategy <= BURST_STRATEGY_ULYSSES; strategy++)
        for (int kind = BURST_PARTITION_CONTIGUOUS; kind <= BURST_PARTITION_STRIPED; kind++) {
            const burst_options o = options_of((burst_strategy)strategy, (burst_partition)kind);
            ranks_run(text, 4, &o, NULL, NULL, clean);
            ranks_run(text, 4, &o, poison, NULL, bad);
            ranks_assert_ok(text, bad, 4);
            for (int64_t n = 0; n < 80; n++)
                for (int64_t h = 0; h < 4; h++) {
                    const size_t row = 16 * sizeof(float);
                    assert_memory_equal(data_place(&clean->data.o, 0, n, h), data_place(&bad->data.o, 0, n, h), row);
                    assert_memory_equal(data_place(&clean->data.d_q, 0, n, h), data_place(&bad->data.d_q, 0, n, h),
                                        row);
                }
            assert_true(isnan(data_at(&bad->data.o, 0, 80, 0, 0)));
            ranks_free(clean);
            ranks_free(bad);
        }
    free(clean);
    free(bad);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Gradients that are added to what is there: twice the same is twice as much, in 16 bits too rounded once. */
typedef struct adding {
    burst_options options;
    word word;
    word_problem problem;
    double worst;
} adding;

static burst_status add_rank(burst_transport *t, void *user) {
    adding *a = user;
    burst_plan *plan = NULL;
    share mine;
    burst_status status = burst_plan_create(&a->problem.problem, t, &a->options, &plan);
    if (status != BURST_OK) return status;
    share_make(&a->word, 1, 1, plan, &mine);
    data *d = &mine.data;
    void *stats = malloc(burst_plan_stats_bytes(plan) + 1);
    status = check_forward(plan, d, stats);
    if (status == BURST_OK) status = check_backward(plan, d, stats);
    const data_tensor sinks = {
        .data = d->d_sink, .dtype = data_wide(a->word.dtype), .tokens = 1, .heads = a->word.heads, .dim = 1};
    const data_tensor *tensors[] = {&d->d_q, &d->d_k, &d->d_v, &sinks};
    double *once[4];
    const int kinds = d->d_sink ? 4 : 3;
    for (int n = 0; n < kinds; n++) {
        const int64_t count = tensors[n]->tokens * tensors[n]->heads * tensors[n]->dim;
        once[n] = malloc((size_t)(count + 1) * sizeof(double));
        for (int64_t i = 0; i < count; i++) once[n][i] = data_load(tensors[n]->dtype, tensors[n]->data, i);
    }
    burst_backward_args args = BURST_BACKWARD_ARGS_INIT;
    args.q = data_input(&d->q), args.k = data_input(&d->k), args.v = data_input(&d->v), args.o = data_input(&d->o);
    args.d_o = data_input(&d->d_o), args.stats = stats, args.accumulate = 1;
    args.d_q = data_output(&d->d_q), args.d_k = data_output(&d->d_k), args.d_v = data_output(&d->d_v);
    args.sink = d->sink, args.d_sink = d->d_sink;
    if (status == BURST_OK) status = burst_backward(plan, &args);
    for (int n = 0; n < kinds; n++) {
        const int64_t count = tensors[n]->tokens * tensors[n]->heads * tensors[n]->dim;
        for (int64_t i = 0; i < count; i++) {
            const double far = fabs(data_load(tensors[n]->dtype, tensors[n]->data, i) - 2 * once[n][i]);
            const double allowed = 2 * data_epsilon(tensors[n]->dtype) * fabs(once[n][i]) + 1e-30;
            if (far / allowed > a->worst) a->worst = far / allowed; /* racing writers: any is too large */
        }
        free(once[n]);
    }
    free(stats);
    share_free(&mine);
    burst_plan_free(plan);
    return status;
}

static void test_gradients_are_added(void **state) {
    static const char *const words[] = {"b1h4n60d16:causal:bf16", "b1h4g1n60d16:f16", "b1h4n60d16:causal",
                                        "b1h4n40k2500d16:sink",               /* in chunks of keys */
                                        "b1h4n60k90d16:window=5/0:sink:f64"}; /* keys that nobody sees */
    (void)state;
    for (size_t n = 0; n < sizeof words / sizeof *words; n++)
        for (int strategy = BURST_STRATEGY_AUTO; strategy <= BURST_STRATEGY_ULYSSES; strategy++) {
            const int ranks = strategy == BURST_STRATEGY_AUTO ? 1 : 2;
            char error[WORD_ERROR_SIZE];
            adding a = {.options = options_of((burst_strategy)strategy, BURST_PARTITION_AUTO)};
            assert_int_equal(word_parse(words[n], &a.word, error), 0);
            assert_int_equal(word_problem_make(&a.word, 1, &a.problem), BURST_OK);
            assert_int_equal(burst_threads_run(ranks, add_rank, &a), BURST_OK);
            assert_true(a.worst <= 1);
            word_problem_free(&a.problem);
            word_free(&a.word);
        }
}

/* ---- memory and refusals ----------------------------------------------------------------------------------------- */

static void test_memory_is_as_stated(void **state) {
    (void)state;
    for (int strategy = BURST_STRATEGY_GATHER; strategy <= BURST_STRATEGY_ULYSSES; strategy++) {
        burst_options o = options_of((burst_strategy)strategy, BURST_PARTITION_AUTO);
        burst_problem problem = BURST_PROBLEM_INIT;
        burst_transport *ends[2];
        burst_plan *plan = NULL;
        problem.q_heads = 8, problem.q_tokens = problem.k_tokens = 4096, problem.head_dim = 64;
        assert_int_equal(burst_transport_create_dry(1, 4, &ends[0]), BURST_OK);
        assert_int_equal(burst_plan_create(&problem, ends[0], &o, &plan), BURST_OK);
        const size_t needed = burst_plan_workspace_bytes(plan);
        burst_plan_free(plan);
        o.memory_limit = needed - 1;
        assert_int_equal(burst_plan_create(&problem, ends[0], &o, &plan), BURST_MEMORY);
        char wanted[64];
        snprintf(wanted, sizeof wanted, "needs %zu bytes", needed);
        assert_non_null(strstr(burst_last_error(), wanted));
        o.memory_limit = needed;
        assert_int_equal(burst_plan_create(&problem, ends[0], &o, &plan), BURST_OK);
        burst_plan_free(plan);
        burst_transport_free(ends[0]);
    }
}

static void refuse(burst_options o, int heads, int kv_heads, int ranks, burst_status status, const char *words) {
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_transport *t = NULL;
    burst_plan *plan = NULL;
    problem.q_heads = heads, problem.kv_heads = kv_heads, problem.q_tokens = problem.k_tokens = 64,
    problem.head_dim = 8;
    assert_int_equal(burst_transport_create_dry(0, ranks, &t), BURST_OK);
    assert_int_equal(burst_plan_create(&problem, t, &o, &plan), status);
    assert_non_null(strstr(burst_last_error(), words));
    burst_transport_free(t);
}

static void test_refusals(void **state) {
    burst_options o = options_of(BURST_STRATEGY_ULYSSES, BURST_PARTITION_AUTO);
    (void)state;
    refuse(o, 6, 6, 4, BURST_UNSUPPORTED, "6 query heads are not a multiple of 4 ranks");
    refuse(o, 12, 4, 6, BURST_UNSUPPORTED, "4 kv heads are neither a multiple nor a divisor of 6 ranks");
    o.side_forward = BURST_SIDE_Q;
    refuse(o, 4, 4, 2, BURST_INVALID, "are the ring's");
    o = options_of(BURST_STRATEGY_GATHER, BURST_PARTITION_AUTO);
    o.send_o = 1;
    refuse(o, 4, 4, 2, BURST_INVALID, "side_backward must be BURST_SIDE_Q");
    o.send_o = 2;
    refuse(o, 4, 4, 2, BURST_INVALID, "send_o is 2");
    o = options_of((burst_strategy)9, BURST_PARTITION_AUTO);
    refuse(o, 4, 4, 2, BURST_INVALID, "strategy is 9");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_pair_is_met_once),
        cmocka_unit_test(test_bytes_equal_the_formulas),
        cmocka_unit_test(test_repeats_have_equal_bits),
        cmocka_unit_test(test_hidden_keys_do_not_leak),
        cmocka_unit_test(test_gradients_are_added),
        cmocka_unit_test(test_memory_is_as_stated),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
