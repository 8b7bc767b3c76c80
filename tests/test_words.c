/* test_words.c - the oracle over thousands of small words: every part of the grammar, alone and combined, at sizes
 * around every edge, on every instruction set of this machine. `test_words quick` is the set of `make check`;
 * `test_words long` is everything, with the whole product of flash-attention's own test shapes. With `ranks` behind it,
 * every word runs over 1 to 8 ranks that are threads, each with another partition, other sides
 * and another strategy.
 *
 * The threshold is a few times the error of one plain computation, and that error is a matter of luck where an output
 * has few elements (d_sink has one a head). So an error a little above it is drawn again: a word fails if the same output is
 * above for two of three seeds, or at once if an error is far above. What was above is printed as the command that shows it.
 */
#include <stdio.h>

#include "run.h"

static int is_long, over_ranks;
static int total;

typedef struct batch {
    int run, failed;
} batch;

static void print_failure(const char *text, const check_options *o, int ranks, const check_result *r) {
    static const char *const partitions[] = {"auto", "contiguous", "zigzag", "striped"};
    static const char *const sides[] = {"auto", "q", "k"};
    static const char *const strategies[] = {"auto", "ring", "gather", "ulysses"};
    printf("above: burst check --seed %llu --threads %d --isa %s%s", (unsigned long long)o->seed, o->plan.threads,
           burst_isa_name(o->plan.isa),
           o->from_lse       ? " --from-lse"
           : o->forward_only ? " --forward-only"
                             : "");
    if (ranks > 1)
        printf(" --ranks %d --partition %s --side-forward %s --side-backward %s --strategy %s%s%s", ranks,
               partitions[o->plan.partition], sides[o->plan.side_forward], sides[o->plan.side_backward],
               strategies[o->plan.strategy], o->plan.send_o ? " --send-o" : "",
               o->plan.no_overlap ? " --no-overlap" : "");
    printf(" \"%s\":", text);
    if (r->code >= 2) printf(" %s", r->message);
    for (int i = 0; i < CHECK_NAMES; i++)
        if (r->checked[i] && !r->errors[i].ok)
            printf(" %s %.3e > %.3e", r->errors[i].name, r->errors[i].error, r->errors[i].threshold);
    puts("");
    fflush(stdout);
}

#define FAR_ABOVE 30
#define FAR_BIT (1u << CHECK_NAMES)

/* What backward takes, if there is one. Without statistics a few rows go another way through the kernels. */
enum from { FROM_STATS, FROM_LSE, FORWARD_ONLY };

/* One of so many, each of the word's choices by itself: in the long run every combination comes. */
static int choose(int what, int of) { return (int)(data_bits(4711, (uint64_t)what, (uint64_t)total) % (uint64_t)of); }

/* 0: fine; else a bit for every output above its threshold, and FAR_BIT if one is far above or it did not run at all. */
static unsigned check_draw(const word *w, const char *text, uint64_t seed, enum from from) {
    /* 100, 102: the 16-lane body on AVX2 registers, and with pairs of bf16; only the test library has them */
    static const burst_isa isas[] = {BURST_ISA_AUTO, BURST_ISA_AVX512, BURST_ISA_SCALAR,
                                     BURST_ISA_AVX2, (burst_isa)100,   (burst_isa)102};
    check_options options = {.plan = BURST_OPTIONS_INIT, .seed = seed};
    options.forward_only = from == FORWARD_ONLY, options.from_lse = from == FROM_LSE;
    options.plan.threads = 1 + choose(0, over_ranks ? 2 : 3);
    options.plan.isa = isas[choose(1, 6)];
    if (!burst_isa_supported(options.plan.isa)) options.plan.isa = BURST_ISA_AUTO;
    check_result result;
    const int ranks = over_ranks ? 1 + choose(2, 8) : 1;
    options.plan.timeout = 60;
    options.plan.partition = (burst_partition)choose(3, 4);
    options.plan.side_forward = (burst_side)choose(4, 3), options.plan.side_backward = (burst_side)choose(5, 3);
    options.plan.no_overlap = choose(6, 11) == 0;
    options.plan.send_o = options.plan.side_backward == BURST_SIDE_Q && choose(7, 2);
    const burst_strategy strategy = run_strategy(w, choose(8, 5), ranks);
    if (strategy != BURST_STRATEGY_RING) {
        options.plan.strategy = strategy, options.plan.send_o = 0;
        options.plan.side_forward = options.plan.side_backward = BURST_SIDE_AUTO;
    }
    check_run_threads(w, &options, ranks, &result);
    if (!result.code) return 0;
    print_failure(text, &options, ranks, &result);
    int far = result.code > 1;
    unsigned above = 0;
    for (int i = 0; i < CHECK_NAMES; i++) {
        const check_error *e = &result.errors[i];
        /* a given lse is rounded once more, to the raw score that the kernels subtract: twice what the plain one has */
        if (result.checked[i] && !(e->error <= (from == FROM_LSE ? 2 : 1) * e->threshold)) above |= 1u << i;
        far |= result.checked[i] && !(e->error <= FAR_ABOVE * e->threshold);
    }
    return far ? FAR_BIT | above : above;
}

static void check_text(batch *b, const char *text, enum from from) {
    word w;
    char error[WORD_ERROR_SIZE];
    b->run++;
    total++;
    if (word_parse(text, &w, error)) {
        printf("FAILED to parse \"%s\": %s\n", text, error);
        b->failed++;
        return;
    }
    unsigned once = 0, twice = 0;
    for (int draw = 0; draw < 3 && !twice && (draw == 0 || once); draw++) {
        const unsigned above = check_draw(&w, text, (uint64_t)(total + 1000000 * draw), from);
        twice |= (once & above) | (above & FAR_BIT);
        once |= above;
    }
    b->failed += twice != 0;
    word_free(&w);
}

static void finish(const char *name, const batch *b) {
    printf("%s: %d words, %d failed\n", name, b->run, b->failed);
    fflush(stdout);
    assert_int_equal(b->failed, 0);
}

/* ---- by chance --------------------------------------------------------------------------------------------------- */

typedef struct dice {
    uint64_t seed, index;
} dice;

static int64_t roll(dice *d, int64_t sides) { return (int64_t)(data_bits(d->seed, 99, d->index++) % (uint64_t)sides); }
static int64_t pick(dice *d, const int64_t *from, size_t count) { return from[roll(d, (int64_t)count)]; }
#define PICK(d, from) pick(d, from, sizeof(from) / sizeof((from)[0]))

/* `total` cut into `count` lengths, some of them perhaps 0. */
static int print_cuts(dice *d, char *text, const char *name, int64_t tokens, int64_t count) {
    int used = sprintf(text, "%s", name);
    for (int64_t i = 0; i < count; i++) {
        int64_t length = i == count - 1 ? tokens : roll(d, tokens + 1);
        used += sprintf(text + used, "%s%lld", i ? "/" : "", (long long)length);
        tokens -= length;
    }
    return used;
}

static int print_lengths(dice *d, char *text, const char *name, int64_t tokens, int64_t count) {
    int used = sprintf(text, "%s", name);
    for (int64_t i = 0; i < count; i++)
        used += sprintf(text + used, "%s%lld", i ? "/" : "", (long long)roll(d, tokens + 1));
    return used;
}

#define MASKS 14
/* One of the kinds of masks for these sizes; returns the length of the text. */
static int print_mask(dice *d, char *text, int kind, int64_t batch_size, int64_t n, int64_t k) {
    int64_t side = n > k ? n : k;
    long long a = roll(d, side + 2) - 1, b = roll(d, side / 2 + 2) - 1;
    int used = 0;
    switch (kind) {
    case 0:
        return 0;
    case 1:
        return sprintf(text, ":causal");
    case 2:
        return sprintf(text, ":causal:align=start");
    case 3:
        return sprintf(text, ":window=%lld/%lld", a, b);
    case 4:
        return sprintf(text, ":window=%lld/0:sinktokens=%lld", a / 2, (long long)roll(d, 9));
    case 5:
        return sprintf(text, ":prefix=%lld", (long long)roll(d, k + 1));
    case 6:
        return sprintf(text, ":blocks=%lld/0.4:causal", (long long)(1 + roll(d, 40)));
    case 7:
        return sprintf(text, ":blocks=%lld/0.5", (long long)(1 + roll(d, 70)));
    case 8:
        used = print_lengths(d, text, ":causal:lengths=", n < k ? n : k, batch_size);
        return used + print_lengths(d, text + used, ":klengths=", k, batch_size);
    case 9:
        return n == k && n > 0 ? print_cuts(d, text, ":shared=", n, 1 + roll(d, 4)) : 0;
    case 10:
        return sprintf(text, ":slices=0-%lldx0-%lld@..%lld,%lld-%lldx0-%lld@%lld..", (long long)(n / 2), (long long)k,
                       a / 2, (long long)(n / 2), (long long)n, (long long)(k / 2 + 1 < k ? k / 2 + 1 : k), -a);
    case 11:
        return sprintf(text, ":window=%lld/%lld:align=start:prefix=%lld", a / 3, b, (long long)roll(d, k + 1));
    default: {
        int64_t count = 1 + roll(d, 5);
        used = print_cuts(d, text, ":docs=", n, count);
        if (n != k || kind == 13) used += print_cuts(d, text + used, ":kdocs=", k, count);
        if (roll(d, 2)) used += sprintf(text + used, ":causal");
        if (roll(d, 3) == 0) used += sprintf(text + used, ":window=%lld/%lld:sinktokens=2", a / 2, b);
        if (roll(d, 3) == 0) used += sprintf(text + used, ":align=start");
        if (roll(d, 4) == 0) used += sprintf(text + used, ":blocks=16/0.7");
        return used;
    }
    }
}

static int print_modifiers(char *text, unsigned which) {
    int used = 0;
    if (which & 1) used += sprintf(text + used, ":softcap=5");
    if (which & 2) used += sprintf(text + used, ":alibi");
    if (which & 4) used += sprintf(text + used, ":sink");
    if (which & 8) used += sprintf(text + used, ":scale=0.3");
    return used;
}

static const char *const dtypes[] = {"f32", "bf16", "f16", "f64"};

static void by_chance(void **state) {
    (void)state;
    static const int64_t tokens[] = {2,   3,   5,   7,   8,   9,   15,  16,  17,  23,  24,  25, 31,
                                     32,  33,  47,  48,  49,  63,  64,  65,  71,  95,  96,  97, 100,
                                     113, 127, 128, 129, 150, 191, 192, 193, 200, 221, 250, 289};
    static const int64_t dims[] = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40, 59, 64, 65, 80, 96, 111, 128};
    static const int64_t groups[] = {1, 1, 2, 3}, ratios[] = {1, 1, 1, 2, 3, 8};
    batch b = {0, 0};
    int count = is_long      ? (over_ranks ? 8000 : 20000)
                : over_ranks ? 500
                             : 1000; /* 8 ranks on 2 cores take their time */
    for (int i = 0; i < count; i++) {
        dice d = {(uint64_t)i, 0};
        char text[1000];
        int64_t rows = 1 + roll(&d, 3), g = PICK(&d, groups), h = g * PICK(&d, ratios);
        int64_t n = PICK(&d, tokens), k = roll(&d, 2) ? n : PICK(&d, tokens), dim = PICK(&d, dims);
        int used = sprintf(text, "b%lldh%lldg%lldn%lldk%lldd%lld", (long long)rows, (long long)h, (long long)g,
                           (long long)n, (long long)k, (long long)dim);
        if (roll(&d, 3) == 0) used += sprintf(text + used, "v%lld", (long long)PICK(&d, dims));
        used += print_mask(&d, text + used, (int)roll(&d, MASKS), rows, n, k);
        used += print_modifiers(text + used, roll(&d, 2) ? (unsigned)roll(&d, 16) : 0);
        int large = roll(&d, 10) == 0 && n >= 16; /* a handful of one-hot rows has no error to go by */
        if (large) used += sprintf(text + used, ":amp=30");
        int64_t layout = roll(&d, 6);
        if (layout == 0) used += sprintf(text + used, ":layout=bhnd");
        if (layout == 1 && n == k) used += sprintf(text + used, ":layout=qkv");
        sprintf(text + used, ":%s", dtypes[roll(&d, 4)]);
        /* one f32 lse is not exact enough for large scores */
        check_text(&b, text, !large && roll(&d, 6) == 0 ? FROM_LSE : FROM_STATS);
    }
    finish("by chance", &b);
}

/* ---- by rule ----------------------------------------------------------------------------------------------------- */

static void every_mask_modifier_and_type(void **state) {
    (void)state;
    static const char *const shapes[] = {"b2h2n100d32", "b2h4g2n97k131d40v24", "b2h2n70k33d64"};
    static const int64_t sizes[][2] = {{100, 100}, {97, 131}, {70, 33}};
    batch b = {0, 0};
    for (int mask = 0; mask < MASKS; mask++)
        for (unsigned modifiers = 0; modifiers < 8; modifiers++)
            for (int type = 0; type < 4; type++) {
                dice d = {(uint64_t)(mask * 100) + modifiers, 0};
                int shape = (mask + (int)modifiers + type) % 3;
                char text[1000];
                int used = sprintf(text, "%s", shapes[shape]);
                used += print_mask(&d, text + used, mask, 2, sizes[shape][0], sizes[shape][1]);
                used += print_modifiers(text + used, modifiers);
                sprintf(text + used, ":%s", dtypes[type]);
                check_text(&b, text, FROM_STATS);
            }
    finish("every mask, modifier and type", &b);
}

static void every_dimension(void **state) {
    (void)state;
    batch b = {0, 0};
    for (int d = 1; d <= 512; d += is_long || (d < 140 && !over_ranks) ? 1 : 7) {
        char text[100];
        int v = d % 3 == 0 ? d : 513 - d;
        sprintf(text, "b1h2n29k41d%dv%d%s:%s", d, v, d % 2 ? ":causal" : "", dtypes[d / 2 % 4]);
        check_text(&b, text, FROM_STATS);
        sprintf(text, "b1h%dg2n%dk61d%dv%d%s:%s", 2 + 2 * (d % 5), 1 + d % 2, d, v, d % 4 < 2 ? ":causal" : "",
                dtypes[d / 2 % 4]);
        check_text(&b, text, FORWARD_ONLY);
    }
    finish("every dimension", &b);
}

static void every_small_length(void **state) {
    (void)state;
    batch b = {0, 0};
    int step = is_long ? 1 : over_ranks ? 6 : 3;
    for (int n = 0; n <= 50; n += n < 10 ? 1 : step)
        for (int k = 0; k <= 50; k += k < 10 ? 1 : step) {
            char text[100];
            const char *mask = (n + k) % 3 == 0 ? ":causal" : (n + k) % 3 == 1 ? ":window=5/3" : "";
            sprintf(text, "b1h6g2n%dk%dd16%s%s", n, k, mask, (n + 2 * k) % 5 == 0 ? ":sink" : "");
            check_text(&b, text, FROM_STATS);
            if (n <= 8) check_text(&b, text, FORWARD_ONLY);
        }
    finish("every small length", &b);
}

/* One or a few queries against many keys, alone and in groups: another path of the kernels. */
static void decode(void **state) {
    (void)state;
    batch b = {0, 0};
    static const int64_t keys[] = {1, 97, 500, 1025, 3000, 4099};
    static const int few_dims[] = {64, 128, 33, 16, 8};
    static const char *const masks[] = {
        "", ":causal", ":causal", ":sinktokens=3:window=40/0", ":align=start:window=-1/390", ":blocks=16/0.5"};
    static const char *const modifiers[] = {"", "", ":sink:alibi", ":softcap=5"};
    for (int n = 1; n <= 16; n += n < 5 ? 1 : 5)
        for (size_t i = 0; i < 6; i++)
            for (int ratio = 1; ratio <= 8; ratio *= 2) {
                if (!is_long && (n * ratio * keys[i] > 70000 || (over_ranks && n % 2 == 0)))
                    continue; /* slow to judge */
                char text[100];
                sprintf(text, "b2h%dg2n%dk%lldd%d%s%s:%s", 2 * ratio, n, (long long)keys[i], few_dims[choose(9, 5)],
                        masks[choose(10, 6)], modifiers[choose(11, 4)], dtypes[choose(12, 4)]);
                check_text(&b, text, FROM_STATS);
                check_text(&b, text, FORWARD_ONLY);
            }
    /* one row a kv head: heads side by side or apart, whole and broken vectors of dims, keys that rectangles leave */
    static const char *const parts[] = {"",
                                        ":alibi",
                                        ":softcap=5:sink",
                                        ":sinktokens=3:window=200/0",
                                        ":window=70/0:alibi",
                                        ":align=start:window=-1/90"};
    static const int dims[] = {8, 33, 64, 111, 128};
    for (int heads = 1; heads <= 9; heads += heads < 3 ? 1 : 3)
        for (int i = 0; i < 30; i++) {
            char text[100];
            sprintf(text, "b%dh%dn1k%lldd%dv%d%s%s:%s", 1 + i % 2, heads, (long long)keys[1 + (heads + i) % 5],
                    dims[i % 5], dims[(i + heads) % 5], parts[i % 6], i % 4 < 2 ? "" : ":layout=bhnd",
                    dtypes[(i / 3 + heads) % 4]);
            check_text(&b, text, FORWARD_ONLY);
        }
    finish("decode", &b);
}

/* A choice for the index-th of many words, most of which are left out. */
static int by_index(int what, uint64_t index, int of) {
    return (int)(data_bits(4712, (uint64_t)what, index) % (uint64_t)of);
}

/* The shapes of flash-attention's own tests. */
static void flash_shapes(void **state) {
    (void)state;
    static const int pairs[][2] = {{113, 203},   {128, 217},   {108, 256}, {256, 512}, {512, 256}, {1024, 1024},
                                   {1023, 1024}, {1024, 1023}, {1, 147},   {1, 239},   {3, 799},   {127, 512},
                                   {127, 513},   {1, 1},       {239, 1},   {799, 3},   {384, 256}, {640, 128}};
    static const int dims[] = {32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256};
    static const int kv_heads[] = {6, 2, 1};
    static const char *const masks[] = {"", ":causal", ":window=37/11"};
    batch b = {0, 0};
    uint64_t index = 0;
    for (int p = 0; p < 18; p++)
        for (int d = 0; d < 12; d++)
            for (int g = 0; g < 3; g++)
                for (int m = 0; m < 3; m++, index++) {
                    /* the quick slice: each pair with 4 of the rest, the three large ones causal and with a window */
                    const int large = pairs[p][0] + pairs[p][1] > 2000, chosen = by_index(0, index, large ? 3 : 4);
                    if (!is_long && (large ? g != p % 3 || d > 1 || m != d + 1 : by_index(1, index, 27) != 0)) continue;
                    for (int t = 0; t < 4; t++) { /* long: every type, f64 (slow to judge) for a quarter of them */
                        char text[100];
                        if (is_long && !large ? t == 3 && chosen != 3 : t != chosen) continue;
                        sprintf(text, "b1h6g%dn%dk%dd%d%s:%s", kv_heads[g], pairs[p][0], pairs[p][1], dims[d], masks[m],
                                dtypes[t]);
                        check_text(&b, text, FROM_STATS);
                    }
                }
    finish("flash shapes", &b);
}

/* One word a line; # starts a comment. */
static void check_list(const char *name) {
    char path[1000], line[4096];
    batch b = {0, 0};
    snprintf(path, sizeof path, BURST_SOURCE_DIR "/tests/words/%s.txt", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, " \t\r\n#")] = '\0';
        if (line[0]) check_text(&b, line, FROM_STATS);
    }
    fclose(file);
    finish(name, &b);
}
static void regressions(void **state) {
    (void)state;
    check_list("regressions");
}
static void examples(void **state) {
    (void)state;
    check_list("examples");
}

int main(int count, char **arguments) {
    is_long = count > 1 && strcmp(arguments[1], "long") == 0;
    over_ranks = count > 2 && strcmp(arguments[2], "ranks") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mask_modifier_and_type),
        cmocka_unit_test(every_small_length),
        cmocka_unit_test(every_dimension),
        cmocka_unit_test(by_chance),
        cmocka_unit_test(decode),
        cmocka_unit_test(flash_shapes),
        cmocka_unit_test(regressions),
        cmocka_unit_test(examples),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    printf("%d words\n", total);
    return failed;
}
