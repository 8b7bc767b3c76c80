/* bench_print.c - tells what bench.c has measured: figures for each number of ranks, a table of systems, or JSON. */
#include "bench.h"
#include "json.h"

#include <math.h>
#include <stdio.h>

typedef struct figures {
    double best, median, gflops, gflops_median, percent, gbps;
} figures;

static figures figure(const bench *b, const team *t, int pass) {
    const word *w = &b->word;
    const double *seconds = t->seconds[pass];
    const int count = t->counts[pass];
    figures f = {.best = seconds[0], .gbps = NAN};
    f.median = count % 2 ? seconds[count / 2] : (seconds[count / 2 - 1] + seconds[count / 2]) / 2;
    double flops = check_flops(w, burst_plan_pairs(t->plan), pass);
    f.gflops = flops / f.best * 1e-9;
    f.gflops_median = flops / f.median * 1e-9;
    f.percent = 100 * f.gflops / t->peak;
    double bytes = (double)data_size(w->dtype) * (double)(w->batch * w->groups) * (double)w->k * (double)(w->d + w->v);
    if (b->decode && pass == 0) f.gbps = bytes / f.best * 1e-9; /* K and V read once */
    return f;
}

static const char *transport_name(const team *t) { return t->ranks == 1 ? "self" : crew_is_mpi() ? "mpi" : "threads"; }

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void json_system(const bench *b, const team *t, int pass, json *object) {
    json_text(object, "system", t->system->name);
    json_number(object, "bytes_sent_all", t->bytes[pass]);
    json_number(object, "bytes_formula_all", system_bytes(t->system, &b->word, t->ranks, pass, bench_stats(b)));
    json_number(object, "messages_sent_all", t->messages[pass]);
    json_number(object, "messages_formula_all", system_messages(t->system, &b->word, t->ranks, pass));
    json_number(object, "memory_bytes", t->memory);
    json_number(object, "memory_formula", t->memory_stated);
    json_number(object, "hidden_mean", t->hidden[pass]);
    json_number(object, "ranks_asked", t->asked);
    json_number(object, "busiest_over_mean", t->busiest[pass]);
}

static void print_json(const bench *b, const team *first, const team *t, int pass) {
    const figures f = figure(b, t, pass);
    const burst_report *r = &t->reports[pass];
    json *object = json_new();
    json_text(object, "word", b->text);
    json_text(object, "pass", pass ? "backward" : "forward");
    json_number(object, "threads", t->how.threads ? t->how.threads : burst_plan_threads(t->plan));
    json_number(object, "ranks", t->ranks);
    json_text(object, "transport", transport_name(t));
    json_text(object, "isa", burst_isa_name(burst_plan_isa(t->plan)));
    json_number(object, "seconds_best", f.best);
    json_number(object, "seconds_median", f.median);
    json_number(object, "gflops", f.gflops);
    json_number(object, "gflops_median", f.gflops_median);
    json_number(object, "peak_gflops", t->peak);
    json_number(object, "percent_of_peak", f.percent);
    json_number(object, "achieved_gbps", f.gbps);
    json_number(object, "read_gbps", isnan(f.gbps) ? NAN : t->read);
    json_number(object, "rounds", t->counts[pass]);
    json_number(object, "pairs", (double)burst_plan_pairs(t->plan));
    if (t->ranks > 1) {
        json_number(object, "seconds_computing", r->seconds_computing);
        json_number(object, "seconds_waiting", r->seconds_waiting);
        json_number(object, "seconds_transfer", r->seconds_transfer);
        json_number(object, "hidden", r->hidden);
        json_number(object, "bytes_sent", (double)(r->read_bytes + r->write_bytes));
        json_number(object, "messages_sent", (double)(r->read_messages + r->write_messages));
    }
    if (t->system) json_system(b, t, pass, object);
    if (b->team_count > 1 && !first->refused) json_number(object, "ratio", first->seconds[pass][0] / f.best);
    json_print(object);
}

static void refused_json(const bench *b, const team *t) {
    json *object = json_new();
    json_text(object, "word", b->text);
    json_text(object, "system", t->system->name);
    json_number(object, "ranks", t->ranks);
    json_text(object, "refused", t->why);
    if (t->memory_stated > 0) json_number(object, "memory_formula", t->memory_stated);
    json_print(object);
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

static void print_pass(const bench *b, const team *first, const team *t, int pass) {
    const figures f = figure(b, t, pass);
    const burst_report *r = &t->reports[pass];
    printf("  %-8s  best %10.3f ms  %7.1f GFLOP/s  %5.1f %% of peak   median %10.3f ms  %7.1f GFLOP/s  %5.1f %%\n",
           pass ? "backward" : "forward", 1e3 * f.best, f.gflops, f.percent, 1e3 * f.median, f.gflops_median,
           100 * f.gflops_median / t->peak);
    if (!isnan(f.gbps))
        printf("            K and V read once: %.1f GB/s, %.1f %% of %.1f GB/s measured\n", f.gbps,
               100 * f.gbps / t->read, t->read);
    if (t->ranks > 1)
        printf(
            "            rank 0: computing %.3f ms, waiting %.3f ms, %.0f %% hidden, %.1f MB sent in %lld messages\n",
            1e3 * r->seconds_computing, 1e3 * r->seconds_waiting, 100 * r->hidden,
            1e-6 * (double)(r->read_bytes + r->write_bytes), (long long)(r->read_messages + r->write_messages));
    if (t != first)
        printf("            %.3f times the speed of %d rank%s (best), %.3f (median)\n",
               first->seconds[pass][0] / f.best, first->ranks, first->ranks == 1 ? "" : "s",
               figure(b, first, pass).median / f.median);
}

static void print_team(const bench *b, const team *first, const team *t) {
    const int threads = burst_plan_threads(t->plan);
    if (!b->options->json) {
        printf("%s  %s, ", b->text, burst_isa_name(burst_plan_isa(t->plan)));
        if (t->ranks > 1 || b->team_count > 1) printf("%d rank%s of ", t->ranks, t->ranks == 1 ? "" : "s");
        printf("%d thread%s, %d rounds, peak %.1f GFLOP/s\n", threads, threads == 1 ? "" : "s", t->counts[0], t->peak);
    }
    for (int pass = 0; pass < b->pass_count; pass++) (b->options->json ? print_json : print_pass)(b, first, t, pass);
}

static void print_row(const bench *b, const team *t, int pass) {
    const figures f = figure(b, t, pass);
    const double formula = system_bytes(t->system, &b->word, t->ranks, pass, bench_stats(b));
    const double messages = system_messages(t->system, &b->word, t->ranks, pass);
    const double ranks = t->ranks;
    printf("  %-13s %-8s %5d %11.3f %11.3f %9.1f", t->system->name, pass ? "backward" : "forward", t->asked,
           1e3 * f.best, 1e3 * f.median, f.gflops);
    printf(" %10.2f%s %6.0f%s", 1e-6 * t->bytes[pass] / ranks, fabs(t->bytes[pass] - formula) < 0.5 ? "=" : "!",
           t->messages[pass] / ranks, fabs(t->messages[pass] - messages) < 0.5 ? "=" : "!");
    printf(" %9.1f %9.1f %7.0f %9.3f\n", t->memory / 1048576, t->memory_stated / 1048576, 100 * t->hidden[pass],
           t->busiest[pass]);
}

static void print_systems(const bench *b, const team *teams) {
    const team *ran = NULL;
    for (int n = 0; n < b->team_count && !ran; n++)
        if (!teams[n].refused) ran = &teams[n];
    printf("%s", b->text);
    if (ran)
        printf("  %s, %d rounds, %d thread%s a rank, over %s", burst_isa_name(burst_plan_isa(ran->plan)),
               ran->counts[0], ran->how.threads, ran->how.threads == 1 ? "" : "s", crew_is_mpi() ? "MPI" : "threads");
    printf("\n  %-13s %-8s %5s %11s %11s %9s %10s  %6s  %9s %9s %7s %9s\n", "system", "pass", "ranks", "best ms",
           "median ms", "GFLOP/s", "MB sent", "msgs", "MiB held", "formula", "hidden%", "busiest");
    for (int n = 0; n < b->team_count; n++)
        for (int pass = 0; pass < b->pass_count; pass++) {
            if (!teams[n].refused)
                print_row(b, &teams[n], pass);
            else if (pass == 0)
                printf("  %-13s %-8s %5d %s\n", teams[n].system->name, "", teams[n].asked, teams[n].why);
        }
    puts("  MB and messages are a rank's mean, = the same as by formula; MiB are those of the rank that holds most, "
         "tensors\n"
         "  and all; busiest rank / mean by pairs.");
}

void bench_print(const bench *b, const team *teams) {
    if (b->options->system_count && !b->options->json) {
        print_systems(b, teams);
        return;
    }
    for (int n = 0; n < b->team_count; n++) {
        if (teams[n].refused)
            refused_json(b, &teams[n]);
        else
            print_team(b, &teams[0], &teams[n]);
    }
}
