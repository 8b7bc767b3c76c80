/* bench.c - `burst bench`: how fast, and how near to what this machine can do; beside other systems, too.
 *
 * One idea: forward, backward, numbers of ranks, systems and the probes take turns in one run, because the machine's speed
 * drifts by tens of per cent within minutes; shares of the peak and ratios compare best with best of the same run.
 * FLOP: 2 pairs (d + v) forward, 2 pairs (3 d + 2 v) backward, exact pairs; backward excludes the forward.
 */
#include "bench.h"
#include "count.h"
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

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* If any member failed, all hear of it, so that all stop at the same place. */
static burst_status for_all(const crew_member *me, const char *text, burst_status status) {
    if (status == BURST_TRANSPORT || status == BURST_PEER) crew_give_up(text, burst_last_error());
    const double bad = crew_sum(me, status != BURST_OK);
    return status == BURST_OK && bad > 0 ? BURST_PEER : status;
}

/* ---- one team ---------------------------------------------------------------------------------------------------- */

static int is_rival(const team *t) { return t->system && t->system->rival; }

static burst_status run_pass(const bench *b, team *t, int pass, double *seconds) {
    double start = check_now();
    burst_status status = BURST_OK;
    /* inference wants no statistics; open_team has made those of a decoding backward */
    void *stats = bench_stats(b) ? t->stats : NULL;
    if (t->rival)
        (pass ? rival_backward : rival_forward)(t->rival);
    else if (pass)
        status = check_backward(t->plan, &t->mine->data, t->stats);
    else
        status = check_forward(t->plan, &t->mine->data, stats);
    *seconds = check_now() - start;
    return status;
}

static burst_report report_of(const team *t) {
    burst_report report = BURST_REPORT_INIT;
    if (t->rival) return rival_report(t->rival);
    burst_plan_report(t->plan, &report);
    return report;
}

static burst_status make_plan(const bench *b, const burst_options *how, burst_transport *transport, int dealer,
                              burst_plan **plan) {
    word_problem problem;
    burst_options options = *how;
    options.passes = b->options->forward_only ? BURST_PASS_FORWARD : BURST_PASS_FORWARD | BURST_PASS_BACKWARD;
    if (dealer) options.passes = BURST_PASS_FORWARD; /* it is there for its partition alone */
    burst_status status = word_problem_make(&b->word, b->options->seed, &problem);
    count_mark(); /* the mask is the caller's */
    if (status == BURST_OK) status = burst_plan_create(&problem.problem, transport, &options, plan);
    word_problem_free(&problem);
    return status;
}

/* The numbers of these tokens, perhaps already made for a team that has the same. */
static void find_share(const bench *b, team *teams, team *t) {
    for (team *other = teams; other < t; other++) {
        burst_span mine[BURST_SPANS_MAX], theirs[BURST_SPANS_MAX];
        int same = other->mine && other->plan && other->ranks == t->ranks;
        for (int side = BURST_SIDE_Q; side <= BURST_SIDE_K && same; side++) {
            const int rank = burst_transport_rank(t->transport);
            const int count = burst_plan_spans(t->plan, (burst_side)side, rank, mine);
            same = count == burst_plan_spans(other->plan, (burst_side)side, rank, theirs) &&
                   memcmp(mine, theirs, (size_t)count * sizeof *mine) == 0;
        }
        if (same) {
            t->mine = other->mine;
            return;
        }
    }
    t->mine = need_bytes(sizeof *t->mine);
    t->owns_share = 1;
    share_make(&b->word, b->options->seed, !b->options->forward_only, t->plan, t->mine);
}

/* Its plan, its numbers and, if it is one, its rival; what all that takes is counted. */
static burst_status open_team(const bench *b, const crew_member *me, team *teams, team *t) {
    const int backward = !b->options->forward_only;
    if (me->rank >= t->ranks) return BURST_OK;
    burst_status status = make_plan(b, &t->how, t->transport, is_rival(t), &t->plan);
    if (status != BURST_OK) return status;
    double held = is_rival(t) ? 0 : count_peak();
    count_mark();
    find_share(b, teams, t);
    const double tensors = system_tensor_bytes(&b->word, t->mine->data.q.tokens, t->mine->data.k.tokens, backward);
    if (backward) t->stats = need_bytes(burst_plan_stats_bytes(t->plan));
    held += t->owns_share ? count_peak() : tensors; /* others' were counted when they were made */
    count_mark();
    if (is_rival(t))
        t->rival = rival_open(t->system->rival, &b->word, me, t->ranks, burst_plan_threads(t->plan), t->plan,
                              &t->mine->data, backward);
    t->memory = held + count_peak();
    if (!is_rival(t)) t->memory_stated = tensors + (double)burst_plan_workspace_bytes(t->plan);
    /* a decoding backward needs statistics, which its forward is not asked for */
    return b->decode && backward && !t->rival ? check_forward(t->plan, &t->mine->data, t->stats) : BURST_OK;
}

static void close_team(team *t) {
    free(t->seconds[0]);
    free(t->seconds[1]);
    free(t->stats);
    rival_close(t->rival);
    if (t->owns_share) share_free(t->mine), free(t->mine);
    burst_plan_free(t->plan);
    burst_transport_free(t->transport);
}

/* ---- systems ----------------------------------------------------------------------------------------------------- */

/* Threads that a rank has, all systems alike: also the one that holds all. */
static int device_threads(const crew_member *me, int ranks) {
    burst_transport *transport = NULL;
    burst_plan *plan = NULL;
    burst_problem problem = BURST_PROBLEM_INIT;
    problem.head_dim = 1;
    double threads = 1;
    if (crew_transport(me, ranks, &transport) == BURST_OK && me->rank < ranks &&
        burst_plan_create(&problem, transport, NULL, &plan) == BURST_OK)
        threads = burst_plan_threads(plan);
    burst_plan_free(plan);
    burst_transport_free(transport);
    return (int)crew_first(me, threads);
}

static int64_t largest_share(const burst_plan *plan, burst_side side, int ranks) {
    int64_t most = 0;
    for (int rank = 0; rank < ranks; rank++) {
        burst_span spans[BURST_SPANS_MAX];
        int64_t tokens = 0;
        for (int n = burst_plan_spans(plan, side, rank, spans) - 1; n >= 0; n--) tokens += spans[n].count;
        most = tokens > most ? tokens : most;
    }
    return most;
}

/* Bytes that this rank would hold, without taking them; a plan that may take one byte only says how many it needs. */
static burst_status measure_needs(const bench *b, const crew_member *me, team *t, double *needs) {
    const int backward = !b->options->forward_only;
    burst_options how = t->how;
    burst_transport *dry = NULL;
    burst_plan *plan = NULL;
    *needs = 0;
    burst_status status = burst_transport_create_dry(me->rank, t->ranks, &dry);
    if (status == BURST_OK) status = make_plan(b, &how, dry, is_rival(t), &plan);
    if (status == BURST_OK) {
        const int64_t n = burst_plan_tokens(plan, BURST_SIDE_Q), m = burst_plan_tokens(plan, BURST_SIDE_K);
        *needs = system_tensor_bytes(&b->word, n, m, backward);
        if (is_rival(t))
            *needs += rival_memory(t->system->rival, &b->word, t->ranks, burst_plan_threads(plan),
                                   largest_share(plan, BURST_SIDE_Q, t->ranks),
                                   largest_share(plan, BURST_SIDE_K, t->ranks), backward);
    }
    burst_plan_free(plan);
    burst_transport_free(dry);
    plan = NULL;
    if (status != BURST_OK || is_rival(t)) return status;
    how.memory_limit = 1;
    status = make_plan(b, &how, t->transport, 0, &plan);
    burst_plan_free(plan);
    if (status != BURST_MEMORY) return status;
    const char *number = strstr(burst_last_error(), "needs ");
    *needs += number ? strtod(number + 6, NULL) : 0;
    return BURST_OK;
}

static void refuse(team *t, const char *why) {
    t->refused = 1;
    snprintf(t->why, sizeof t->why, "%s", why);
}

/* Can this system take the word, and does it fit? All members come to the same answer. */
static burst_status admit(const bench *b, const crew_member *me, team *t) {
    const double limit = (double)b->options->plan.memory_limit;
    const char *why = system_refuses(t->system, &b->word);
    double needs = 0;
    if (why) return refuse(t, why), BURST_OK;
    burst_status status = me->rank < t->ranks ? measure_needs(b, me, t, &needs) : BURST_OK;
    const double bad = crew_sum(me, status != BURST_OK);
    if (status == BURST_TRANSPORT || status == BURST_PEER) return status;
    if (bad > 0) return refuse(t, burst_last_error()), BURST_OK;
    t->memory_stated = needs = crew_max(me, needs);
    if (limit > 0 && needs > limit) {
        char text[128], a[32], c[32];
        snprintf(text, sizeof text, "out of memory: needs %s a rank, limit %s", system_amount(needs, a),
                 system_amount(limit, c));
        refuse(t, text);
    }
    return BURST_OK;
}

/* Compared with the oracle before it is timed. 0, or the exit code. */
static int compare_team(bench *b, crew_member *me, team *t) {
    check_result result = {.code = EXIT_FINE};
    check_options how = {.plan = t->how, .seed = b->options->seed, .forward_only = b->options->forward_only};
    how.rival = t->system->rival, how.me = me;
    if (me->rank == 0) progress_show("checking %s", t->system->name);
    if (me->rank < t->ranks) check_run(&b->word, &how, t->transport, &result);
    if (result.code == EXIT_BROKEN) crew_give_up(b->text, result.message);
    if (me->rank == 0) progress_clear();
    const int code = (int)crew_max(me, result.code);
    if (code && me->rank == 0)
        fprintf(stderr, "burst: \"%s\": %s: %s\n", b->text, t->system->name,
                result.code == EXIT_WRONG ? "too far from the oracle; see burst check --system" : result.message);
    return code;
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

/* What all ranks of a team did in the last pass. */
static void collect(const crew_member *me, team *t, int pass) {
    const burst_report r = me->rank < t->ranks ? report_of(t) : (burst_report)BURST_REPORT_INIT;
    const double pairs = crew_sum(me, (double)r.pairs), most = crew_max(me, (double)r.pairs);
    t->bytes[pass] = crew_sum(me, (double)(r.read_bytes + r.write_bytes));
    t->messages[pass] = crew_sum(me, (double)(r.read_messages + r.write_messages));
    t->busiest[pass] = pairs > 0 ? most * t->asked / pairs : 1; /* ranks that idle count, too */
}

/* One timed pass. All members come here; those outside of the team sleep until it is done. */
static burst_status take_turn(const bench *b, const crew_member *me, team *t, int pass) {
    burst_status status = BURST_OK;
    double seconds = 0, hidden = 0;
    crew_barrier(me);
    if (me->rank < t->ranks) status = run_pass(b, t, pass, &seconds);
    if (status != BURST_OK) crew_give_up(b->text, burst_last_error());
    if (me->rank < t->ranks && status == BURST_OK) {
        const burst_report report = report_of(t);
        if (t->counts[pass] == 0 || seconds < t->reports[pass].seconds) t->reports[pass] = report;
        t->seconds[pass][t->counts[pass]++] = seconds;
        hidden = report.hidden / t->ranks;
    }
    if (t->system) t->hidden[pass] += crew_sum(me, hidden);
    return for_all(me, b->text, status);
}

static void probe_team(const bench *b, const crew_member *me, team *t, void *buffer, size_t bytes) {
    const int threads = burst_plan_threads(t->plan), inside = me->rank < t->ranks;
    crew_barrier(me);
    t->peak = fmax(t->peak, crew_sum(me, inside ? probe_fma(threads, PROBE) : 0));
    if (b->decode) t->read = fmax(t->read, crew_sum(me, inside ? probe_read(threads, buffer, bytes) : 0));
}

/* A first run of each pass warms up and says how often the budget allows it. */
static burst_status warm_up(const bench *b, const crew_member *me, team *teams, int *rounds) {
    double seconds = 0;
    for (int n = 0; n < b->team_count; n++)
        for (int pass = 0; pass < b->pass_count && !teams[n].refused; pass++) {
            double one = 0;
            crew_barrier(me);
            burst_status status =
                for_all(me, b->text, me->rank < teams[n].ranks ? run_pass(b, &teams[n], pass, &one) : BURST_OK);
            if (status != BURST_OK) return status;
            if (teams[n].system) collect(me, &teams[n], pass);
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
            if (teams[n].refused) continue;
            for (int pass = 0; pass < b->pass_count && status == BURST_OK; pass++)
                status = take_turn(b, me, &teams[n], pass);
            if (status == BURST_OK) probe_team(b, me, &teams[n], buffer, bytes);
        }
    }
    if (me->rank == 0) progress_clear();
    free(buffer);
    for (int n = 0; n < b->team_count; n++) {
        if (b->word.dtype == BURST_F64) teams[n].peak /= 2;
        for (int pass = 0; pass < b->pass_count; pass++) {
            qsort(teams[n].seconds[pass], (size_t)teams[n].counts[pass], sizeof(double), by_value);
            teams[n].hidden[pass] /= rounds;
        }
    }
    return status;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int failed(bench *b, const crew_member *me, burst_status status, int code) {
    if (status == BURST_TRANSPORT || status == BURST_PEER) crew_give_up(b->text, burst_last_error());
    const double bad = crew_sum(me, status != BURST_OK);
    if (bad == 0) return 0;
    if (me->rank == 0) {
        b->code = code;
        if (status != BURST_OK)
            command_complain(b->options, b->text, status);
        else
            fprintf(stderr, "burst: \"%s\": %.0f of the ranks failed\n", b->text, bad);
    }
    return 1;
}

static void describe_team(const bench *b, int n, int threads, team *t) {
    const int count = b->options->system_count, each = count ? count : 1;
    t->ranks = t->asked = b->options->rank_counts ? b->options->ranks[n / each] : crew_processes();
    t->how = b->options->plan;
    if (!count) return;
    t->system = b->options->systems[n % each];
    if (t->system->alone) t->ranks = 1;
    t->how.threads = threads;
    t->how.memory_limit = 0; /* of tensors and all; the plan's is for its workspace */
    system_apply(t->system, &t->how);
}

/* 0, or it failed. */
static int start_team(bench *b, crew_member *me, team *teams, team *t) {
    if (failed(b, me, crew_transport(me, t->ranks, &t->transport), EXIT_BROKEN)) return 1;
    if (t->system) {
        if (failed(b, me, admit(b, me, t), EXIT_BROKEN)) return 1;
        if (t->refused) return 0;
        const int code = b->options->unchecked ? 0 : compare_team(b, me, t);
        if (code && me->rank == 0) b->code = code;
        if (code) return 1;
    }
    if (failed(b, me, open_team(b, me, teams, t), EXIT_REFUSED)) return 1;
    t->memory = crew_max(me, t->memory);
    t->memory_stated = crew_max(me, t->memory_stated);
    return 0;
}

static void bench_member(crew_member *me, void *user) {
    bench *b = user;
    team *teams = need_array(TEAMS_MOST, sizeof *teams);
    int rounds = 0, bad = 0, refused = 0;
    int threads = b->options->plan.threads;
    if (b->options->system_count && !threads) threads = device_threads(me, b->most);
    for (int n = 0; n < b->team_count; n++) describe_team(b, n, threads, &teams[n]);
    for (int n = 0; n < b->team_count && !bad; n++) bad = start_team(b, me, teams, &teams[n]);
    for (int n = 0; n < b->team_count; n++) refused += teams[n].refused;
    const int some = !bad && refused < b->team_count;
    if (some) bad = failed(b, me, warm_up(b, me, teams, &rounds), EXIT_BROKEN);
    if (some && !bad) bad = failed(b, me, measure(b, me, teams, rounds), EXIT_BROKEN);
    if (!bad && me->rank == 0) bench_print(b, teams);
    if (!bad && me->rank == 0 && !some) b->code = EXIT_REFUSED;
    for (int n = 0; n < b->team_count; n++) close_team(&teams[n]);
    free(teams);
}

static int bench_word(const command_options *options, const char *text) {
    bench b = {.options = options, .most = crew_processes()};
    int code = command_word(options, text, &b.word);
    if (code) return code;
    b.text = word_text(&b.word);
    b.pass_count = options->forward_only ? 1 : 2;
    b.team_count =
        (options->rank_counts ? options->rank_counts : 1) * (options->system_count ? options->system_count : 1);
    const int64_t group = b.word.heads / b.word.groups;
    b.decode = b.word.n <= DECODE_ROWS / (group > 0 ? group : 1);
    for (int n = 0; n < options->rank_counts; n++) b.most = options->ranks[n] > b.most ? options->ranks[n] : b.most;
    code = crew_run(b.most, bench_member, &b);
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
