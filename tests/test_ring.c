/* test_ring.c - the ring over threads: bits, leaks, folds and masks. The oracle's verdict over ranks is test_words'. */
#include "ranks.h"

#include <math.h>
#include <stdio.h>

#include "plan.h"

/* ---- bits and leaks ---------------------------------------------------------------------------------------------- */

static void assert_same_bits(const ranks_result *a, const ranks_result *b) {
    const size_t wide = data_size(data_wide(a->word.dtype));
    assert_true(run_same(&a->data.o, &b->data.o));
    assert_true(run_same(&a->data.d_q, &b->data.d_q));
    assert_true(run_same(&a->data.d_k, &b->data.d_k));
    assert_true(run_same(&a->data.d_v, &b->data.d_v));
    assert_memory_equal(a->data.lse, b->data.lse, (size_t)(a->word.batch * a->word.heads * a->word.n) * wide);
    if (a->data.d_sink) assert_memory_equal(a->data.d_sink, b->data.d_sink, (size_t)a->word.heads * wide);
}

static void test_repeats_have_equal_bits(void **state) {
    static const char text[] = "b1h2n150d16:causal:sink:bf16";
    ranks_result *first = malloc(sizeof *first), *again = malloc(sizeof *again);
    (void)state;
    for (int sides = 0; sides < 2; sides++) {
        burst_options o = ranks_options(BURST_PARTITION_ZIGZAG, sides ? BURST_SIDE_Q : BURST_SIDE_K,
                                        sides ? BURST_SIDE_Q : BURST_SIDE_K);
        ranks_run(text, 4, &o, NULL, NULL, first);
        ranks_assert_ok(text, first, 4);
        for (int n = 0; n < 125; n++) {
            o.threads = 1 + n % 3;
            ranks_run(text, 4, &o, NULL, NULL, again);
            ranks_assert_ok(text, again, 4);
            assert_same_bits(first, again);
            ranks_free(again);
        }
        for (int r = 1; r < 4; r++) assert_memory_equal(&first->d_sink[r], &first->d_sink[0], sizeof(double));
        ranks_free(first);
    }
    free(first);
    free(again);
}

/* Puts NaN into keys and values from a position on, and into queries before another. */
typedef struct poison {
    int64_t from, to; /* tokens */
    int queries;
    double value;
} poison;

static void poison_tensor(const data_tensor *t, const int64_t *positions, const poison *p) {
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t n = 0; n < t->tokens; n++)
            for (int64_t h = 0; h < t->heads && positions[n] >= p->from && positions[n] < p->to; h++)
                for (int64_t x = 0; x < t->dim; x++) data_store(t->dtype, data_place(t, b, n, h), x, p->value);
}

static void poison_share(const word *w, share *mine, void *user) {
    const poison *p = user;
    (void)w;
    if (p->queries) {
        poison_tensor(&mine->data.q, mine->q_positions, p);
        poison_tensor(&mine->data.d_o, mine->q_positions, p);
    }
    poison_tensor(&mine->data.k, mine->k_positions, p);
    poison_tensor(&mine->data.v, mine->k_positions, p);
}

static void assert_same_tokens(const data_tensor *a, const data_tensor *b, int64_t from, int64_t to) {
    for (int64_t n = from; n < to; n++)
        for (int64_t h = 0; h < a->heads; h++)
            assert_memory_equal(data_place(a, 0, n, h), data_place(b, 0, n, h), (size_t)a->dim * data_size(a->dtype));
}

/* Tokens of one document become NaN, or other numbers: the other document keeps every bit. */
static void test_documents_do_not_leak(void **state) {
    static const char text[] = "b1h2n170d16:docs=90/80:causal";
    ranks_result *clean = malloc(sizeof *clean), *bad = malloc(sizeof *bad);
    (void)state;
    for (int kind = BURST_PARTITION_CONTIGUOUS; kind <= BURST_PARTITION_STRIPED; kind++)
        for (int side = BURST_SIDE_Q; side <= BURST_SIDE_K; side++)
            for (int n = 0; n < 2; n++) {
                const burst_options o = ranks_options((burst_partition)kind, (burst_side)side, (burst_side)side);
                poison p = {0, 90, 1, n ? NAN : 3.0};
                ranks_run(text, 3, &o, NULL, NULL, clean);
                ranks_run(text, 3, &o, poison_share, &p, bad);
                ranks_assert_ok(text, bad, 3);
                assert_same_tokens(&clean->data.o, &bad->data.o, 90, 170);
                assert_same_tokens(&clean->data.d_q, &bad->data.d_q, 90, 170);
                assert_same_tokens(&clean->data.d_k, &bad->data.d_k, 90, 170);
                assert_same_tokens(&clean->data.d_v, &bad->data.d_v, 90, 170);
                assert_false(run_same(&clean->data.o, &bad->data.o));
                ranks_free(clean);
                ranks_free(bad);
            }
    free(clean);
    free(bad);
}

/* Keys that only the last queries see are NaN: no earlier query hears of them, whichever rank they visit. */
static void test_hidden_keys_do_not_leak(void **state) {
    static const char text[] = "b1h2n160d16:causal";
    ranks_result *clean = malloc(sizeof *clean), *bad = malloc(sizeof *bad);
    (void)state;
    for (int kind = BURST_PARTITION_CONTIGUOUS; kind <= BURST_PARTITION_STRIPED; kind++)
        for (int way = 0; way < 4; way++) {
            const burst_side side = way % 2 ? BURST_SIDE_K : BURST_SIDE_Q;
            burst_options o = ranks_options((burst_partition)kind, side, side);
            o.isa = way < 2 ? BURST_ISA_AUTO : BURST_ISA_SCALAR; /* narrow panels see the bad key alone */
            poison p = {131, 160, 0, NAN};
            ranks_run(text, 4, &o, NULL, NULL, clean);
            ranks_run(text, 4, &o, poison_share, &p, bad);
            ranks_assert_ok(text, bad, 4);
            assert_same_tokens(&clean->data.o, &bad->data.o, 0, 131);
            assert_same_tokens(&clean->data.d_q, &bad->data.d_q, 0, 131);
            assert_true(isnan(data_at(&bad->data.o, 0, 131, 0, 0)));
            ranks_free(clean);
            ranks_free(bad);
        }
    free(clean);
    free(bad);
}

/* ---- folding ----------------------------------------------------------------------------------------------------- */

static void check_folds(burst_isa isa) {
    static const double tops[] = {-INFINITY, -200, -30, 0, 30, 200};
    enum { TOPS = sizeof tops / sizeof *tops };
    lao_round round = {.passes = BURST_PASS_FORWARD};
    lao_options options = {.threads = 1, .isa = isa, .memory_limit = SIZE_MAX};
    lao_list none = {NULL, 0};
    round.shape = (lao_shape){.dtype = BURST_F32,
                              .batch = 1,
                              .q_heads = 1,
                              .kv_heads = 1,
                              .q_tokens = TOPS * TOPS,
                              .k_tokens = 1,
                              .head_dim = 1,
                              .value_dim = 2,
                              .scale = 1,
                              .lists = &none,
                              .list_count = 1};
    lao *local = NULL;
    assert_int_equal(lao_create(&round, 1, &options, &local), BURST_OK);
    float acc[2][TOPS * TOPS][2], ms[2][TOPS * TOPS][2];
    for (int n = 0; n < TOPS * TOPS; n++)
        for (int side = 0; side < 2; side++) {
            const double top = tops[side ? n % TOPS : n / TOPS];
            const bool seen = top > -INFINITY;
            ms[side][n][0] = (float)top, ms[side][n][1] = seen ? 1.5f : 0;
            acc[side][n][0] = seen ? (float)(side + 1) : 0, acc[side][n][1] = seen ? -3.0f : 0;
        }
    const lao_state into = {acc[0], ms[0]}, from = {acc[1], ms[1]};
    lao_fold(local, &into, &from);
    for (int n = 0; n < TOPS * TOPS; n++) {
        const double a = tops[n / TOPS], b = tops[n % TOPS], top = fmax(a, b);
        if (top == -INFINITY) {
            assert_true(ms[0][n][0] == -INFINITY && ms[0][n][1] == 0 && acc[0][n][0] == 0 && acc[0][n][1] == 0);
            continue;
        }
        const double u = exp(a - top), v = exp(b - top);
        assert_true(ms[0][n][0] == (float)top);
        assert_true(fabs(ms[0][n][1] - 1.5 * (u + v)) <= 1e-6 * 3);
        assert_true(fabs(acc[0][n][0] - (u * 1 + v * 2)) <= 1e-6 * 3);
        assert_true(fabs(acc[0][n][1] + 3 * (u + v)) <= 1e-6 * 6);
    }
    /* A row that has seen nothing but NaN has no maximum either; it is not a row that has seen nothing. */
    ms[1][0][1] = acc[1][0][0] = acc[1][0][1] = NAN;
    lao_fold(local, &into, &from);
    assert_true(isnan(ms[0][0][1]) && isnan(acc[0][0][0]) && isnan(acc[0][0][1]));
    lao_free(local);
}

static void test_folds_of_extremes(void **state) {
    burst_isa best = BURST_ISA_SCALAR;
    (void)state;
    check_folds(BURST_ISA_SCALAR);
    assert_int_equal(lao_choose_isa(BURST_ISA_AUTO, BURST_F32, &best), BURST_OK);
    check_folds(best);
}

/* ---- words of others --------------------------------------------------------------------------------------------- */

/* Masks as MagiAttention's pipeline test has them, in f64, to 1e-8. */
static void test_masks_of_others(void **state) {
    static const char *const words[] = {
        "b1h2n900d16:f64:docs=100/200/300/300",                                               /* varlen full */
        "b1h2g1n900d16:f64:docs=150/450/300:causal",                                          /* varlen causal */
        "b1h2n704d16:f64:slices=0-256x0-256@-1000..0,256-512x0-512,512-704x512-704@-1000..0", /* block causal */
        "b1h2n512d16:f64:shared=200/112/200",                                      /* one question, answers */
        "b1h2n600d16:f64:slices=0-300x0-100,0-300x300-600@0..100,300-600x100-250", /* several key ranges */
        "b1h1n1103d16:f64:docs=201/301/601:causal",                                /* uneven */
        "b1h2n704d16:f64:lengths=698:causal",
        "b1h1n11021d16:f64:docs=1021/4001/5999:causal" /* uneven and long */
    };
    const size_t count = sizeof words / sizeof *words - RANKS_SANITIZED;
    (void)state;
    for (size_t n = 0; n < count; n++)
        for (int ranks = 2; ranks <= 5; ranks += RANKS_SANITIZED ? 3 : (int)n % 2 + 1) {
            word w;
            char error[WORD_ERROR_SIZE];
            if (word_parse(words[n], &w, error)) fail_msg("%s: %s", words[n], error);
            check_options o = {.seed = 1};
            o.plan = ranks_options((burst_partition)(1 + ((int)n + ranks) % 3), BURST_SIDE_AUTO,
                                   ranks % 2 ? BURST_SIDE_Q : BURST_SIDE_K);
            check_result r;
            check_run_threads(&w, &o, ranks, &r);
            if (r.code) fail_msg("%s over %d ranks: %d %s", words[n], ranks, r.code, r.message);
            for (int i = 0; i < CHECK_NAMES; i++)
                if (r.checked[i]) assert_true(r.errors[i].error <= 1e-8);
            word_free(&w);
        }
}

/* ---- other ways -------------------------------------------------------------------------------------------------- */

/* Gradients in 16 bits on the wire: half the bytes of the write set, and errors of a few roundings more. */
static void test_narrow_gradients(void **state) {
    ranks_result *wide = malloc(sizeof *wide), *narrow = malloc(sizeof *narrow);
    (void)state;
    for (int side = BURST_SIDE_Q; side <= BURST_SIDE_K; side++) {
        static const char text[] = "b1h2n130d32:causal:bf16";
        burst_options o = ranks_options(BURST_PARTITION_ZIGZAG, BURST_SIDE_AUTO, (burst_side)side);
        const int64_t sides[] = {0, 1};
        double largest;
        o.no_overlap = 1; /* or the own block is parted by the bytes to be sent, and sums run in another order */
        ranks_run(text, 4, &o, NULL, NULL, wide);
        o.narrow_gradients = 1;
        ranks_run(text, 4, &o, NULL, NULL, narrow);
        ranks_assert_ok(text, wide, 4);
        ranks_assert_ok(text, narrow, 4);
        assert_int_equal(2 * narrow->reports[0][1].write_bytes, wide->reports[0][1].write_bytes);
        assert_true(run_same(&wide->data.o, &narrow->data.o));
        const data_tensor *pairs[][2] = {{&wide->data.d_q, &narrow->data.d_q}, {&wide->data.d_k, &narrow->data.d_k}};
        const double far =
            run_distance(pairs[sides[side == BURST_SIDE_K]][0], pairs[sides[side == BURST_SIDE_K]][1], &largest);
        assert_true(far > 0 && far <= 4 * 0x1p-8 * largest); /* what travelled is rounded three times */
        const double same =
            run_distance(pairs[sides[side == BURST_SIDE_Q]][0], pairs[sides[side == BURST_SIDE_Q]][1], &largest);
        assert_true(same == 0); /* what stayed at home is not */
        ranks_free(wide);
        ranks_free(narrow);
    }
    free(wide);
    free(narrow);
}

/* With and without overlap, and with the statistics or lse: the same numbers. */
static void test_overlap_changes_no_result(void **state) {
    static const char text[] = "b1h2n200d16:causal";
    ranks_result *with = malloc(sizeof *with), *without = malloc(sizeof *without);
    (void)state;
    for (int side = BURST_SIDE_Q; side <= BURST_SIDE_K; side++) {
        burst_options o = ranks_options(BURST_PARTITION_AUTO, (burst_side)side, (burst_side)side);
        double largest;
        ranks_run(text, 3, &o, NULL, NULL, with);
        o.no_overlap = 1;
        ranks_run(text, 3, &o, NULL, NULL, without);
        ranks_assert_ok(text, without, 3);
        assert_true(run_distance(&with->data.o, &without->data.o, &largest) <= 1e-5);
        assert_true(run_distance(&with->data.d_q, &without->data.d_q, &largest) <= 1e-5);
        assert_true(run_distance(&with->data.d_v, &without->data.d_v, &largest) <= 1e-5);
        ranks_free(with);
        ranks_free(without);
    }
    free(with);
    free(without);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_repeats_have_equal_bits),   cmocka_unit_test(test_documents_do_not_leak),
        cmocka_unit_test(test_hidden_keys_do_not_leak),   cmocka_unit_test(test_folds_of_extremes),
        cmocka_unit_test(test_masks_of_others),           cmocka_unit_test(test_narrow_gradients),
        cmocka_unit_test(test_overlap_changes_no_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
