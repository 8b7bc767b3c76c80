/* test_oracle.c - who judges the judge: the oracle against cases computed by hand, and its gradients against finite
 * differences of its own forward pass, for every score modifier. And the 16-bit formats. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "data.h"
#include "need.h"
#include "oracle.h"

typedef struct fixture {
    word word;
    word_mask mask;
    data data;
    oracle_head head;
    int64_t *tokens; /* 0, 1, 2, ... */
    oracle_rows rows;
    oracle_stats stats;
    double *d_k, *d_v, d_sink;
} fixture;

static double *numbers(int64_t count) { return need_array((size_t)count, sizeof(double)); }
static long double *longs(int64_t count) { return need_array((size_t)count, sizeof(long double)); }

static void open_fixture(fixture *f, const char *text) {
    char error[WORD_ERROR_SIZE];
    if (word_parse(text, &f->word, error)) fail_msg("\"%s\": %s", text, error);
    const word *w = &f->word;
    word_mask_make(w, 1, &f->mask);
    data_make(w, 1, 1, &f->data);
    oracle_head_load(&f->mask, &f->data, 0, w->heads - 1, &f->head);
    f->tokens = need_array((size_t)(w->n + w->k), sizeof(int64_t));
    for (int64_t i = 0; i < w->n + w->k; i++) f->tokens[i] = i;
    f->rows = (oracle_rows){numbers(w->n * w->v), numbers(w->n), numbers(w->n * w->d)};
    f->stats = (oracle_stats){longs(w->n), longs(w->n), longs(w->n)};
    f->d_k = numbers(w->k * w->d), f->d_v = numbers(w->k * w->v);
}

static void close_fixture(fixture *f) {
    void *all[] = {f->tokens,    f->rows.o,    f->rows.lse, f->rows.d_q, f->stats.max,
                   f->stats.sum, f->stats.dot, f->d_k,      f->d_v};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    oracle_head_free(&f->head);
    data_free(&f->data);
    word_mask_free(&f->mask);
    word_free(&f->word);
}

static void run(fixture *f) {
    oracle_run_rows(&f->head, f->tokens, f->word.n, &f->rows, &f->stats, &f->d_sink);
    memset(f->d_k, 0, (size_t)(f->word.k * f->word.d) * sizeof(double));
    memset(f->d_v, 0, (size_t)(f->word.k * f->word.v) * sizeof(double));
    oracle_run_keys(&f->head, f->tokens, f->word.k, &f->stats, f->d_k, f->d_v);
}

static void assert_near(double a, double b, double tolerance) {
    if (!(fabs(a - b) <= tolerance)) fail_msg("%.17g is not %.17g", a, b);
}

/* ---- by hand ----------------------------------------------------------------------------------------------------- */

static void set(const double *at, double value) { *(double *)(uintptr_t)at = value; }

/* Two keys with scores 0 and ln 3: probabilities 1/4 and 3/4. */
static void two_keys(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "b1h1n1k2d1:scale=2:f64");
    set(f.head.q, 0.5), set(f.head.key, 0), set(f.head.key + 1, log(3));
    set(f.head.value, 8), set(f.head.value + 1, 4), set(f.head.d_o, 1);
    run(&f);
    assert_near(f.rows.o[0], 5, 1e-15);
    assert_near(f.rows.lse[0], log(4), 1e-15);
    /* dP = (8, 4), D = 5, dS = (3/4, -3/4); dQ = 2 dS.k, dK = 2 dS q */
    assert_near(f.rows.d_q[0], -1.5 * log(3), 1e-14);
    assert_near(f.d_k[0], 0.75, 1e-15);
    assert_near(f.d_k[1], -0.75, 1e-15);
    assert_near(f.d_v[0], 0.25, 1e-15);
    assert_near(f.d_v[1], 0.75, 1e-15);
    close_fixture(&f);
}

/* The same with a sink of logit 0 in the place of the first key. */
static void one_key_and_a_sink(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "b1h1n1k1d1:scale=2:sink:f64");
    set(f.head.q, 0.5), set(f.head.key, log(3)), set(f.head.value, 4), set(f.head.d_o, 1);
    f.head.sink = 0;
    run(&f);
    assert_near(f.rows.o[0], 3, 1e-15);
    assert_near(f.rows.lse[0], log(4), 1e-15);
    assert_near(f.d_sink, -0.75, 1e-15);
    assert_near(f.d_k[0], 0.75, 1e-15); /* 2 * q * 3/4 (4 - 3) */
    close_fixture(&f);
}

static void softcap_and_alibi(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "b1h1n1k2d1:scale=1:softcap=2:alibi:f64");
    set(f.head.q, 1), set(f.head.key, 3), set(f.head.key + 1, -1);
    run(&f);
    /* distances 1 and 0, slope 2^-8 */
    double a = 2 * tanh(1.5) - 0x1p-8, b = 2 * tanh(-0.5);
    assert_near(f.rows.lse[0], log(exp(a) + exp(b)), 1e-15);
    close_fixture(&f);
}

static void rows_without_keys(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "b1h1n3k1d2:causal"); /* the first two rows see nothing */
    run(&f);
    assert_true(isinf(f.rows.lse[0]) && f.rows.lse[0] < 0);
    for (int i = 0; i < 4; i++) assert_true(f.rows.o[i] == 0 && f.rows.d_q[i] == 0);
    close_fixture(&f);
    open_fixture(&f, "b1h1n3k1d2:causal:sink");
    run(&f);
    assert_near(f.rows.lse[0], f.head.sink, 0);
    close_fixture(&f);
}

/* ---- finite differences ------------------------------------------------------------------------------------------ */

static double loss(fixture *f) {
    oracle_rows rows = f->rows;
    rows.d_q = NULL;
    oracle_run_rows(&f->head, f->tokens, f->word.n, &rows, &f->stats, NULL);
    double sum = 0;
    for (int64_t i = 0; i < f->word.n * f->word.v; i++) sum += rows.o[i] * f->head.d_o[i];
    return sum;
}

/* Central differences of fourth order: error about step^4, rounding about 1e-16 / step. */
static double difference(fixture *f, double *at) {
    const double step = 1e-3, value = *at, near = value + step, far = value + 2 * step;
    double losses[4];
    const double places[4] = {far, near, value - step, value - 2 * step};
    for (int i = 0; i < 4; i++) *at = places[i], losses[i] = loss(f);
    *at = value;
    return (-losses[0] + 8 * losses[1] - 8 * losses[2] + losses[3]) / (12 * step);
}

static void assert_gradient(fixture *f, const double *tensor, const double *gradient, int64_t count, const char *text) {
    for (int64_t i = 0; i < count; i++) {
        double expected = difference(f, (double *)(uintptr_t)(tensor + i));
        if (!(fabs(gradient[i] - expected) <= 1e-9 * (1 + fabs(expected))))
            fail_msg("\"%s\": gradient %d is %.12g, by differences %.12g", text, (int)i, gradient[i], expected);
    }
}

static void gradients_by_differences(void **state) {
    (void)state;
    static const char *const words[] = {
        "b1h1n4d3:f64",
        "b1h2n4k6d3v2:causal:f64",
        "b1h2n5k3d3:causal:sink:f64",
        "b1h2n4d3:softcap=1.5:f64",
        "b1h2n4k5d3:alibi:f64",
        "b1h2n6d3:window=2/1:softcap=2:alibi:sink:scale=0.7:f64",
        "b1h2n6d2:docs=2/4:causal:softcap=2:sink:f64",
        "b1h2n6d2:shared=2/3/1:alibi",
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        fixture f;
        open_fixture(&f, words[i]);
        run(&f);
        const word *w = &f.word;
        double d_sink = f.d_sink;
        assert_gradient(&f, f.head.q, f.rows.d_q, w->n * w->d, words[i]);
        assert_gradient(&f, f.head.key, f.d_k, w->k * w->d, words[i]);
        assert_gradient(&f, f.head.value, f.d_v, w->k * w->v, words[i]);
        if (f.head.has_sink) assert_gradient(&f, &f.head.sink, &d_sink, 1, words[i]);
        close_fixture(&f);
    }
}

/* The plain computation in double and the oracle share no code: they agree to rounding. */
static void plain_agrees(void **state) {
    (void)state;
    fixture f, g;
    static const char text[] = "b1h2n20k30d8v5:causal:softcap=2:alibi:sink:f64";
    open_fixture(&f, text), open_fixture(&g, text);
    run(&f);
    plain_run_rows(&g.head, g.tokens, g.word.n, &g.rows, &g.stats, &g.d_sink);
    plain_run_keys(&g.head, g.tokens, g.word.k, &g.stats, g.d_k, g.d_v);
    for (int i = 0; i < 20 * 5; i++) assert_near(g.rows.o[i], f.rows.o[i], 1e-14);
    for (int i = 0; i < 20 * 8; i++) assert_near(g.rows.d_q[i], f.rows.d_q[i], 1e-14);
    for (int i = 0; i < 30 * 8; i++) assert_near(g.d_k[i], f.d_k[i], 1e-14);
    for (int i = 0; i < 30 * 5; i++) assert_near(g.d_v[i], f.d_v[i], 1e-14);
    for (int i = 0; i < 20; i++) assert_near(g.rows.lse[i], f.rows.lse[i], 1e-14);
    assert_near(g.d_sink, f.d_sink, 1e-14);
    close_fixture(&f), close_fixture(&g);
}

/* ---- data -------------------------------------------------------------------------------------------------------- */

/* Every 16-bit pattern loads and stores as itself, and halfway cases go to the even neighbour. */
static void sixteen_bits_round_to_even(void **state) {
    (void)state;
    static const burst_dtype types[] = {BURST_BF16, BURST_F16};
    for (int t = 0; t < 2; t++)
        for (uint32_t bits = 0; bits < 0x7c00u - 1; bits++) {
            uint16_t here = (uint16_t)bits, next = (uint16_t)(bits + 1), out;
            double low = data_load(types[t], &here, 0), high = data_load(types[t], &next, 0);
            data_store(types[t], &out, 0, low);
            assert_int_equal(out, here);
            data_store(types[t], &out, 0, low + (high - low) / 2);
            if (t == 1 || bits >= 0x80) assert_int_equal(out, bits & 1 ? next : here); /* below: not exact in f32 */
            data_store(types[t], &out, 0, -(low + 0.75 * (high - low)));
            if (t == 1 || bits >= 0x80) assert_int_equal(out, next | 0x8000u);
            assert_true((double)data_round(types[t], (float)(low + 0.25 * (high - low))) <= high);
        }
    uint16_t out;
    data_store(BURST_F16, &out, 0, 65519.9), assert_int_equal(out, 0x7bff);
    data_store(BURST_F16, &out, 0, 65520), assert_int_equal(out, 0x7c00);
    data_store(BURST_F16, &out, 0, NAN), assert_int_equal(out & 0x7e00u, 0x7e00);
    data_store(BURST_BF16, &out, 0, -INFINITY), assert_int_equal(out, 0xff80);
}

static void numbers_are_normal_and_repeat(void **state) {
    (void)state;
    enum { COUNT = 100000 };
    double *all = numbers(COUNT), part[10], sum = 0, squares = 0, fourth = 0;
    data_normal(7, 3, 0, COUNT, all);
    for (int i = 0; i < COUNT; i++) sum += all[i], squares += all[i] * all[i], fourth += pow(all[i], 4);
    assert_near(sum / COUNT, 0, 0.015);
    assert_near(squares / COUNT, 1, 0.03);
    assert_near(fourth / COUNT, 3, 0.2);
    for (uint64_t first = 0; first < 5; first++) {
        data_normal(7, 3, first, 10, part);
        assert_memory_equal(part, all + first, sizeof part);
    }
    free(all);
}

static void layouts_hold_the_same_numbers(void **state) {
    (void)state;
    static const char *const words[] = {"b2h4g2n5d3v2", "b2h4g2n5d3v2:layout=bhnd", "b2h4g2n5d3v2:layout=qkv"};
    fixture f[3];
    for (int i = 0; i < 3; i++) open_fixture(&f[i], words[i]);
    for (int i = 1; i < 3; i++) {
        assert_memory_equal(f[0].head.q, f[i].head.q, 15 * sizeof(double));
        assert_memory_equal(f[0].head.key, f[i].head.key, 15 * sizeof(double));
        assert_memory_equal(f[0].head.value, f[i].head.value, 10 * sizeof(double));
    }
    for (int i = 0; i < 3; i++) close_fixture(&f[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_keys),
        cmocka_unit_test(one_key_and_a_sink),
        cmocka_unit_test(softcap_and_alibi),
        cmocka_unit_test(rows_without_keys),
        cmocka_unit_test(gradients_by_differences),
        cmocka_unit_test(plain_agrees),
        cmocka_unit_test(sixteen_bits_round_to_even),
        cmocka_unit_test(numbers_are_normal_and_repeat),
        cmocka_unit_test(layouts_hold_the_same_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
