/* test_properties.c - what holds without an oracle: linearity, conservation, invariance, and that what a row may not see
 * never reaches it. Gradients also by finite differences in f64. */
#include <math.h>
#include <stdio.h>

#include "run.h"

static double *head_rows(const data_tensor *t, int64_t head) {
    double *out = malloc((size_t)(t->tokens * t->dim) * sizeof *out);
    data_load_head(t, 0, head, out);
    return out;
}

static void put(data_tensor *t, int64_t token, int64_t head, int64_t x, double value) {
    data_store(t->dtype, t->data, token * t->token_stride + head * t->head_stride + x, value);
}

/* o(v1 + v2) = o(v1) + o(v2), to rounding */
static void test_linear_in_v(void **state) {
    (void)state;
    run a, b;
    run_make("b1h2n200d32:causal:softcap=5", 2, BURST_ISA_AUTO, &a);
    run_make("b1h2n200d32:causal:softcap=5", 2, BURST_ISA_AUTO, &b);
    run_both(&a);
    for (int64_t h = 0; h < 2; h++)
        for (int64_t t = 0; t < 200; t++)
            for (int64_t x = 0; x < 32; x++) put(&b.data.v, t, h, x, 1 - 3 * data_at(&a.data.v, 0, t, h, x));
    run_both(&b);
    for (int64_t h = 0; h < 2; h++)
        for (int64_t t = 0; t < 200; t++)
            for (int64_t x = 0; x < 32; x++)
                assert_true(fabs(data_at(&b.data.o, 0, t, h, x) - (1 - 3 * data_at(&a.data.o, 0, t, h, x))) < 4e-6);
    run_free(&a);
    run_free(&b);
}

/* every row's weights sum to 1: sum over keys of d_v = sum over rows of d_o, in each dim */
static void test_values_conserve(void **state) {
    (void)state;
    static const char *const words[] = {"b1h2n333d24:causal", "b1h1n150k70d16",
                                        "b1h2n300d40:docs=100/7/193:causal:f64"};
    for (int n = 0; n < 3; n++) {
        run r;
        run_make(words[n], 2, BURST_ISA_AUTO, &r);
        run_both(&r);
        for (int64_t h = 0; h < r.word.heads; h++) {
            double *dv = head_rows(&r.data.d_v, h), *d_o = head_rows(&r.data.d_o, h);
            for (int64_t x = 0; x < r.word.v; x++) {
                double sum_v = 0, sum_o = 0;
                const int64_t hidden = 0; /* start-aligned rows without keys would not count; these words have none */
                for (int64_t t = 0; t < r.word.k; t++) sum_v += dv[t * r.word.v + x];
                for (int64_t t = hidden; t < r.word.n; t++) sum_o += d_o[t * r.word.v + x];
                assert_true(fabs(sum_v - sum_o) < (r.word.dtype == BURST_F64 ? 1e-11 : 1e-3));
            }
            free(dv);
            free(d_o);
        }
        run_free(&r);
    }
}

/* keys in another order, the same attention */
static void test_permuted_keys(void **state) {
    (void)state;
    run a, b;
    run_make("b1h1n60k301d48:sink", 2, BURST_ISA_AUTO, &a);
    run_make("b1h1n60k301d48:sink", 2, BURST_ISA_AUTO, &b);
    for (int64_t t = 0; t < 301; t++)
        for (int64_t x = 0; x < 48; x++) {
            put(&b.data.k, t * 100 % 301, 0, x, data_at(&a.data.k, 0, t, 0, x));
            put(&b.data.v, t * 100 % 301, 0, x, data_at(&a.data.v, 0, t, 0, x));
        }
    run_both(&a);
    run_both(&b);
    double largest;
    assert_true(run_distance(&a.data.o, &b.data.o, &largest) < 1e-6);
    assert_true(run_distance(&a.data.d_q, &b.data.d_q, &largest) < 1e-5);
    for (int64_t t = 0; t < 301; t++)
        for (int64_t x = 0; x < 48; x++)
            assert_true(fabs(data_at(&b.data.d_k, 0, t * 100 % 301, 0, x) - data_at(&a.data.d_k, 0, t, 0, x)) < 1e-5);
    run_free(&a);
    run_free(&b);
}

/* two halves of the keys, folded by their lse, are the whole; with large scores too */
static void test_split_and_fold(void **state) {
    (void)state;
    static const char *const whole[2] = {"b1h1n40k400d32:slices=0-40x0-400", "b1h1n40k400d32:amp=60:slices=0-40x0-400"};
    static const char *const left[2] = {"b1h1n40k400d32:slices=0-40x0-150", "b1h1n40k400d32:amp=60:slices=0-40x0-150"};
    static const char *const right[2] = {"b1h1n40k400d32:slices=0-40x150-400",
                                         "b1h1n40k400d32:amp=60:slices=0-40x150-400"};
    for (int n = 0; n < 2; n++) {
        run r[3];
        run_make(whole[n], 2, BURST_ISA_AUTO, &r[0]);
        run_make(left[n], 2, BURST_ISA_AUTO, &r[1]);
        run_make(right[n], 2, BURST_ISA_AUTO, &r[2]);
        for (int i = 0; i < 3; i++) run_both(&r[i]);
        for (int64_t t = 0; t < 40; t++) {
            double lse[3], weight[3];
            for (int i = 0; i < 3; i++) lse[i] = data_load(BURST_F32, r[i].data.lse, t);
            for (int i = 0; i < 3; i++) weight[i] = exp(lse[i] - lse[0]);
            assert_true(fabs(weight[1] + weight[2] - 1) < (n ? 1e-3 : 1e-5));
            for (int64_t x = 0; x < 32; x++) {
                const double fold =
                    weight[1] * data_at(&r[1].data.o, 0, t, 0, x) + weight[2] * data_at(&r[2].data.o, 0, t, 0, x);
                assert_true(fabs(fold - data_at(&r[0].data.o, 0, t, 0, x)) < (n ? 1e-3 : 1e-5));
            }
        }
        for (int i = 0; i < 3; i++) run_free(&r[i]);
    }
}

enum { SETS = 5, X16 = 100, TILES = 101, PAIRS = 102 }; /* these three are in the test library only */
static const burst_isa sets[SETS] = {BURST_ISA_SCALAR, BURST_ISA_AUTO, (burst_isa)X16, (burst_isa)TILES,
                                     (burst_isa)PAIRS};
static bool usable(int set) {
    burst_plan *plan = NULL;
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_options options = BURST_OPTIONS_INIT;
    problem.head_dim = 1;
    options.isa = sets[set];
    const bool ok = burst_plan_create(&problem, NULL, &options, &plan) == BURST_OK;
    burst_plan_free(plan);
    return ok;
}

static void assert_rows_kept(const data_tensor *before, const data_tensor *after, int64_t from, int64_t to) {
    const size_t row = (size_t)(before->heads * before->dim) * data_size(before->dtype);
    assert_memory_equal(before->data + (size_t)from * row, after->data + (size_t)from * row, (size_t)(to - from) * row);
}
static void assert_lse_kept(const run *a, const run *b, int64_t from, int64_t to) {
    for (int64_t h = 0; h < a->word.heads; h++)
        assert_memory_equal((char *)a->data.lse + (h * a->word.n + from) * 4,
                            (char *)b->data.lse + (h * a->word.n + from) * 4, (size_t)(to - from) * 4);
}

/* Spoils token `bad` (q, k, v and d_o) and asserts that rows and keys [from, to), which it shares no pair with, keep every
 * bit in o, lse and all gradients. */
static void assert_no_leak(const char *text, int64_t bad, int64_t from, int64_t to, double poison) {
    for (int set = 0; set < SETS; set++) {
        run a, b;
        if (!usable(set)) continue;
        run_make(text, 2, sets[set], &a);
        run_make(text, 2, sets[set], &b);
        run_both(&a);
        for (int64_t h = 0; h < a.word.heads; h++)
            for (int64_t x = 0; x < a.word.d; x += 7) {
                const int64_t y = x % a.data.v.dim;
                put(&b.data.q, bad, h, x, poison);
                put(&b.data.d_o, bad, h, y, poison);
                if (h >= a.word.groups) continue;
                put(&b.data.k, bad, h, x, poison);
                put(&b.data.v, bad, h, y, poison);
            }
        run_both(&b);
        int changed = 0;
        const data_tensor *before[4] = {&a.data.o, &a.data.d_q, &a.data.d_k, &a.data.d_v};
        const data_tensor *after[4] = {&b.data.o, &b.data.d_q, &b.data.d_k, &b.data.d_v};
        for (int i = 0; i < 4; i++) {
            const size_t size = data_size(before[i]->dtype), row = (size_t)(before[i]->heads * before[i]->dim) * size;
            assert_rows_kept(before[i], after[i], from, to);
            changed += memcmp(before[i]->data + (size_t)bad * row, after[i]->data + (size_t)bad * row, row) != 0;
        }
        assert_int_equal(changed, 4); /* it did reach those that see it */
        assert_lse_kept(&a, &b, from, to);
        /* without statistics a few rows go another way */
        assert_int_equal(check_forward(a.plan, &a.data, NULL), BURST_OK);
        assert_int_equal(check_forward(b.plan, &b.data, NULL), BURST_OK);
        assert_rows_kept(&a.data.o, &b.data.o, from, to);
        assert_lse_kept(&a, &b, from, to);
        run_free(&a);
        run_free(&b);
    }
}

static void test_hidden_tokens_never_leak(void **state) {
    (void)state;
    const double poisons[4] = {NAN, INFINITY, -INFINITY, 1e30};
    for (int n = 0; n < 4; n++) {
        /* the last token of a document of its own, in the same tiles and panels as its neighbours */
        assert_no_leak("b1h2n300d64:docs=10/30/260:causal", 39, 40, 300, poisons[n]);
        assert_no_leak("b1h2n300d64:docs=10/30/260:causal", 39, 0, 10, poisons[n]);
        assert_no_leak("b1h4g2n130d40:docs=61/69:alibi", 60, 61, 130, poisons[n]);
        assert_no_leak("b1h2n200d16:docs=100/100:window=9/0:softcap=3:sink", 99, 100, 200, poisons[n]);
        assert_no_leak("b1h4g1n5d32:docs=2/3:causal", 1, 2, 5, poisons[n]);
        assert_no_leak("b1h1n3d32:docs=1/2:causal", 0, 1, 3, poisons[n]);
    }
    for (int n = 0; n < 3; n++) {
        assert_no_leak("b1h4g2n130d39v15:docs=61/69:bf16", 60, 61, 130, poisons[n]);
        assert_no_leak("b1h2n300d64:docs=10/30/260:causal:bf16", 39, 40, 300, poisons[n]);
        assert_no_leak("b1h2n200d16:docs=100/100:window=9/0:softcap=3:sink:bf16", 99, 100, 200, poisons[n]);
    }
}

/* causal: a NaN key or value at t changes no bit of o and lse before t */
static void test_future_never_leaks(void **state) {
    (void)state;
    for (int64_t bad = 1; bad < 230; bad += 13) {
        run a, b;
        run_make("b1h2n230d64:causal", 2, BURST_ISA_AUTO, &a);
        run_make("b1h2n230d64:causal", 2, BURST_ISA_AUTO, &b);
        for (int64_t x = 0; x < 64; x++) {
            put(&b.data.k, bad, 1, x, NAN);
            put(&b.data.v, bad, 0, x, INFINITY);
        }
        run_both(&a);
        run_both(&b);
        assert_memory_equal(a.data.o.data, b.data.o.data, (size_t)bad * 2 * 64 * 4);
        assert_true(isnan(data_at(&b.data.o, 0, bad, 1, 5)));
        assert_true(!isfinite(data_at(&b.data.o, 0, bad, 0, 5)));
        run_free(&a);
        run_free(&b);
    }
}

/* one query: a key that it may not see changes no bit, one that it sees does; heads side by side and apart */
static void test_decode_never_leaks(void **state) {
    (void)state;
    const char *const texts[] = {"b1h1n1k500d64:window=300/0", "b1h3n1k500d40:window=300/0:alibi",
                                 "b1h3n1k500d40:window=300/0:layout=bhnd", "b1h8g2n1k500d64:window=300/0"};
    for (int n = 0; n < 4; n++)
        for (int set = 0; set < SETS; set++)
            for (int64_t bad = 197; bad < 201; bad++) { /* the query sees keys from 199 on */
                if (!usable(set)) continue;
                run a, b;
                run_make(texts[n], 2, sets[set], &a);
                run_make(texts[n], 2, sets[set], &b);
                for (int64_t h = 0; h < a.word.groups; h++) {
                    put(&b.data.k, bad, h, 5, NAN);
                    put(&b.data.v, bad, h, 7, INFINITY);
                }
                assert_int_equal(check_forward(a.plan, &a.data, NULL), BURST_OK);
                assert_int_equal(check_forward(b.plan, &b.data, NULL), BURST_OK);
                const int64_t size = a.word.heads * a.word.d * 4;
                if (bad < 199) assert_memory_equal(a.data.o.data, b.data.o.data, (size_t)size);
                for (int64_t h = 0; h < a.word.heads && bad >= 199; h++)
                    assert_true(isnan(data_at(&b.data.o, 0, 0, h, 0)));
                run_free(&a);
                run_free(&b);
            }
}

/* keys lie beside each other in memory: one kv head's NaN right behind a key of another is none of its business */
static void test_decode_reads_its_own_head(void **state) {
    (void)state;
    const char *const types[] = {"f32", "bf16", "f16"};
    for (int n = 0; n < 3 * SETS; n++)
        for (int64_t d = 1; d <= 130; d += d < 36 ? 1 : 7) {
            char text[100];
            run a, b;
            if (!usable(n / 3)) continue;
            snprintf(text, sizeof text, "b1h%dg2n1k30d%d:%s", d % 2 ? 4 : 2, (int)d, types[n % 3]);
            run_make(text, 1, sets[n / 3], &a);
            run_make(text, 1, sets[n / 3], &b);
            for (int64_t key = 0; key < 30; key++) put(&b.data.k, key, 1, 0, NAN), put(&b.data.v, key, 1, 0, NAN);
            assert_int_equal(check_forward(a.plan, &a.data, NULL), BURST_OK);
            assert_int_equal(check_forward(b.plan, &b.data, NULL), BURST_OK);
            for (int64_t x = 0; x < d; x++)
                assert_true(data_at(&a.data.o, 0, 0, 0, x) == data_at(&b.data.o, 0, 0, 0, x));
            assert_true(isnan(data_at(&b.data.o, 0, 0, a.word.heads - 1, 0)));
            run_free(&a);
            run_free(&b);
        }
}

static void test_rows_without_keys(void **state) {
    (void)state;
    /* the first 30 queries see nothing; the last word has no key at all */
    static const char *const words[4] = {"b1h2n50k20d8:causal", "b1h2n30k0d8", "b1h2n50k20d8:causal:sink",
                                         "b1h2n30k0d8:sink"};
    for (int n = 0; n < 4; n++) {
        run r;
        run_make(words[n], 2, BURST_ISA_AUTO, &r);
        run_both(&r);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t t = 0; t < 30; t++) {
                const double lse = data_load(BURST_F32, r.data.lse, h * r.word.n + t);
                if (r.data.sink)
                    assert_true(fabs(lse - data_load(BURST_F32, r.data.sink, h)) < 1e-6);
                else
                    assert_true(lse == -INFINITY);
                for (int64_t x = 0; x < 8; x++)
                    assert_true(data_at(&r.data.o, 0, t, h, x) == 0 && data_at(&r.data.d_q, 0, t, h, x) == 0);
            }
        if (n == 3)
            assert_true(data_load(BURST_F32, r.data.d_sink, 0) == 0 && data_load(BURST_F32, r.data.d_sink, 1) == 0);
        run_free(&r);
    }
}

/* no query at all: key gradients are zeros, not what was there before */
static void test_no_queries(void **state) {
    (void)state;
    run r;
    run_make("b1h2n0k40d8", 2, BURST_ISA_AUTO, &r);
    run_both(&r);
    for (int64_t t = 0; t < 40; t++)
        for (int64_t x = 0; x < 8; x++)
            assert_true(data_at(&r.data.d_k, 0, t, 1, x) == 0 && data_at(&r.data.d_v, 0, t, 1, x) == 0);
    run_free(&r);
}

static double loss(run *r) {
    if (check_forward(r->plan, &r->data, r->stats)) fail_msg("%s", burst_last_error());
    double sum = 0;
    for (int64_t t = 0; t < r->word.n; t++)
        for (int64_t h = 0; h < r->word.heads; h++)
            for (int64_t x = 0; x < r->word.v; x++)
                sum += data_at(&r->data.o, 0, t, h, x) * data_at(&r->data.d_o, 0, t, h, x);
    return sum;
}

/* central differences of sum(o * d_o) against the gradients, in f64 */
static void test_finite_differences(void **state) {
    (void)state;
    static const char *const words[] = {
        "b1h2n9d5:f64",
        "b1h4g2n12d6v3:f64:causal:sink",
        "b1h2n10k14d4:f64:alibi:softcap=2:causal",
        "b1h2n13d3:f64:docs=4/9:window=3/0:sinktokens=1:sink:softcap=4",
    };
    for (int n = 0; n < 4; n++) {
        run r;
        run_make(words[n], 2, BURST_ISA_AUTO, &r);
        run_both(&r);
        data_tensor *from[3] = {&r.data.q, &r.data.k, &r.data.v};
        const data_tensor *gradient[3] = {&r.data.d_q, &r.data.d_k, &r.data.d_v};
        const double step = 1e-5;
        for (int i = 0; i < 3; i++)
            for (int64_t t = 0; t < from[i]->tokens; t++)
                for (int64_t h = 0; h < from[i]->heads; h++)
                    for (int64_t x = 0; x < from[i]->dim; x++) {
                        const double at = data_at(from[i], 0, t, h, x);
                        put(from[i], t, h, x, at + step);
                        const double up = loss(&r);
                        put(from[i], t, h, x, at - step);
                        const double slope = (up - loss(&r)) / (2 * step);
                        put(from[i], t, h, x, at);
                        assert_true(fabs(slope - data_at(gradient[i], 0, t, h, x)) < 1e-7);
                    }
        for (int64_t h = 0; r.data.sink && h < r.word.heads; h++) {
            double *sink = (double *)r.data.sink + h;
            const double at = *sink;
            *sink = at + step;
            const double up = loss(&r);
            *sink = at - step;
            const double slope = (up - loss(&r)) / (2 * step);
            *sink = at;
            assert_true(fabs(slope - ((double *)r.data.d_sink)[h]) < 1e-7);
        }
        run_free(&r);
    }
}

/* A sink beyond all scores takes all the weight: o and the gradients are 0, lse is the sink. */
static void test_sink_takes_all(void **state) {
    (void)state;
    const float sinks[2] = {3e38f, INFINITY};
    for (int n = 0; n < 8; n++) {
        run r;
        run_make(n % 4 < 2 ? "b1h1n30k50d8:sink" : "b1h1n30k50d8:sink:amp=3000", 2, BURST_ISA_AUTO, &r);
        *(float *)r.data.sink = sinks[n % 2];
        void *stats = n < 4 ? r.stats : NULL;
        assert_int_equal(check_forward(r.plan, &r.data, stats), BURST_OK);
        assert_int_equal(check_backward(r.plan, &r.data, stats), BURST_OK);
        for (int64_t i = 0; i < 30; i++) {
            assert_true(((float *)r.data.lse)[i] == sinks[n % 2]);
            for (int64_t x = 0; x < 8; x++) {
                assert_true(data_at(&r.data.o, 0, i, 0, x) == 0);
                assert_true(data_at(&r.data.d_q, 0, i, 0, x) == 0 && data_at(&r.data.d_k, 0, i, 0, x) == 0);
                assert_true(data_at(&r.data.d_v, 0, i, 0, x) == 0);
            }
        }
        assert_true(*(float *)r.data.d_sink == 0);
        run_free(&r);
    }
}

/* A row that sees one key: o is its value, and D is summed as dP is, so that nothing comes to d_q and d_k. */
static void test_one_key(void **state) {
    (void)state;
    const char *const texts[] = {"b1h3n70d15v33:window=0/0", "b1h3n70d15v33:window=0/0:bf16",
                                 "b1h4g4n130d64:window=0/0:bf16:scale=-0.7", "b1h2n50d33v128:window=0/0:f16"};
    for (int n = 0; n < 4; n++)
        for (int set = 0; set < SETS; set++) {
            run r;
            if (!usable(set)) continue;
            run_make(texts[n], 2, sets[set], &r);
            run_both(&r);
            for (int64_t i = 0; i < r.word.n; i++)
                for (int64_t h = 0; h < r.word.heads; h++) {
                    for (int64_t x = 0; x < r.data.v.dim; x++)
                        assert_true(data_at(&r.data.o, 0, i, h, x) == data_at(&r.data.v, 0, i, h, x));
                    for (int64_t x = 0; x < r.word.d; x++)
                        assert_true(data_at(&r.data.d_q, 0, i, h, x) == 0 && data_at(&r.data.d_k, 0, i, h, x) == 0);
                }
            run_free(&r);
        }
}

/* A negative slope makes far keys weigh more: scores grow with the distance, also in lanes that no row fills. */
static void test_negative_slopes(void **state) {
    (void)state;
    enum { N = 100, D = 16 };
    const float slope = -1;
    for (int set = 0; set < SETS; set++)
        for (int type = 0; type < 2; type++) {
            static float tensors[8][N * D], stats[4 * N]; /* room for either type */
            burst_plan *plan = NULL;
            burst_problem problem = BURST_PROBLEM_INIT;
            burst_options options = BURST_OPTIONS_INIT;
            if (!usable(set)) continue;
            problem.dtype = type ? BURST_BF16 : BURST_F32;
            problem.q_tokens = problem.k_tokens = N, problem.head_dim = D, problem.alibi = &slope;
            options.isa = sets[set];
            assert_int_equal(burst_plan_create(&problem, NULL, &options, &plan), BURST_OK);
            assert_true(burst_plan_stats_bytes(plan) <= sizeof stats);
            for (unsigned i = 0; i < 4; i++) {
                double values[N * D];
                data_normal(1, i, 0, N * D, values);
                for (int64_t x = 0; x < N * D; x++) data_store(problem.dtype, tensors[i], x, values[x]);
            }
            burst_forward_args f = BURST_FORWARD_ARGS_INIT;
            f.q.data = tensors[0], f.k.data = tensors[1], f.v.data = tensors[2], f.o.data = tensors[4], f.stats = stats;
            burst_backward_args b = BURST_BACKWARD_ARGS_INIT;
            b.q = f.q, b.k = f.k, b.v = f.v, b.o.data = tensors[4], b.d_o.data = tensors[3], b.stats = stats;
            b.d_q.data = tensors[5], b.d_k.data = tensors[6], b.d_v.data = tensors[7];
            assert_int_equal(burst_forward(plan, &f), BURST_OK);
            assert_int_equal(burst_backward(plan, &b), BURST_OK);
            for (int x = 0; x < D; x++) { /* sum over keys of d_v = sum over rows of d_o */
                double sum = 0;
                for (int64_t t = 0; t < N; t++)
                    sum += data_load(problem.dtype, tensors[7], t * D + x) -
                           data_load(problem.dtype, tensors[3], t * D + x);
                assert_true(fabs(sum) < (type ? 1 : 1e-3));
            }
            for (int i = 4; i < 8; i++)
                for (int64_t x = 0; x < N * D; x++) assert_true(isfinite(data_load(problem.dtype, tensors[i], x)));
            burst_plan_free(plan);
        }
}

/* Statistics are worth their bytes: at scores of +-1e4 dV from them is several times nearer than from a plain f32 lse. */
static void test_statistics_beat_lse(void **state) {
    (void)state;
    run narrow[2], wide;
    double far[2], largest;
    run_make("b1h2n256d64:causal:amp=3000:f64", 2, BURST_ISA_AUTO, &wide);
    for (int i = 0; i < 2; i++) {
        run_make("b1h2n256d64:causal:amp=3000", 2, BURST_ISA_AUTO, &narrow[i]);
        for (int64_t h = 0; h < 2; h++)
            for (int64_t t = 0; t < 256; t++)
                for (int64_t x = 0; x < 64; x++) { /* small integers: scores are exact in f32 */
                    put(&narrow[i].data.q, t, h, x, (double)((t * 31 + x * 7 + h) % 41 - 20) * 8);
                    put(&narrow[i].data.k, t, h, x, (double)((t * 17 + x * 3 + h) % 37 - 18));
                    put(&wide.data.q, t, h, x, (double)((t * 31 + x * 7 + h) % 41 - 20) * 8);
                    put(&wide.data.k, t, h, x, (double)((t * 17 + x * 3 + h) % 37 - 18));
                    put(&wide.data.v, t, h, x, data_at(&narrow[i].data.v, 0, t, h, x));
                    put(&wide.data.d_o, t, h, x, data_at(&narrow[i].data.d_o, 0, t, h, x));
                }
    }
    run_both(&wide);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(check_forward(narrow[i].plan, &narrow[i].data, narrow[i].stats), BURST_OK);
        assert_int_equal(check_backward(narrow[i].plan, &narrow[i].data, i ? NULL : narrow[i].stats), BURST_OK);
        far[i] = run_distance(&wide.data.d_v, &narrow[i].data.d_v, &largest);
    }
    print_message("  d_v from statistics %.3g, from lse %.3g, largest %.3g\n", far[0], far[1], largest);
    assert_true(far[0] < 1e-5 * largest && far[0] * 4 < far[1]);
    for (int i = 0; i < 2; i++) run_free(&narrow[i]);
    run_free(&wide);
}

/* ---- sinks beyond all scores ------------------------------------------------------------------------------------- */

/* The second row sees no key: o = 0 and lse = the sink, whatever it is. The first has what the sink leaves it. */
static void test_extreme_sinks(void **state) {
    static const float sinks[] = {3e10f, 1e11f, 1e15f, 1e30f, -1e11f, -1e30f, INFINITY, -INFINITY, NAN};
    static const burst_isa isas[] = {BURST_ISA_SCALAR, BURST_ISA_AUTO};
    (void)state;
    for (size_t n = 0; n < 2 * sizeof sinks / sizeof *sinks; n++) {
        const float sink = sinks[n / 2];
        run r;
        run_make("b1h1n2k4d8:slices=0-1x0-4:sink", 1, isas[n % 2], &r);
        ((float *)r.data.sink)[0] = sink;
        run_both(&r);
        const float *lse = r.data.lse;
        assert_true(isnan(sink) ? isnan(lse[1]) : lse[1] == sink);
        for (int x = 0; x < 8; x++) {
            assert_true(data_at(&r.data.o, 0, 1, 0, x) == 0 && data_at(&r.data.d_q, 0, 1, 0, x) == 0);
            if (sink > 0) assert_true(data_at(&r.data.o, 0, 0, 0, x) == 0 && data_at(&r.data.d_q, 0, 0, 0, x) == 0);
        }
        assert_true(sink > 0 ? lse[0] == sink : sink < 0 ? isfinite(lse[0]) : isnan(lse[0]));
        if (!isnan(sink)) assert_true(isfinite(((const float *)r.data.d_sink)[0]));
        run_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_extreme_sinks),
        cmocka_unit_test(test_linear_in_v),
        cmocka_unit_test(test_values_conserve),
        cmocka_unit_test(test_permuted_keys),
        cmocka_unit_test(test_split_and_fold),
        cmocka_unit_test(test_hidden_tokens_never_leak),
        cmocka_unit_test(test_future_never_leaks),
        cmocka_unit_test(test_decode_never_leaks),
        cmocka_unit_test(test_decode_reads_its_own_head),
        cmocka_unit_test(test_rows_without_keys),
        cmocka_unit_test(test_no_queries),
        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_sink_takes_all),
        cmocka_unit_test(test_one_key),
        cmocka_unit_test(test_negative_slopes),
        cmocka_unit_test(test_statistics_beat_lse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
