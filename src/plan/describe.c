/* describe.c - prints a plan for people: the problem, the mask, the machine, and with ranks who has what, who visits whom,
 * and what that sends. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "plan.h"

/* A text that is cut where it does not fit, and counts on. */
typedef struct page {
    char *text;
    size_t size, length;
} page;

static char *page_end(const page *p) { return p->length < p->size ? p->text + p->length : NULL; }

static size_t page_room(const page *p) { return p->length < p->size ? p->size - p->length : 0; }

static void print(page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print(page *p, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(page_end(p), page_room(p), format, list);
    va_end(list);
    if (length > 0) p->length += (size_t)length;
}

static void print_problem(page *p, const lao_shape *s) {
    static const char *const types[] = {"f32", "bf16", "f16", "f64"};
    print(p,
          "problem    %s, batch %" PRId64 ", heads %" PRId64 " on %" PRId64 ", tokens %" PRId64 " x %" PRId64
          ", dim %" PRId64 " / %" PRId64 ", scale %.9g",
          types[s->dtype], s->batch, s->q_heads, s->kv_heads, s->q_tokens, s->k_tokens, s->head_dim, s->value_dim,
          s->scale);
    if (s->softcap > 0) print(p, ", softcap %.9g", s->softcap);
    print(p, "%s%s\n", s->alibi ? ", alibi" : "", s->sink ? ", sink" : "");
}

static void print_mask(page *p, const burst_plan *plan) {
    const lao_shape *s = &plan->whole;
    const double all = (double)s->batch * (double)s->q_tokens * (double)s->k_tokens;
    print(p, "mask       %zu slice%s", plan->slice_count, plan->slice_count == 1 ? "" : "s");
    if (plan->list_count > 1) print(p, " in %zu rows", plan->list_count);
    print(p, ", %" PRId64 " pairs a head", plan->pairs);
    if (all > 0) print(p, " (%.4g %% of all)", 100.0 * (double)plan->pairs / all);
    print(p, "\n");
}

/* ---- ranks ------------------------------------------------------------------------------------------------------- */

static const char *side_name(burst_side side) { return side == BURST_SIDE_Q ? "Q" : "K"; }

static void print_share(page *p, const plan_share *share) {
    if (share->count == 0) print(p, " none");
    for (int n = 0; n < share->count; n++) {
        const burst_span *s = &share->spans[n];
        print(p, " %" PRId64 "-%" PRId64, s->begin, s->begin + (s->count - 1) * s->stride);
        if (s->stride > 1) print(p, "/%" PRId64, s->stride);
    }
}

static void print_shares(page *p, const burst_plan *plan) {
    static const char *const kinds[] = {"auto", "contiguous", "zigzag", "striped"};
    print(p, "ranks      %d, %s, busiest / mean %.3f%s\n", plan->ranks, kinds[plan->partition], plan->balance,
          plan_exchanges(plan) ? "" : " (round by round)");
    for (int r = 0; r < plan->ranks; r++) {
        const plan_share q = plan_share_of(plan, BURST_SIDE_Q, r), k = plan_share_of(plan, BURST_SIDE_K, r);
        print(p, "rank %-5d queries", r);
        print_share(p, &q);
        print(p, ", keys");
        print_share(p, &k);
        print(p, r == plan->rank ? " (this rank)\n" : "\n");
    }
}

static void print_stages(page *p, const burst_plan *plan, const char *name, unsigned pass) {
    const int stages = stage_count(plan);
    const stage_heads heads = stage_heads_of(plan, plan->rank, 0);
    print(p,
          "%-10s %s in %d stage%s of %" PRId64 " query and %" PRId64 " kv heads: %" PRId64 " bytes sent, %" PRId64
          " pairs computed\n",
          name, plan->strategy == BURST_STRATEGY_GATHER ? "K and V gathered" : "heads dealt out (ulysses)", stages,
          stages == 1 ? "" : "s", heads.q_count, heads.k_count, stage_wire_bytes(plan, pass), plan_work(plan, pass));
}

static void print_route(page *p, const burst_plan *plan, unsigned pass) {
    const plan_route *route = &plan->routes[plan_pass_index(pass)];
    const char *name = pass == BURST_PASS_FORWARD ? "forward" : "backward";
    if (plan_exchanges(plan)) {
        print_stages(p, plan, name, pass);
        return;
    }
    const int64_t q = plan_wire_bytes(plan, pass, BURST_SIDE_Q), k = plan_wire_bytes(plan, pass, BURST_SIDE_K);
    print(p, "%-10s %s side travels: %" PRId64 " bytes sent (K side %" PRId64 ", Q side %" PRId64 ")\n", name,
          side_name(route->side), route->side == BURST_SIDE_Q ? q : k, k, q);
    for (int t = 0; t < route->count; t++) {
        const plan_step *s = &route->steps[t];
        print(p, "  round %-3d %s %-4d %6" PRId64 " rectangle%s %14" PRId64 " pairs a head%s\n", t,
              s->visitor == plan->rank ? "own block, rank" : "visitor,   rank", s->visitor, s->rects,
              s->rects == 1 ? " " : "s", s->pairs, s->pairs ? "" : ": not computed");
    }
}

/* What messages take where nothing of another rank can be read where it lies: between nodes. */
static size_t copying_bytes(const burst_plan *plan) {
    const plan_memory none = {.home = NULL};
    burst_plan copies = *plan;
    size_t most = PLAN_WIRE_LEAST;
    copies.lends = false;
    for (unsigned pass = BURST_PASS_FORWARD; pass <= BURST_PASS_BACKWARD; pass++) {
        stage_buffers stages;
        plan_buffers rounds;
        size_t home, wire;
        if (!(plan->passes & pass)) continue;
        if (plan_exchanges(plan))
            stage_buffers_of(&copies, pass, &none, &stages, &home, &wire);
        else
            route_buffers(&copies, pass, &none, &rounds, &home, &wire);
        most = wire > most ? wire : most;
    }
    return most;
}

static void print_workspace(page *p, const burst_plan *plan) {
    const plan_memory *m = &plan->memory;
    print(p, "workspace  %zu bytes\n", plan_bytes(plan));
    if (plan->ranks == 1) return;
    print(p, "  of it    %zu bytes to exchange: %zu at home, %zu for messages", m->home_bytes + m->wire_bytes,
          m->home_bytes, m->wire_bytes);
    if (plan->lends) print(p, " (read where they lie; %zu between nodes)", copying_bytes(plan));
    print(p, "\n");
}

size_t plan_describe(const burst_plan *plan, char *text, size_t size) {
    page p = {text, text ? size : 0, 0};
    const bool forward = plan->passes & BURST_PASS_FORWARD, backward = plan->passes & BURST_PASS_BACKWARD;
    print_problem(&p, &plan->whole);
    print_mask(&p, plan);
    if (plan->ranks == 1)
        print(&p, "ranks      1\n");
    else
        print_shares(&p, plan);
    print(&p, "passes     %s%s%s\n", forward ? "forward" : "", forward && backward ? ", " : "",
          backward ? "backward" : "");
    if (plan->ranks > 1 && forward) print_route(&p, plan, BURST_PASS_FORWARD);
    if (plan->ranks > 1 && backward) print_route(&p, plan, BURST_PASS_BACKWARD);
    print(&p, "isa        %s\n", lao_isa_name(plan->options.isa));
    print(&p, "threads    %d\n", plan->options.threads);
    print_workspace(&p, plan);
    print(&p, "stats      %zu bytes\n", plan_stats_bytes(plan));
    p.length += lao_describe(plan->local, page_end(&p), page_room(&p));
    return p.length;
}
