/* check.c - run a word through the library, then compare with the oracle, head by head.
 *
 * One idea: nothing is kept but the largest differences, so memory stays at a few heads. Beyond SAMPLE_ABOVE pairs a
 * sample of rows and keys is compared; a sampled key needs the softmax of every row that sees it, and there the
 * library's own lse and o stand in (they are checked themselves on the sampled rows).
 */
#include "check.h"
#include "need.h"
#include "oracle.h"
#include "sample.h"
#include "share.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double check_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double check_flops(const word *w, int64_t pairs, int backward) {
    double width = backward ? (double)(3 * w->d + 2 * w->v) : (double)(w->d + w->v);
    return 2 * (double)pairs * width * (double)w->heads;
}

burst_status check_forward(burst_plan *plan, const data *t, void *stats) {
    burst_forward_args args = BURST_FORWARD_ARGS_INIT;
    args.q = data_input(&t->q), args.k = data_input(&t->k), args.v = data_input(&t->v);
    args.sink = t->sink;
    args.o = data_output(&t->o);
    args.lse = t->lse;
    args.stats = stats;
    return burst_forward(plan, &args);
}

burst_status check_backward(burst_plan *plan, const data *t, const void *stats) {
    burst_backward_args args = BURST_BACKWARD_ARGS_INIT;
    args.q = data_input(&t->q), args.k = data_input(&t->k), args.v = data_input(&t->v);
    args.o = data_input(&t->o), args.d_o = data_input(&t->d_o);
    args.sink = t->sink;
    args.lse = stats ? NULL : t->lse;
    args.stats = stats;
    args.d_q = data_output(&t->d_q), args.d_k = data_output(&t->d_k), args.d_v = data_output(&t->d_v);
    args.d_sink = t->d_sink;
    return burst_backward(plan, &args);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

/* |value - reference|; equal infinities are equal, and so is an infinity that the type cannot hold otherwise. */
static double distance(double value, double reference, double largest) {
    if (isnan(reference)) return isnan(value) ? 0 : INFINITY;
    if (isnan(value)) return INFINITY;
    if (isinf(value) && fabs(reference) > largest && (value > 0) == (reference > 0)) return 0;
    return fabs(value - reference);
}

static void compare(check_error *e, burst_dtype dtype, double ours, double reference, double plain) {
    double largest = data_largest(dtype), error = distance(ours, reference, largest);
    double plain_error = distance(plain, reference, largest);
    if (isfinite(reference))
        e->finite = 1;
    else if (isnan(reference))
        e->nan = 1;
    if (error > e->error) e->error = error;
    if (isfinite(error)) e->squares += error * error, e->count++;
    if (isfinite(plain_error) && plain_error > e->plain) e->plain = plain_error; /* an overflow excuses nothing */
    if (isfinite(reference) && fabs(reference) > e->largest) e->largest = fabs(reference);
}

static void conclude(const word *w, check_result *r) {
    static const char *names[] = {"o", "lse", "d_q", "d_k", "d_v", "d_sink"};
    for (int i = 0; i < CHECK_NAMES; i++) {
        check_error *e = &r->errors[i];
        burst_dtype dtype = i == CHECK_LSE || i == CHECK_D_SINK ? data_wide(w->dtype) : w->dtype;
        e->name = names[i];
        /* the smallest normal number: what is below may be 0, on sets that say so, and is no number to take a share of */
        e->threshold = (i <= CHECK_LSE ? 2 : 3) * e->plain + 4 * data_epsilon(dtype) * e->largest +
                       (w->dtype == BURST_F64 ? DBL_MIN : FLT_MIN);
        e->ok = e->error <= e->threshold;
        if (r->checked[i] && !e->ok) r->code = 1;
    }
}

/* Both computations of one head or kv head, for the rows and keys of the sample. */
typedef struct room {
    int64_t *rows, *keys, row_count, key_count;
    oracle_rows exact, plain;
    oracle_stats exact_stats, plain_stats;
    double *exact_d_k, *exact_d_v, *plain_d_k, *plain_d_v;
    double *exact_d_sink, *plain_d_sink, *sink_spread; /* [heads] */
} room;

typedef struct comparison {
    const word *word;
    const data *tensors;
    const word_mask *mask;
    sample sample;
    int backward, from_lse;
    check_result *result;
    room room;
} comparison;

static double *numbers(int64_t a, int64_t b) { return need_array((size_t)(a * b), sizeof(double)); }

static oracle_stats stats_make(int64_t n) {
    size_t count = (size_t)n, size = sizeof(long double);
    return (oracle_stats){need_array(count, size), need_array(count, size), need_array(count, size)};
}

static void room_make(const word *w, const sample *s, room *r) {
    r->rows = need_array((size_t)s->rows, sizeof(int64_t));
    r->keys = need_array((size_t)s->keys, sizeof(int64_t));
    r->exact = (oracle_rows){numbers(s->rows, w->v), numbers(s->rows, 1), numbers(s->rows, w->d)};
    r->plain = (oracle_rows){numbers(s->rows, w->v), numbers(s->rows, 1), numbers(s->rows, w->d)};
    r->exact_stats = stats_make(w->n), r->plain_stats = stats_make(w->n);
    r->exact_d_k = numbers(s->keys, w->d), r->exact_d_v = numbers(s->keys, w->v);
    r->plain_d_k = numbers(s->keys, w->d), r->plain_d_v = numbers(s->keys, w->v);
    r->exact_d_sink = numbers(w->heads, 1), r->plain_d_sink = numbers(w->heads, 1);
    r->sink_spread = numbers(w->heads, 1);
}

static void room_free(room *r) {
    void *all[] = {r->rows,
                   r->keys,
                   r->exact.o,
                   r->exact.lse,
                   r->exact.d_q,
                   r->plain.o,
                   r->plain.lse,
                   r->plain.d_q,
                   r->exact_stats.max,
                   r->exact_stats.sum,
                   r->exact_stats.dot,
                   r->plain_stats.max,
                   r->plain_stats.sum,
                   r->plain_stats.dot,
                   r->exact_d_k,
                   r->exact_d_v,
                   r->plain_d_k,
                   r->plain_d_v,
                   r->exact_d_sink,
                   r->plain_d_sink,
                   r->sink_spread};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void compare_rows(comparison *c, int64_t b, int64_t h) {
    const word *w = c->word;
    check_error *errors = c->result->errors;
    burst_dtype wide = data_wide(w->dtype);
    for (int64_t i = 0; i < c->room.row_count; i++) {
        int64_t q = c->room.rows[i];
        for (int64_t j = 0; j < w->v; j++)
            compare(&errors[CHECK_O], w->dtype, data_at(&c->tensors->o, b, q, h, j), c->room.exact.o[i * w->v + j],
                    c->room.plain.o[i * w->v + j]);
        compare(&errors[CHECK_LSE], wide, data_load(wide, c->tensors->lse, (b * w->heads + h) * w->n + q),
                c->room.exact.lse[i], c->room.plain.lse[i]);
        for (int64_t j = 0; c->backward && j < w->d; j++)
            compare(&errors[CHECK_D_Q], w->dtype, data_at(&c->tensors->d_q, b, q, h, j),
                    c->room.exact.d_q[i * w->d + j], c->room.plain.d_q[i * w->d + j]);
    }
}

static double rounded(burst_dtype dtype, double value) {
    return dtype == BURST_F64 ? value : (double)data_round(dtype, (float)value);
}

static void compare_keys(comparison *c, int64_t b, int64_t g) {
    const word *w = c->word;
    room *r = &c->room;
    for (int64_t i = 0; i < r->key_count; i++) {
        int64_t k = r->keys[i];
        for (int64_t j = 0; j < w->d; j++)
            compare(&c->result->errors[CHECK_D_K], w->dtype, data_at(&c->tensors->d_k, b, k, g, j),
                    r->exact_d_k[i * w->d + j], rounded(w->dtype, r->plain_d_k[i * w->d + j]));
        for (int64_t j = 0; j < w->v; j++)
            compare(&c->result->errors[CHECK_D_V], w->dtype, data_at(&c->tensors->d_v, b, k, g, j),
                    r->exact_d_v[i * w->v + j], rounded(w->dtype, r->plain_d_v[i * w->v + j]));
    }
}

/* ---- running the oracle ------------------------------------------------------------------------------------------ */

/* The softmax of every row as the library reports it, for sampled keys and d_sink. */
static void stats_from_library(comparison *c, const oracle_head *h, int64_t b, int64_t head) {
    const word *w = c->word;
    burst_dtype wide = data_wide(w->dtype);
    oracle_stats *to = &c->room.exact_stats, *also = &c->room.plain_stats;
    for (int64_t q = 0; q < w->n; q++) {
        double dot = 0;
        for (int64_t j = 0; j < w->v; j++) dot += h->d_o[q * w->v + j] * data_at(&c->tensors->o, b, q, head, j);
        to->max[q] = also->max[q] = data_load(wide, c->tensors->lse, (b * w->heads + head) * w->n + q);
        to->sum[q] = also->sum[q] = 1;
        to->dot[q] = also->dot[q] = dot;
    }
}

/* The squared errors of the plain rows' terms of d_sink. d_sink is one number a head, and their sum may cancel by luck:
 * the root of this is the error it has without. */
static double sink_spread(const oracle_head *h, const room *r) {
    double spread = 0;
    for (int64_t i = 0; i < r->row_count; i++) {
        const oracle_stats *both[] = {&r->exact_stats, &r->plain_stats};
        int64_t q = r->rows[i];
        double term[2];
        for (int n = 0; n < 2; n++)
            term[n] = (double)(expl((long double)h->sink - both[n]->max[q]) / both[n]->sum[q] * both[n]->dot[q]);
        spread += (term[1] - term[0]) * (term[1] - term[0]);
    }
    return spread;
}

static void run_head(comparison *c, int64_t b, int64_t head) {
    room *r = &c->room;
    oracle_head h;
    oracle_head_load(c->mask, c->tensors, b, head, &h);
    r->row_count = sample_tokens(c->word, &c->sample, 0, (uint64_t)(b * c->word->heads + head), r->rows);
    int sink = c->backward && h.has_sink && c->sample.whole;
    double exact = 0, plain = 0;
    oracle_run_rows(&h, r->rows, r->row_count, &r->exact, &r->exact_stats, sink ? &exact : NULL);
    plain_run_rows(&h, r->rows, r->row_count, &r->plain, &r->plain_stats, sink ? &plain : NULL);
    r->exact_d_sink[head] += exact;
    r->plain_d_sink[head] += plain;
    if (sink) r->sink_spread[head] += sink_spread(&h, r);
    compare_rows(c, b, head);
    c->result->rows += r->row_count;
    if (c->backward) {
        if (!c->sample.whole) stats_from_library(c, &h, b, head);
        for (int64_t i = 0; c->sample.whole && c->from_lse && i < r->row_count; i++) /* one rounded number, as given */
            r->plain_stats.max[r->rows[i]] = r->plain.lse[i], r->plain_stats.sum[r->rows[i]] = 1;
        oracle_run_keys(&h, r->keys, r->key_count, &r->exact_stats, r->exact_d_k, r->exact_d_v);
        plain_run_keys(&h, r->keys, r->key_count, &r->plain_stats, r->plain_d_k, r->plain_d_v);
    }
    oracle_head_free(&h);
}

static void run_group(comparison *c, int64_t i) {
    const word *w = c->word;
    room *r = &c->room;
    int64_t b, g, per_group = w->heads / w->groups;
    sample_group(w, &c->sample, i, &b, &g);
    r->key_count = sample_tokens(w, &c->sample, 1, (uint64_t)(b * w->groups + g), r->keys);
    size_t d_k_bytes = (size_t)(r->key_count * w->d) * sizeof(double);
    size_t d_v_bytes = (size_t)(r->key_count * w->v) * sizeof(double);
    memset(r->exact_d_k, 0, d_k_bytes), memset(r->plain_d_k, 0, d_k_bytes);
    memset(r->exact_d_v, 0, d_v_bytes), memset(r->plain_d_v, 0, d_v_bytes);
    for (int64_t h = g * per_group; h < (g + 1) * per_group; h++) run_head(c, b, h);
    if (!c->backward) return;
    compare_keys(c, b, g);
    c->result->keys += r->key_count;
}

/* A sampled check has no sum over all rows: the library's lse, o and the formula give it. */
static void sampled_d_sink(comparison *c, int64_t head, double *exact, double *plain) {
    const word *w = c->word;
    float sum = 0;
    *exact = 0;
    for (int64_t b = 0; b < w->batch; b++) {
        for (int64_t q = 0; q < w->n; q++) {
            double lse = data_load(data_wide(w->dtype), c->tensors->lse, (b * w->heads + head) * w->n + q), dot = 0;
            double sink = data_load(data_wide(w->dtype), c->tensors->sink, head);
            for (int64_t j = 0; j < w->v; j++)
                dot += data_at(&c->tensors->d_o, b, q, head, j) * data_at(&c->tensors->o, b, q, head, j);
            *exact -= exp(sink - lse) * dot;
            sum -= data_round(w->dtype, expf((float)sink - (float)lse)) * (float)dot;
        }
    }
    *plain = (double)sum;
}

static void compare_sink(comparison *c) {
    const word *w = c->word;
    burst_dtype wide = data_wide(w->dtype);
    c->result->checked[CHECK_D_SINK] = 1;
    for (int64_t h = 0; h < w->heads; h++) {
        double exact = c->room.exact_d_sink[h], plain = c->room.plain_d_sink[h];
        if (!c->sample.whole) {
            if (h != 0 && h != w->heads - 1) continue;
            sampled_d_sink(c, h, &exact, &plain);
        }
        plain = rounded(w->dtype, plain); /* a framework that computes in 16 bits stores it so */
        plain = exact + fmax(fabs(plain - exact), sqrt(c->room.sink_spread[h]));
        compare(&c->result->errors[CHECK_D_SINK], wide, data_load(wide, c->tensors->d_sink, h), exact, plain);
    }
}

static void compare_all(const word *w, const check_options *options, const data *tensors, int64_t pairs,
                        check_result *out) {
    word_mask mask;
    word_mask_make(w, options->seed, &mask);
    comparison c = {.word = w, .tensors = tensors, .mask = &mask, .result = out, .backward = !options->forward_only};
    c.from_lse = options->from_lse;
    sample_choose(w, pairs, &c.sample);
    room_make(w, &c.sample, &c.room);
    out->whole = c.sample.whole;
    out->checked[CHECK_O] = out->checked[CHECK_LSE] = 1;
    out->checked[CHECK_D_Q] = out->checked[CHECK_D_K] = out->checked[CHECK_D_V] = c.backward;
    for (int64_t i = 0; i < c.sample.groups; i++) run_group(&c, i);
    /* sampled, the judge would take D from the library's o: too coarse in 16 bits */
    const int fine = out->whole || w->dtype == BURST_F32 || w->dtype == BURST_F64;
    if (c.backward && (w->parts & WORD_SINK) && fine) compare_sink(&c);
    out->sink_left = c.backward && (w->parts & WORD_SINK) && !fine;
    room_free(&c.room);
    word_mask_free(&mask);
    conclude(w, out);
    if (out->errors[CHECK_O].nan && !out->errors[CHECK_O].finite) {
        out->code = 2;
        snprintf(out->message, sizeof out->message, "the reference is not a number anywhere: is amp= too large?");
    }
}

/* ---- running the library ----------------------------------------------------------------------------------------- */

static int note(check_result *out, burst_status status, int code) {
    if (status == BURST_OK) return 0;
    out->code = status == BURST_TRANSPORT || status == BURST_PEER ? 3 : code; /* not a matter of the problem */
    out->status = status;
    snprintf(out->message, sizeof out->message, "%s: %s", burst_status_name(status), burst_last_error());
    return 1;
}

/* A rival instead of the library. It cannot be refused any more, and does not fail. */
static void run_rival(const word *w, burst_plan *plan, const check_options *options, const data *mine,
                      check_result *out) {
    rival *r = rival_open(options->rival, w, options->me, out->ranks, out->threads, plan, mine, !options->forward_only);
    rival_forward(r);
    out->reports[0] = rival_report(r);
    if (!options->forward_only) rival_backward(r);
    out->reports[1] = rival_report(r);
    rival_close(r);
}

/* Statistics are asked for if backward is to take them: without, a few rows go another way through the kernels. */
static void run_library(burst_plan *plan, const check_options *options, const data *tensors, check_result *out) {
    void *stats = options->forward_only || options->from_lse ? NULL : need_bytes(burst_plan_stats_bytes(plan));
    double start = check_now();
    int failed = note(out, check_forward(plan, tensors, stats), 3);
    double middle = check_now();
    out->reports[0] = out->reports[1] = (burst_report)BURST_REPORT_INIT;
    burst_plan_report(plan, &out->reports[0]);
    if (!failed && !options->forward_only) note(out, check_backward(plan, tensors, stats), 3);
    burst_plan_report(plan, &out->reports[1]);
    out->seconds_forward = middle - start;
    out->seconds_backward = check_now() - middle;
    free(stats);
}

/* Every rank runs its part; `whole`, on rank 0, gets what all have found. */
static void run_shares(const word *w, burst_plan *plan, const check_options *options, data *whole, check_result *out) {
    share mine;
    share_make(w, options->seed, !options->forward_only, plan, &mine);
    if (options->rival)
        run_rival(w, plan, options, &mine.data, out);
    else
        run_library(plan, options, &mine.data, out);
    if (out->code == 0) note(out, share_gather(w, !options->forward_only, plan, &mine, whole), 3);
    share_free(&mine);
}

void check_run(const word *w, const check_options *options, burst_transport *transport, check_result *out) {
    memset(out, 0, sizeof *out);
    word_problem problem;
    burst_plan *plan = NULL;
    burst_options plan_options = options->plan;
    const int first = burst_transport_rank(transport) == 0, ranks = burst_transport_size(transport);
    plan_options.passes = options->forward_only ? BURST_PASS_FORWARD : BURST_PASS_FORWARD | BURST_PASS_BACKWARD;
    if (options->rival) plan_options.passes = BURST_PASS_FORWARD; /* it is there for its partition alone */
    out->ranks = ranks;
    if (!note(out, word_problem_make(w, options->seed, &problem), 2) &&
        !note(out, burst_plan_create(&problem.problem, transport, &plan_options, &plan), 2)) {
        data tensors;
        if (first) data_make(w, options->seed, !options->forward_only, &tensors);
        if (first && options->made) options->made(plan, options->made_user);
        out->threads = burst_plan_threads(plan);
        out->isa = burst_plan_isa(plan);
        out->workspace = burst_plan_workspace_bytes(plan);
        out->flops_forward = check_flops(w, burst_plan_pairs(plan), 0);
        out->flops_backward = options->forward_only ? 0 : check_flops(w, burst_plan_pairs(plan), 1);
        if (ranks == 1 && !options->rival)
            run_library(plan, options, &tensors, out);
        else
            run_shares(w, plan, options, first ? &tensors : NULL, out);
        if (out->code == 0 && first) compare_all(w, options, &tensors, burst_plan_pairs(plan), out);
        if (first) data_free(&tensors);
    }
    burst_plan_free(plan);
    word_problem_free(&problem);
}

typedef struct team {
    const word *word;
    const check_options *options;
    check_result *out;
} team;

static burst_status run_member(burst_transport *transport, void *user) {
    const team *t = user;
    check_result mine;
    check_options options = *t->options;
    if (burst_transport_rank(transport) > 0) options.plan.progress = NULL; /* one rank tells */
    check_run(t->word, &options, transport, &mine);
    if (burst_transport_rank(transport) == 0) *t->out = mine;
    return BURST_OK;
}

void check_run_threads(const word *w, const check_options *options, int ranks, check_result *out) {
    team t = {w, options, out};
    if (ranks == 1) {
        check_run(w, options, NULL, out);
        return;
    }
    memset(out, 0, sizeof *out);
    note(out, burst_threads_run(ranks, run_member, &t), 3);
}
