/* ranks.c - see ranks.h. */
#include "ranks.h"

#include <stdio.h>

#include "base.h"

burst_options ranks_options(burst_partition partition, burst_side forward, burst_side backward) {
    burst_options o = BURST_OPTIONS_INIT;
    o.threads = 1;
    o.partition = partition;
    o.side_forward = forward, o.side_backward = backward;
    o.timeout = 20;
    return o;
}

typedef struct team {
    ranks_result *out;
    const burst_options *options;
    ranks_change change;
    void *user;
    word_problem problem;
} team;

static burst_status run_passes(team *t, burst_plan *plan, share *mine, int rank) {
    ranks_result *out = t->out;
    void *stats = malloc(burst_plan_stats_bytes(plan) + 1);
    burst_status status = check_forward(plan, &mine->data, stats);
    out->reports[rank][0] = out->reports[rank][1] = (burst_report)BURST_REPORT_INIT;
    burst_plan_report(plan, &out->reports[rank][0]);
    if (status == BURST_OK) status = check_backward(plan, &mine->data, stats);
    burst_plan_report(plan, &out->reports[rank][1]);
    free(stats);
    if (mine->data.d_sink) out->d_sink[rank] = data_load(data_wide(out->word.dtype), mine->data.d_sink, 0);
    return status;
}

static burst_status run_rank(burst_transport *transport, void *user) {
    team *t = user;
    const int rank = burst_transport_rank(transport);
    burst_plan *plan = NULL;
    share mine;
    burst_status status = burst_plan_create(&t->problem.problem, transport, t->options, &plan);
    if (status == BURST_OK) {
        share_make(&t->out->word, 1, 1, plan, &mine);
        if (t->change) t->change(&t->out->word, &mine, t->user);
        t->out->wire[rank][0] = burst_plan_wire_bytes(plan, BURST_PASS_FORWARD, BURST_SIDE_AUTO);
        t->out->wire[rank][1] = burst_plan_wire_bytes(plan, BURST_PASS_BACKWARD, BURST_SIDE_AUTO);
        __atomic_add_fetch(&t->out->stated, burst_plan_workspace_bytes(plan), __ATOMIC_RELAXED);
        status = run_passes(t, plan, &mine, rank);
        if (status == BURST_OK) status = share_gather(&t->out->word, 1, plan, &mine, rank ? NULL : &t->out->data);
        share_free(&mine);
    }
    t->out->status[rank] = status;
    snprintf(t->out->sentence[rank], sizeof t->out->sentence[rank], "%s", status ? burst_last_error() : "");
    burst_plan_free(plan);
    return status;
}

void ranks_run(const char *text, int ranks, const burst_options *options, ranks_change change, void *user,
               ranks_result *out) {
    char error[WORD_ERROR_SIZE];
    const burst_options chosen = BURST_OPTIONS_INIT;
    memset(out, 0, sizeof *out);
    team t = {.out = out, .options = options ? options : &chosen, .change = change, .user = user};
    if (word_parse(text, &out->word, error)) fail_msg("%s: %s", text, error);
    if (word_problem_make(&out->word, 1, &t.problem)) fail_msg("%s: %s", text, burst_last_error());
    data_make(&out->word, 1, 1, &out->data);
    burst_threads_run(ranks, run_rank, &t);
    word_problem_free(&t.problem);
}

void ranks_free(ranks_result *r) {
    data_free(&r->data);
    word_free(&r->word);
}

void ranks_assert_ok(const char *text, const ranks_result *r, int ranks) {
    for (int n = 0; n < ranks; n++)
        if (r->status[n]) fail_msg("%s, rank %d of %d: %s", text, n, ranks, r->sentence[n]);
}

void ranks_assert_nothing_left(void) {
    assert_int_equal(base_live_allocations(), 0);
    assert_int_equal(base_live_bytes(), 0);
}
