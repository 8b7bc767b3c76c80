/* test_isa.c - every instruction set that this machine runs, the test-only ones (16 lanes, tiles and pairs on AVX2) included: its
 * approximations within their stated bounds over the whole interval, its results beside the scalar set's, with forbidden pages behind every
 * buffer; and the same bits for any number of threads. */
#include <math.h>
#include <stdio.h>

#include "kernel.h"
#include "run.h"

enum { SETS = 9, X16 = 100, TILES = 101, PAIRS = 102 };
static const burst_isa sets[SETS] = {BURST_ISA_SCALAR, BURST_ISA_AVX2,   BURST_ISA_AVX512,
                                     BURST_ISA_NEON,   BURST_ISA_AMX,    BURST_ISA_AVX512BF16,
                                     (burst_isa)X16,   (burst_isa)TILES, (burst_isa)PAIRS};

static bool usable(burst_isa isa) {
    burst_isa chosen;
    return lao_choose_isa(isa, BURST_BF16, &chosen) == BURST_OK;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void test_sets_are_there(void **state) {
    (void)state;
    int count = 0;
    for (int i = 0; i < SETS; i++) count += usable(sets[i]);
#if defined(__x86_64__)
    assert_true(!base_cpu_runs(BURST_ISA_AVX2) || (usable(BURST_ISA_AVX2) && usable((burst_isa)X16) &&
                                                   usable((burst_isa)TILES) && usable((burst_isa)PAIRS)));
#elif defined(__aarch64__)
    assert_true(usable(BURST_ISA_NEON));
#endif
    assert_true(count >= 1);
}

/* Every 61st float of both signs up to the bound: 2^x has relative error <= 2.5e-7 on [-126, 127.5), is 0 below -126.5. */
static void test_exp2(void **state) {
    (void)state;
    enum { N = 4096 };
    static float x[N], y[N];
    for (int set = 0; set < SETS; set++) {
        if (!usable(sets[set])) continue;
        const lao_kernels *kernels = lao_kernels_of(sets[set], BURST_BF16);
        double worst = 0;
        uint32_t bits = 0;
        while (bits < 0x43000000u) { /* 128 */
            for (int i = 0; i < N; i += 2, bits += 61) {
                x[i] = float_of(bits < 0x43000000u ? bits : 0x42ffffffu);
                x[i + 1] = -x[i];
            }
            kernels->exp_of(N, x, y);
            for (int i = 0; i < N; i++) {
                if (x[i] < -126.5f) assert_true(y[i] == 0);
                if (x[i] < -126 || x[i] >= 127.5f) continue;
                const double far = fabs((double)y[i] / exp2((double)x[i]) - 1);
                if (far > worst) worst = far;
            }
        }
        printf("  exp2 %s: relative error %.3g\n", kernels->name, worst);
        assert_true(worst > 1e-9 && worst <= 2.5e-7);
        const float special[5] = {0, -(float)INFINITY, NAN, -1e30f, -200};
        for (int i = 0; i < N; i++) x[i] = special[i % 5];
        kernels->exp_of(N, x, y);
        assert_true(y[0] == 1 && y[1] == 0 && isnan(y[2]) && y[3] == 0 && y[4] == 0);
    }
}

static void test_tanh(void **state) {
    (void)state;
    enum { N = 4096 };
    static float x[N], y[N];
    for (int set = 0; set < SETS; set++) {
        if (!usable(sets[set])) continue;
        const lao_kernels *kernels = lao_kernels_of(sets[set], BURST_BF16);
        double worst = 0;
        for (uint32_t bits = 0x20000000u; bits < 0x42c80000u;) { /* 1e-19 to 100 */
            for (int i = 0; i < N; i += 2, bits += 61) {
                x[i] = float_of(bits);
                x[i + 1] = -x[i];
            }
            kernels->tanh_of(N, x, y);
            for (int i = 0; i < N; i++) {
                const double far = fabs((double)y[i] / tanh((double)x[i]) - 1);
                if (far > worst) worst = far;
            }
        }
        printf("  tanh %s: relative error %.3g\n", kernels->name, worst);
        assert_true(worst > 1e-9 && worst <= 2e-7);
        for (int i = 0; i < N; i++) x[i] = i % 4 == 0 ? NAN : i % 4 == 1 ? INFINITY : i % 4 == 2 ? -INFINITY : 0;
        kernels->tanh_of(N, x, y);
        assert_true(isnan(y[0]) && y[1] == 1 && y[2] == -1 && y[3] == 0);
    }
}

static const char *const words[] = {
    "b1h1n1d1",
    "b2h3n70d40:causal",
    "b1h2n97k61d33v19",
    "b1h6g2n50k131d59v64:causal",
    "b1h8g1n1k700d64:bf16",
    "b1h6g2n1k40d31:bf16",
    "b1h4g2n3k60d63:bf16:causal",
    "b1h8g1n1k500d95:bf16",
    "b1h3n4k300d127v31:bf16:alibi",
    "b1h8g1n2k333d111:f16",
    "b1h2n3k400d129:sink",
    "b1h1n1k5000d128:f16",
    "b1h1n1k5000d65:bf16:alibi:softcap=20",
    "b2h5n1k1300d40v33:alibi",
    "b1h9n1k700d111:bf16",
    "b1h3n1k900d48:f16:sinktokens=4:window=256/0:sink",
    "b1h8n1k500d64v128:softcap=3:alibi:layout=bhnd",
    "b1h2n1k2100d33:bf16:layout=bhnd:scale=-0.3",
    "b2h4g2n200d64:causal:bf16",
    "b1h4n130k90d24:alibi:f16",
    "b1h2n150d48:softcap=10:alibi:causal",
    "b1h2n260d32:window=20/5:sink",
    "b1h2n260d32:sinktokens=3:window=20/0",
    "b1h2n220d80:docs=3/0/100/17/100:causal",
    "b1h2n200d16:blocks=16/0.3",
    "b2h2n90d20:lengths=90/31:causal",
    "b1h2n120d36:prefix=40:window=60/-1",
    "b1h2n100d72:shared=30/40/30",
    "b1h1n1500d8:causal",
    "b1h2n49d512v300:causal",
    "b1h2n64d64:scale=-0.3:causal",
    "b1h1n2k3000d48v7:causal",
    "b1h2n40d16:layout=qkv",
    "b1h1n90d16:slices=0-50x0-90@-20..10,50-90x10-80",
    "b1h1n1d1:bf16",
    "b1h2n97k61d33v19:bf16",
    "b1h6g2n50k131d59v64:causal:bf16",
    "b1h2n150d48:softcap=10:alibi:causal:bf16",
    "b1h2n260d32:sinktokens=3:window=20/5:sink:bf16",
    "b1h2n220d80:docs=3/0/100/17/100:causal:bf16",
    "b1h2n200d16:blocks=16/0.3:bf16",
    "b1h2n49d512v300:causal:bf16",
    "b1h2n64d64:scale=-0.3:causal:bf16",
    "b1h1n200k2100d16:bf16",
    "b1h1n300d8:causal:bf16:amp=300",
};
enum { WORDS = sizeof words / sizeof *words };

/* Twice a bound for a sum of `terms` products in f32, or one rounding of the 16-bit type. */
static void assert_near(const char *text, const char *what, const data_tensor *a, const data_tensor *b) {
    double largest;
    const double far = run_distance(a, b, &largest);
    const double bound = (a->dtype == BURST_F32 ? 64 : 2) * data_epsilon(a->dtype) * (largest + 0x1p-10);
    if (!(far <= bound)) fail_msg("%s: %s differs by %g from the scalar set's, bound %g", text, what, far, bound);
}

static void test_against_scalar(void **state) {
    (void)state;
    for (int n = 0; n < WORDS; n++) {
        run scalar;
        run_make(words[n], 1, BURST_ISA_SCALAR, &scalar);
        run_both(&scalar);
        for (int set = 1; set < SETS; set++) {
            if (!usable(sets[set])) continue;
            run other;
            run_make(words[n], 2, sets[set], &other);
            run_both(&other);
            assert_near(words[n], "o", &scalar.data.o, &other.data.o);
            assert_near(words[n], "d_q", &scalar.data.d_q, &other.data.d_q);
            assert_near(words[n], "d_k", &scalar.data.d_k, &other.data.d_k);
            assert_near(words[n], "d_v", &scalar.data.d_v, &other.data.d_v);
            if (other.word.n <= LAO_FEW_ROWS) { /* without statistics a few rows go another way */
                assert_int_equal(check_forward(other.plan, &other.data, NULL), BURST_OK);
                assert_near(words[n], "o without statistics", &scalar.data.o, &other.data.o);
            }
            run_free(&other);
        }
        run_free(&scalar);
    }
}

/* A stand-in gives the bits of the CPU's own instruction: what the tests on other machines say holds for it. */
static void assert_alike(burst_isa own, burst_isa stand_in) {
    if (!usable(own) || !usable(stand_in)) skip();
    for (int n = 0; n < WORDS; n++) {
        if (!strstr(words[n], "bf16")) continue;
        run real, other;
        run_make(words[n], 2, own, &real);
        run_make(words[n], 2, stand_in, &other);
        run_both(&real);
        run_both(&other);
        run_assert_same(&real, &other);
        run_free(&real);
        run_free(&other);
    }
}
static void test_tiles_are_alike(void **state) {
    (void)state;
    assert_alike(BURST_ISA_AMX, (burst_isa)TILES);
}
static void test_pairs_are_alike(void **state) {
    (void)state;
    assert_alike(BURST_ISA_AVX512BF16, (burst_isa)PAIRS);
}

/* Other libraries of the process (PyTorch's) set up the tile registers of a thread once and expect them to stay so. */
static void test_tile_shapes_stay(void **state) {
    (void)state;
#if defined(__x86_64__)
    if (!usable(BURST_ISA_AMX)) skip();
    struct shapes {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } mine = {1, 0, {0}, {8, 16, 32}, {3, 5, 7}}, after;
    for (int palette = 1; palette >= 0; palette--) {
        run r;
        run_make("b1h2n97d64:causal:bf16", 1, BURST_ISA_AMX, &r);
        if (palette)
            __asm__ volatile("ldtilecfg %0" ::"m"(mine));
        else
            __asm__ volatile("tilerelease");
        run_both(&r);
        __asm__ volatile("sttilecfg %0" : "=m"(after));
        if (palette)
            assert_memory_equal(&mine, &after, sizeof mine);
        else
            assert_int_equal(after.palette, 0);
        run_free(&r);
    }
    __asm__ volatile("tilerelease");
#else
    skip();
#endif
}

static void test_threads_keep_bits(void **state) {
    (void)state;
    static const char *const more[] = {"b1h1n1300d64:causal", "b1h1n700k2500d32:bf16:sink", "b1h8g2n1k4000d64",
                                       "b3h4g2n150d40:docs=70/80:causal:f64", "b1h1n5k6000d16:causal"};
    static const int threads[] = {2, 3, 5, 8};
    for (int n = 0; n < WORDS + 5; n++) {
        const char *text = n < WORDS ? words[n] : more[n - WORDS];
        if (strstr(text, "layout")) continue; /* run_same wants the default one */
        run one;
        run_make(text, 1, BURST_ISA_AUTO, &one);
        run_both(&one);
        for (int t = 0; t < 4; t++) {
            run many;
            run_make(text, threads[t], BURST_ISA_AUTO, &many);
            for (int again = 0; again < 3; again++) {
                run_both(&many);
                run_assert_same(&one, &many);
            }
            run_free(&many);
        }
        assert_int_equal(check_forward(one.plan, &one.data, NULL), BURST_OK);
        for (int t = 0; t < 4 && one.word.n <= LAO_FEW_ROWS; t++) { /* the way without statistics */
            run many;
            run_make(text, threads[t], BURST_ISA_AUTO, &many);
            assert_int_equal(check_forward(many.plan, &many.data, NULL), BURST_OK);
            const data_tensor *o = &one.data.o;
            assert_memory_equal(o->data, many.data.o.data,
                                (size_t)(o->batch * o->tokens * o->heads * o->dim) * data_size(o->dtype));
            run_free(&many);
        }
        run_free(&one);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sets_are_there),
        cmocka_unit_test(test_exp2),
        cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_against_scalar),
        cmocka_unit_test(test_tiles_are_alike),
        cmocka_unit_test(test_pairs_are_alike),
        cmocka_unit_test(test_tile_shapes_stay),
        cmocka_unit_test(test_threads_keep_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
