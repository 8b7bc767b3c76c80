/* bench.c - `burst bench`: how fast, and how near to what this machine can do.
 *
 * One idea: forward, backward and the probes take turns in one run, because the machine's speed drifts by tens of per
 * cent within minutes; shares of the peak compare best with best of the same run.
 * FLOP: 2 pairs (d + v) forward, 2 pairs (3 d + 2 v) backward, exact pairs; backward excludes the forward.
 */
#include "command.h"
#include "json.h"
#include "need.h"
#include "probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_ROUNDS 3
#define USUAL_ROUNDS 10
#define MOST_ROUNDS 200
#define BUDGET 20.0    /* seconds, unless --repeat says how often */
#define SHORT_RUN 0.5  /* seconds that short problems are repeated for, beyond the usual rounds */
#define PROBE 0.03     /* seconds of an FMA probe */
#define DECODE_ROWS 16 /* query rows per kv head up to which memory, not arithmetic, is the limit */

typedef struct timing {
    double *seconds;
    int count;
} timing;

typedef struct bench {
    word word;
    word_problem problem;
    burst_plan *plan;
    data tensors;
    void *stats;
    timing passes[2]; /* forward, backward */
    int pass_count, rounds;
    int decode;
    void *buffer;
    size_t buffer_bytes;
    double peak, read;
} bench;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static burst_status run_pass(bench *b, int pass, double *seconds) {
    double start = check_now();
    /* inference wants no statistics; open_bench has made those of a decoding backward */
    void *stats = b->decode || b->pass_count == 1 ? NULL : b->stats;
    burst_status status =
        pass ? check_backward(b->plan, &b->tensors, b->stats) : check_forward(b->plan, &b->tensors, stats);
    *seconds = check_now() - start;
    return status;
}

static burst_status open_bench(bench *b, const command_options *options) {
    burst_status status = word_problem_make(&b->word, options->seed, &b->problem);
    if (status != BURST_OK) return status;
    burst_options plan = options->plan;
    plan.passes = options->forward_only ? BURST_PASS_FORWARD : BURST_PASS_FORWARD | BURST_PASS_BACKWARD;
    status = burst_plan_create(&b->problem.problem, NULL, &plan, &b->plan);
    if (status != BURST_OK) return status;
    data_make(&b->word, options->seed, !options->forward_only, &b->tensors);
    if (!options->forward_only) b->stats = need_bytes(burst_plan_stats_bytes(b->plan));
    b->pass_count = options->forward_only ? 1 : 2;
    b->decode = b->word.n * (b->word.heads / b->word.groups) <= DECODE_ROWS;
    if (b->decode) b->buffer = probe_read_buffer(&b->buffer_bytes);
    return check_forward(b->plan, &b->tensors, b->stats);
}

static void close_bench(bench *b) {
    free(b->passes[0].seconds);
    free(b->passes[1].seconds);
    free(b->buffer);
    free(b->stats);
    data_free(&b->tensors);
    burst_plan_free(b->plan);
    word_problem_free(&b->problem);
}

/* A first run of each pass warms up and says how often the budget allows it. */
static burst_status warm_up(bench *b, int repeat) {
    double seconds = PROBE, one;
    for (int pass = 0; pass < b->pass_count; pass++) {
        burst_status status = run_pass(b, pass, &one);
        if (status != BURST_OK) return status;
        seconds += one;
    }
    if (b->decode) seconds += probe_read(burst_plan_threads(b->plan), b->buffer, b->buffer_bytes) > 0 ? 0.03 : 0;
    b->rounds = USUAL_ROUNDS;
    if (seconds * USUAL_ROUNDS > BUDGET) b->rounds = (int)(BUDGET / seconds);
    if (b->rounds < LEAST_ROUNDS) b->rounds = LEAST_ROUNDS;
    if (seconds * USUAL_ROUNDS < SHORT_RUN) b->rounds = (int)(SHORT_RUN / seconds);
    if (b->rounds > MOST_ROUNDS) b->rounds = MOST_ROUNDS;
    if (repeat) b->rounds = repeat;
    for (int pass = 0; pass < b->pass_count; pass++)
        b->passes[pass].seconds = need_array((size_t)b->rounds, sizeof(double));
    return BURST_OK;
}

static burst_status measure(bench *b) {
    int threads = burst_plan_threads(b->plan);
    for (int round = 0; round < b->rounds; round++) {
        progress_show("round %d of %d", round + 1, b->rounds);
        for (int pass = 0; pass < b->pass_count; pass++) {
            timing *t = &b->passes[pass];
            burst_status status = run_pass(b, pass, &t->seconds[t->count++]);
            if (status != BURST_OK) return status;
        }
        b->peak = fmax(b->peak, probe_fma(threads, PROBE));
        if (b->decode) b->read = fmax(b->read, probe_read(threads, b->buffer, b->buffer_bytes));
    }
    progress_clear();
    if (b->word.dtype == BURST_F64) b->peak /= 2;
    for (int pass = 0; pass < b->pass_count; pass++)
        qsort(b->passes[pass].seconds, (size_t)b->passes[pass].count, sizeof(double), by_value);
    return BURST_OK;
}

typedef struct figures {
    double best, median, gflops, gflops_median, percent, gbps;
} figures;

static figures figure(const bench *b, int pass) {
    const word *w = &b->word;
    const timing *t = &b->passes[pass];
    figures f = {.best = t->seconds[0], .gbps = NAN};
    f.median = t->count % 2 ? t->seconds[t->count / 2] : (t->seconds[t->count / 2 - 1] + t->seconds[t->count / 2]) / 2;
    double flops = check_flops(w, burst_plan_pairs(b->plan), pass);
    f.gflops = flops / f.best * 1e-9;
    f.gflops_median = flops / f.median * 1e-9;
    f.percent = 100 * f.gflops / b->peak;
    double bytes = (double)data_size(w->dtype) * (double)(w->batch * w->groups) * (double)w->k * (double)(w->d + w->v);
    if (b->decode && pass == 0) f.gbps = bytes / f.best * 1e-9; /* K and V read once */
    return f;
}

static void print_json(const bench *b, const char *text, int pass) {
    figures f = figure(b, pass);
    json *object = json_new();
    json_text(object, "word", text);
    json_text(object, "pass", pass ? "backward" : "forward");
    json_number(object, "threads", burst_plan_threads(b->plan));
    json_number(object, "ranks", 1);
    json_text(object, "isa", burst_isa_name(burst_plan_isa(b->plan)));
    json_number(object, "seconds_best", f.best);
    json_number(object, "seconds_median", f.median);
    json_number(object, "gflops", f.gflops);
    json_number(object, "gflops_median", f.gflops_median);
    json_number(object, "peak_gflops", b->peak);
    json_number(object, "percent_of_peak", f.percent);
    json_number(object, "achieved_gbps", f.gbps);
    json_number(object, "read_gbps", isnan(f.gbps) ? NAN : b->read);
    json_number(object, "rounds", b->passes[pass].count);
    json_number(object, "pairs", (double)burst_plan_pairs(b->plan));
    json_print(object);
}

static void print_pass(const bench *b, int pass) {
    figures f = figure(b, pass);
    printf("  %-8s  best %10.3f ms  %7.1f GFLOP/s  %5.1f %% of peak   median %10.3f ms  %7.1f GFLOP/s  %5.1f %%\n",
           pass ? "backward" : "forward", 1e3 * f.best, f.gflops, f.percent, 1e3 * f.median, f.gflops_median,
           100 * f.gflops_median / b->peak);
    if (!isnan(f.gbps))
        printf("            K and V read once: %.1f GB/s, %.1f %% of %.1f GB/s measured\n", f.gbps,
               100 * f.gbps / b->read, b->read);
}

static int bench_word(const command_options *options, const char *text) {
    bench b;
    memset(&b, 0, sizeof b);
    int code = command_word(options, text, &b.word);
    if (code) return code;
    char *canonical = word_text(&b.word);
    burst_status status = open_bench(&b, options);
    if (status != BURST_OK) {
        code = EXIT_REFUSED;
    } else {
        status = warm_up(&b, options->repeat);
        if (status == BURST_OK) status = measure(&b);
        if (status != BURST_OK) code = EXIT_BROKEN;
    }
    if (code) command_complain(canonical, status);
    if (!code && !options->json)
        printf("%s  %s, %d thread%s, %d rounds, peak %.1f GFLOP/s\n", canonical, burst_isa_name(burst_plan_isa(b.plan)),
               burst_plan_threads(b.plan), burst_plan_threads(b.plan) == 1 ? "" : "s", b.rounds, b.peak);
    for (int pass = 0; !code && pass < b.pass_count; pass++) {
        if (options->json)
            print_json(&b, canonical, pass);
        else
            print_pass(&b, pass);
    }
    free(canonical);
    close_bench(&b);
    word_free(&b.word);
    return code;
}

int command_bench(const command_options *options) {
    int worst = EXIT_FINE;
    if (!options->word_count) {
        fputs("burst: bench needs a word; see burst --help\n", stderr);
        return EXIT_REFUSED;
    }
    for (int i = 0; i < options->word_count; i++) {
        int code = bench_word(options, options->words[i]);
        if (code > worst) worst = code;
    }
    return worst;
}
