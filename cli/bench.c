/* bench.c - `burst bench`: how fast, and how near to what this machine can do.
 *
 * One idea: forward, backward, numbers of ranks and the probes take turns in one run, because the machine's speed drifts
 * by tens of per cent within minutes; shares of the peak and ratios compare best with best of the same run.
 * FLOP: 2 pairs (d + v) forward, 2 pairs (3 d + 2 v) backward, exact pairs; backward excludes the forward.
 */
#include "command.h"
#include "json.h"
#include "need.h"
#include "probe.h"
#include "share.h"

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

/* One number of ranks, as one of its ranks sees it. */
typedef struct team {
    int ranks;
    burst_transport *transport;
    burst_plan *plan;
    share mine;
    void *stats;
    double *seconds[2]; /* forward, backward; of the first rank */
    int counts[2];
    double peak, read;
    burst_report reports[2]; /* of the fastest round */
} team;

typedef struct bench {
    const command_options *options;
    word word;
    char *text; /* the word, as it is printed */
    int team_count, pass_count, decode;
    int code; /* the exit code; set by the first member */
} bench;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- one team ---------------------------------------------------------------------------------------------------- */

static burst_status run_pass(const bench *b, team *t, int pass, double *seconds) {
    double start = check_now();
    /* inference wants no statistics; open_team has made those of a decoding backward */
    void *stats = b->decode || b->pass_count == 1 ? NULL : t->stats;
    burst_status status =
        pass ? check_backward(t->plan, &t->mine.data, t->stats) : check_forward(t->plan, &t->mine.data, stats);
    *seconds = check_now() - start;
    return status;
}

static burst_status open_team(const bench *b, const crew_member *me, team *t) {
    const command_options *options = b->options;
    word_problem problem;
    burst_status status = crew_transport(me, t->ranks, &t->transport);
    if (status != BURST_OK || me->rank >= t->ranks) return status;
    status = word_problem_make(&b->word, options->seed, &problem);
    burst_options plan = options->plan;
    plan.passes = options->forward_only ? BURST_PASS_FORWARD : BURST_PASS_FORWARD | BURST_PASS_BACKWARD;
    if (status == BURST_OK) status = burst_plan_create(&problem.problem, t->transport, &plan, &t->plan);
    word_problem_free(&problem);
    if (status != BURST_OK) return status;
    share_make(&b->word, options->seed, !options->forward_only, t->plan, &t->mine);
    if (!options->forward_only) t->stats = need_bytes(burst_plan_stats_bytes(t->plan));
    return check_forward(t->plan, &t->mine.data, t->stats);
}

static void close_team(team *t) {
    free(t->seconds[0]);
    free(t->seconds[1]);
    free(t->stats);
    share_free(&t->mine);
    burst_plan_free(t->plan);
    burst_transport_free(t->transport);
}

/* If any member failed, all hear of it, so that all stop at the same place. */
static burst_status for_all(const crew_member *me, burst_status status) {
    if (status == BURST_TRANSPORT || status == BURST_PEER) crew_give_up("bench", burst_last_error());
    const double bad = crew_sum(me, status != BURST_OK);
    return status == BURST_OK && bad > 0 ? BURST_PEER : status;
}

/* One timed pass. All members come here; those outside of the team sleep until it is done. */
static burst_status take_turn(const bench *b, const crew_member *me, team *t, int pass) {
    burst_status status = BURST_OK;
    double seconds = 0;
    crew_barrier(me);
    if (me->rank < t->ranks) status = run_pass(b, t, pass, &seconds);
    if (status != BURST_OK) crew_give_up(b->text, burst_last_error());
    if (me->rank == 0 && status == BURST_OK) {
        burst_report report = BURST_REPORT_INIT;
        burst_plan_report(t->plan, &report);
        if (t->counts[pass] == 0 || seconds < t->reports[pass].seconds) t->reports[pass] = report;
        t->seconds[pass][t->counts[pass]++] = seconds;
    }
    return for_all(me, status);
}

static void probe_team(const bench *b, const crew_member *me, team *t, void *buffer, size_t bytes) {
    const int threads = burst_plan_threads(t->plan), inside = me->rank < t->ranks;
    crew_barrier(me);
    t->peak = fmax(t->peak, crew_sum(me, inside ? probe_fma(threads, PROBE) : 0));
    if (b->decode) t->read = fmax(t->read, crew_sum(me, inside ? probe_read(threads, buffer, bytes) : 0));
}

/* ---- all of them ------------------------------------------------------------------------------------------------- */

/* A first run of each pass warms up and says how often the budget allows it. */
static burst_status warm_up(const bench *b, const crew_member *me, team *teams, int *rounds) {
    double seconds = 0;
    for (int n = 0; n < b->team_count; n++)
        for (int pass = 0; pass < b->pass_count; pass++) {
            double one = 0;
            crew_barrier(me);
            burst_status status =
                for_all(me, me->rank < teams[n].ranks ? run_pass(b, &teams[n], pass, &one) : BURST_OK);
            if (status != BURST_OK) return status;
            seconds += one + PROBE;
        }
    seconds = crew_first(me, seconds);
    *rounds = USUAL_ROUNDS;
    if (seconds * USUAL_ROUNDS > BUDGET) *rounds = (int)(BUDGET / seconds);
    if (*rounds < LEAST_ROUNDS) *rounds = LEAST_ROUNDS;
    if (seconds * USUAL_ROUNDS < SHORT_RUN) *rounds = (int)(SHORT_RUN / seconds);
    if (*rounds > MOST_ROUNDS) *rounds = MOST_ROUNDS;
    if (b->options->repeat) *rounds = b->options->repeat;
    for (int n = 0; n < b->team_count; n++)
        for (int pass = 0; pass < b->pass_count; pass++)
            teams[n].seconds[pass] = need_array((size_t)*rounds, sizeof(double));
    return BURST_OK;
}

static burst_status measure(const bench *b, const crew_member *me, team *teams, int rounds) {
    size_t bytes = 0;
    void *buffer = b->decode ? probe_read_buffer(&bytes) : NULL;
    burst_status status = BURST_OK;
    for (int round = 0; round < rounds && status == BURST_OK; round++) {
        if (me->rank == 0) progress_show("round %d of %d", round + 1, rounds);
        for (int n = 0; n < b->team_count && status == BURST_OK; n++) {
            for (int pass = 0; pass < b->pass_count && status == BURST_OK; pass++)
                status = take_turn(b, me, &teams[n], pass);
            if (status == BURST_OK) probe_team(b, me, &teams[n], buffer, bytes);
        }
    }
    if (me->rank == 0) progress_clear();
    free(buffer);
    for (int n = 0; n < b->team_count; n++) {
        if (b->word.dtype == BURST_F64) teams[n].peak /= 2;
        for (int pass = 0; pass < b->pass_count; pass++)
            qsort(teams[n].seconds[pass], (size_t)teams[n].counts[pass], sizeof(double), by_value);
    }
    return status;
}

/* ---- telling ----------------------------------------------------------------------------------------------------- */

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

static void print_json(const bench *b, const team *first, const team *t, int pass) {
    const figures f = figure(b, t, pass);
    const burst_report *r = &t->reports[pass];
    json *object = json_new();
    json_text(object, "word", b->text);
    json_text(object, "pass", pass ? "backward" : "forward");
    json_number(object, "threads", burst_plan_threads(t->plan));
    json_number(object, "ranks", t->ranks);
    json_text(object, "transport", t->ranks == 1 ? "self" : crew_is_mpi() ? "mpi" : "threads");
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
        json_number(object, "hidden", r->hidden);
        json_number(object, "bytes_sent", (double)(r->read_bytes + r->write_bytes));
        json_number(object, "messages_sent", (double)(r->read_messages + r->write_messages));
    }
    if (b->team_count > 1) json_number(object, "ratio", first->seconds[pass][0] / f.best);
    json_print(object);
}

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

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int failed(bench *b, const crew_member *me, burst_status status, int code) {
    if (status == BURST_TRANSPORT || status == BURST_PEER) crew_give_up(b->text, burst_last_error());
    const double bad = crew_sum(me, status != BURST_OK);
    if (bad == 0) return 0;
    if (me->rank == 0) {
        b->code = code;
        if (status != BURST_OK)
            command_complain(b->text, status);
        else
            fprintf(stderr, "burst: \"%s\": %.0f of the ranks failed\n", b->text, bad);
    }
    return 1;
}

static void bench_member(crew_member *me, void *user) {
    bench *b = user;
    team teams[RANKS_LIST_MAX];
    int rounds = 0, bad = 0;
    memset(teams, 0, sizeof teams);
    for (int n = 0; n < b->team_count; n++)
        teams[n].ranks = b->options->rank_counts ? b->options->ranks[n] : crew_processes();
    for (int n = 0; n < b->team_count && !bad; n++) bad = failed(b, me, open_team(b, me, &teams[n]), EXIT_REFUSED);
    if (!bad) bad = failed(b, me, warm_up(b, me, teams, &rounds), EXIT_BROKEN);
    if (!bad) bad = failed(b, me, measure(b, me, teams, rounds), EXIT_BROKEN);
    for (int n = 0; n < b->team_count && !bad && me->rank == 0; n++) print_team(b, &teams[0], &teams[n]);
    for (int n = 0; n < b->team_count; n++) close_team(&teams[n]);
}

static int bench_word(const command_options *options, const char *text) {
    bench b = {.options = options};
    int most = 1, code = command_word(options, text, &b.word);
    if (code) return code;
    b.text = word_text(&b.word);
    b.pass_count = options->forward_only ? 1 : 2;
    b.team_count = options->rank_counts ? options->rank_counts : 1;
    b.decode = b.word.n * (b.word.heads / b.word.groups) <= DECODE_ROWS;
    for (int n = 0; n < options->rank_counts; n++) most = options->ranks[n] > most ? options->ranks[n] : most;
    code = crew_run(most, bench_member, &b);
    free(b.text);
    word_free(&b.word);
    return code ? code : b.code;
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
