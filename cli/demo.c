/* demo.c - `burst demo`: one long causal attention on this machine, forward and backward, checked on sampled rows
 * against the oracle, and what it took. */
#include "command.h"
#include "probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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
    check_options how = {options->plan, options->seed, options->forward_only, options->from_lse};
    how.plan.progress = report, how.plan.progress_user = &state;
    char *canonical = word_text(&w);
    printf("%s: attention over %lld tokens, %lld heads, forward%s\n", canonical, (long long)w.n, (long long)w.heads,
           options->forward_only ? "" : " and backward");
    fflush(stdout);
    check_result r;
    double start = check_now();
    check_run(&w, &how, &r);
    progress_clear();
    if (r.code >= EXIT_REFUSED) {
        fprintf(stderr, "burst: \"%s\": %s\n", canonical, r.message);
    } else {
        double peak = 0;
        for (int i = 0; i < 5; i++) peak = fmax(peak, probe_fma(r.threads, 0.05));
        double scores =
            (double)w.batch * (double)w.heads * (double)w.n * (double)w.k * (double)data_size(data_wide(w.dtype));
        print_errors(&r);
        print_row("forward", r.seconds_forward, r.flops_forward, peak);
        if (r.flops_backward > 0) print_row("backward", r.seconds_backward, r.flops_backward, peak);
        printf("  %-10s %8.1f GFLOP/s, FMA from registers on %d thread%s (%s)\n", "peak", peak, r.threads,
               r.threads == 1 ? "" : "s", burst_isa_name(r.isa));
        printf("  %-10s %8.1f MiB of workspace; the score matrix would have taken %.1f GiB\n", "memory",
               (double)r.workspace / 0x1p20, scores / 0x1p30);
        printf("  %-10s %8.2f s with data and check: %s\n", "total", check_now() - start, r.code ? "FAILED" : "ok");
    }
    free(canonical);
    word_free(&w);
    return r.code;
}
