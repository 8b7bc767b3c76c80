/* demo.c - `burst demo`: one long causal attention over ranks, forward and backward, checked on sampled rows against the
 * oracle; what it took, what it sent, and what RingAttention would have sent. */
#include "command.h"
#include "need.h"
#include "probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 8 heads, 32768 tokens: 7.7 TFLOP in all, about a minute with the check on two cores of 2021. */
#define DEMO_WORD "b1h8n32768d128:causal"

typedef struct watch {
    int backward; /* which pass is running */
    double last;  /* share at the last call and at the last plain line */
    double line;
} watch;

/* On a terminal a line that overwrites itself; in a pipe a plain line at every quarter. */
static void report(void *user, double done) {
    watch *w = user;
    if (done < w->last) w->backward = 1, w->line = 0; /* the share starts again with the second pass */
    w->last = done;
    progress_label label = {w->backward ? "backward" : "forward"};
    if (progress_visible()) {
        progress_report(&label, done);
    } else if (done >= w->line + 0.25) {
        w->line = floor(done * 4) / 4;
        printf("  %s: %3.0f %%\n", label.what, 100 * w->line);
        fflush(stdout);
    }
}

static void print_row(const char *name, double seconds, double flops, double peak) {
    double gflops = flops / seconds * 1e-9;
    printf("  %-10s %8.2f s  %8.1f GFLOP/s  %5.1f %% of peak\n", name, seconds, gflops, 100 * gflops / peak);
}

static void print_errors(const check_result *r) {
    for (int i = 0; i < CHECK_NAMES; i++)
        if (r->checked[i])
            printf("  %-10s error %9.3e  threshold %9.3e  %s\n", r->errors[i].name, r->errors[i].error,
                   r->errors[i].threshold, r->errors[i].ok ? "ok" : "TOO LARGE");
    printf("  compared with the f64 oracle: ");
    if (r->whole)
        printf("all rows and keys\n");
    else
        printf("%lld rows and %lld keys; for the keys, lse and o of the rows are the library's\n", (long long)r->rows,
               (long long)r->keys);
}

typedef struct demo {
    const word *word;
    check_options how;
    int ranks;
    int64_t chosen, k_side; /* bytes of the backward pass: as planned, and if the K side travelled */
    check_result result;    /* of the first rank */
} demo;

static void demo_member(crew_member *me, void *user) {
    demo *d = user;
    check_options how = d->how;
    burst_transport *transport = NULL;
    check_result result = {.code = EXIT_BROKEN, .message = "the ranks found no way to each other"};
    if (me->rank > 0) how.plan.progress = NULL; /* one rank tells */
    if (crew_transport(me, d->ranks, &transport) == BURST_OK && me->rank < d->ranks)
        check_run(d->word, &how, transport, &result);
    if (result.code == EXIT_BROKEN && me->rank < d->ranks) crew_give_up("demo", result.message);
    if (me->rank == 0) d->result = result;
    crew_barrier(me);
    burst_transport_free(transport);
}

/* Before it runs: the plan, as the first rank has it, and what its backward will send. */
static void show_plan(const burst_plan *plan, void *user) {
    demo *d = user;
    const size_t length = burst_plan_describe(plan, NULL, 0);
    char *text = need_bytes(length + 1);
    burst_plan_describe(plan, text, length + 1);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) printf("  %s\n", line);
    fflush(stdout);
    free(text);
    d->chosen = burst_plan_wire_bytes(plan, BURST_PASS_BACKWARD, BURST_SIDE_AUTO);
    d->k_side = burst_plan_wire_bytes(plan, BURST_PASS_BACKWARD, BURST_SIDE_K);
}

static double probe(int threads) {
    double peak = 0;
    for (int i = 0; i < 5; i++) peak = fmax(peak, probe_fma(threads, 0.05));
    return peak;
}

/* RingAttention sends K and V p - 1 times and both gradients p times; our K side sends both p - 1 times. */
static double ring_attention_bytes(const word *w, int ranks, int64_t k_side) {
    const double e = (double)data_size(w->dtype), g = (double)data_size(data_wide(w->dtype));
    return (double)k_side * ((ranks - 1) * e + ranks * g) / ((ranks - 1) * (e + g));
}

static void print_traffic(const demo *d) {
    const burst_report *f = &d->result.reports[0], *b = &d->result.reports[1];
    const double ring = ring_attention_bytes(d->word, d->ranks, d->k_side);
    printf("  %-10s %8.1f MB forward, %.1f MB backward by rank 0; RingAttention's backward: %.1f MB, %.0f %% more\n",
           "sent", 1e-6 * (double)(f->read_bytes + f->write_bytes), 1e-6 * (double)(b->read_bytes + b->write_bytes),
           1e-6 * ring, 100 * (ring / (double)d->chosen - 1));
    printf("  %-10s %8.0f %% of the communication forward, %.0f %% backward\n", "hidden", 100 * f->hidden,
           100 * b->hidden);
}

static void print_result(const demo *d, double start) {
    const check_result *r = &d->result;
    const word *w = d->word;
    const int workers = r->threads * d->ranks;
    const double peak = probe(workers);
    double scores =
        (double)w->batch * (double)w->heads * (double)w->n * (double)w->k * (double)data_size(data_wide(w->dtype));
    print_errors(r);
    print_row("forward", r->seconds_forward, r->flops_forward, peak);
    if (r->flops_backward > 0) print_row("backward", r->seconds_backward, r->flops_backward, peak);
    printf("  %-10s %8.1f GFLOP/s, FMA from registers on %d thread%s (%s)\n", "peak", peak, workers,
           workers == 1 ? "" : "s", burst_isa_name(r->isa));
    if (d->ranks > 1 && r->flops_backward > 0) print_traffic(d);
    printf("  %-10s %8.1f MiB of workspace a rank; the score matrix would have taken %.1f GiB\n", "memory",
           (double)r->workspace / 0x1p20, scores / 0x1p30);
    printf("  %-10s %8.2f s with data and check: %s\n", "total", check_now() - start, r->code ? "FAILED" : "ok");
}

/* Where nothing is said: as many ranks as there are cores for, but more than one, for that is what is shown. */
static int demo_ranks(const command_options *options) {
    if (options->rank_counts || crew_is_mpi()) return command_ranks(options);
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_plan *plan = NULL;
    problem.q_tokens = problem.k_tokens = problem.head_dim = 1;
    if (burst_plan_create(&problem, NULL, NULL, &plan) != BURST_OK) return 2;
    const int cores = burst_plan_threads(plan);
    burst_plan_free(plan);
    return cores < 2 ? 2 : cores > 8 ? 8 : cores;
}

int command_demo(const command_options *options) {
    word w;
    const char *text = options->word_count ? options->words[0] : DEMO_WORD;
    if (options->json || options->word_count > 1) {
        fputs("burst: demo takes one word at most, and no --json; see burst --help\n", stderr);
        return EXIT_REFUSED;
    }
    int bad = command_word(options, text, &w);
    if (bad) return bad;
    watch state = {0, 0, 0};
    demo d = {.word = &w,
              .how = {options->plan, options->seed, options->forward_only, 0, NULL, NULL},
              .ranks = demo_ranks(options)};
    char *canonical = word_text(&w);
    printf("%s: attention over %lld tokens, %lld heads, %d rank%s, forward%s\n", canonical, (long long)w.n,
           (long long)w.heads, d.ranks, d.ranks == 1 ? "" : "s", options->forward_only ? "" : " and backward");
    fflush(stdout);
    d.how.made = show_plan, d.how.made_user = &d;
    d.how.plan.progress = report, d.how.plan.progress_user = &state;
    double start = check_now();
    bad = crew_run(d.ranks, demo_member, &d);
    progress_clear();
    if (d.result.code >= EXIT_REFUSED)
        fprintf(stderr, "burst: \"%s\": %s\n", canonical, d.result.message);
    else
        print_result(&d, start);
    free(canonical);
    word_free(&w);
    return bad ? bad : d.result.code;
}
