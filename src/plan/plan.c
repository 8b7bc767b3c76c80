/* plan.c - knows a whole problem made ready: its rectangles, its local attention, its memory, its description.
 * One idea: a slice that meets a span of queries and a span of keys is one rectangle. With one rank each side is one
 * span (begin 0, stride 1), so a slice is a rectangle as it stands; ranks only add spans to intersect with.
 * Does not compute, and allocates nothing after plan_create. */
#include "plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Tokens begin, begin + stride, .. (count of them) of the sequence are the local tokens first, first + 1, .. */
typedef struct span {
    int64_t begin, count, stride, first;
} span;

/* The part of the slice that lies in two spans of stride 1. A slice inside both is never empty. */
static lao_rect rect_of_slice(const burst_slice *slice, const span *queries, const span *keys) {
    return (lao_rect){
        .i0 = queries->first + (slice->q_begin - queries->begin),
        .ni = slice->q_end - slice->q_begin,
        .q0 = slice->q_begin,
        .sq = queries->stride,
        .j0 = keys->first + (slice->k_begin - keys->begin),
        .nj = slice->k_end - slice->k_begin,
        .k0 = slice->k_begin,
        .sk = keys->stride,
        .lo = slice->lo,
        .hi = slice->hi,
        .diag = slice->diag,
    };
}

/* Counted, so that the plan can say what it holds. */
static void *plan_alloc(burst_plan *plan, size_t count, size_t size) {
    size_t bytes = 0;
    void *memory = base_multiply(count, size, &bytes) ? base_alloc(bytes) : NULL;
    if (memory) plan->own_bytes += bytes;
    return memory;
}

static burst_status make_rects(burst_plan *plan, const burst_mask *mask) {
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    const span queries = {0, mask->q_tokens, 1, 0}, keys = {0, mask->k_tokens, 1, 0};
    plan->rect_count = mask->starts[rows];
    plan->rects = plan_alloc(plan, plan->rect_count, sizeof *plan->rects);
    plan->lists = plan->rects ? plan_alloc(plan, rows, sizeof *plan->lists) : NULL;
    if (!plan->lists) return base_fail(BURST_MEMORY, "no memory for the plan's %zu rectangles", plan->rect_count);
    for (size_t i = 0; i < plan->rect_count; i++) plan->rects[i] = rect_of_slice(&mask->slices[i], &queries, &keys);
    for (size_t row = 0; row < rows; row++)
        plan->lists[row] = (lao_list){plan->rects + mask->starts[row], mask->starts[row + 1] - mask->starts[row]};
    plan->shape.lists = plan->lists;
    plan->shape.list_count = (int64_t)rows;
    if (!mask_pairs(mask, plan->shape.batch, &plan->pairs))
        return base_fail(BURST_INVALID,
                         "batch %" PRId64 " x q_tokens %" PRId64 " x k_tokens %" PRId64
                         " pairs overflow what can be counted",
                         plan->shape.batch, mask->q_tokens, mask->k_tokens);
    return BURST_OK;
}

static burst_status copy_alibi(burst_plan *plan) {
    if (!plan->shape.alibi) return BURST_OK;
    const size_t heads = (size_t)plan->shape.q_heads;
    plan->alibi = plan_alloc(plan, heads, sizeof *plan->alibi);
    if (!plan->alibi) return base_fail(BURST_MEMORY, "no memory for the slopes of %zu heads", heads);
    memcpy(plan->alibi, plan->shape.alibi, heads * sizeof *plan->alibi);
    plan->shape.alibi = plan->alibi;
    return BURST_OK;
}

/* The limit is for all of the plan: what the plan's own data took is told to the local attention, whose sentence then
 * gives the bytes of both. */
static burst_status make_local(burst_plan *plan) {
    plan->options.memory_used = plan->own_bytes;
    return lao_create(&plan->shape, &plan->options, &plan->local);
}

static burst_status fill_plan(burst_plan *plan, const burst_mask *mask) {
    burst_status status = make_rects(plan, mask);
    if (status == BURST_OK) status = copy_alibi(plan);
    return status == BURST_OK ? make_local(plan) : status;
}

burst_status plan_create(const plan_request *request, burst_plan **result) {
    burst_mask *full = NULL; /* what a NULL mask means */
    if (!request->mask) {
        burst_mask_spec spec = BURST_MASK_SPEC_INIT;
        spec.q_tokens = request->shape.q_tokens;
        spec.k_tokens = request->shape.k_tokens;
        const burst_status status = burst_mask_create(&spec, &full);
        if (status != BURST_OK) return status;
    }
    burst_plan *plan = base_alloc(sizeof *plan);
    burst_status status = BURST_OK;
    if (!plan) {
        status = base_fail(BURST_MEMORY, "no memory for the %zu bytes of a plan", sizeof *plan);
    } else {
        *plan = (burst_plan){.shape = request->shape,
                             .options = request->local,
                             .own_bytes = sizeof *plan,
                             .rank = burst_transport_rank(request->transport),
                             .ranks = burst_transport_size(request->transport),
                             .progress = request->progress,
                             .progress_user = request->progress_user,
                             .cancel = request->cancel};
        status = fill_plan(plan, full ? full : request->mask);
    }
    burst_mask_free(full);
    if (status == BURST_OK)
        *result = plan;
    else
        plan_free(plan);
    return status;
}

void plan_free(burst_plan *plan) {
    if (!plan) return;
    lao_free(plan->local);
    base_free(plan->alibi);
    base_free(plan->lists);
    base_free(plan->rects);
    base_free(plan);
}

size_t plan_bytes(const burst_plan *plan) { return plan->own_bytes + lao_bytes(plan->local); }

/* ---- description ------------------------------------------------------------------------------------------------- */

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
    const lao_shape *s = &plan->shape;
    const double all = (double)s->batch * (double)s->q_tokens * (double)s->k_tokens;
    print(p, "mask       %zu slice%s", plan->rect_count, plan->rect_count == 1 ? "" : "s");
    if (s->list_count > 1) print(p, " in %" PRId64 " rows", s->list_count);
    print(p, ", %" PRId64 " pairs a head", plan->pairs);
    if (all > 0) print(p, " (%.4g %% of all)", 100.0 * (double)plan->pairs / all);
    print(p, "\n");
}

size_t plan_describe(const burst_plan *plan, char *text, size_t size) {
    page p = {text, text ? size : 0, 0};
    const bool forward = plan->options.passes & BURST_PASS_FORWARD,
               backward = plan->options.passes & BURST_PASS_BACKWARD;
    print_problem(&p, &plan->shape);
    print_mask(&p, plan);
    print(&p, "ranks      %d\n", plan->ranks);
    print(&p, "passes     %s%s%s\n", forward ? "forward" : "", forward && backward ? ", " : "",
          backward ? "backward" : "");
    print(&p, "isa        %s\n", lao_isa_name(plan->options.isa));
    print(&p, "threads    %d\n", plan->options.threads);
    print(&p, "workspace  %zu bytes\n", plan_bytes(plan));
    print(&p, "stats      %zu bytes\n", lao_stats_bytes(plan->local));
    p.length += lao_describe(plan->local, page_end(&p), page_room(&p));
    return p.length;
}
