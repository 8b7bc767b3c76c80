/* plan.c - knows a whole problem made ready: this rank's tokens, its rounds, its local attention, all memory.
 * One idea: with one rank the share is everything and the only round is the own block, so one rank is no special case but
 * for the ring's memory, which it does not have.
 * Does not compute or send, and allocates nothing after plan_create. */
#include "plan.h"

#include <inttypes.h>
#include <string.h>

/* Counted, so that the plan can say what it holds. */
static void *plan_alloc(burst_plan *plan, size_t count, size_t size) {
    size_t bytes = 0;
    void *memory = base_multiply(count, size, &bytes) ? base_alloc(bytes) : NULL;
    if (memory) plan->own_bytes += bytes;
    return memory;
}

static burst_status count_pairs(burst_plan *plan, const burst_mask *mask) {
    if (mask_pairs(mask, plan->whole.batch, &plan->pairs)) return BURST_OK;
    return base_fail(BURST_INVALID,
                     "batch %" PRId64 " x q_tokens %" PRId64 " x k_tokens %" PRId64
                     " pairs overflow what can be counted",
                     plan->whole.batch, mask->q_tokens, mask->k_tokens);
}

static burst_status copy_alibi(burst_plan *plan) {
    if (!plan->whole.alibi) return BURST_OK;
    const size_t heads = (size_t)plan->whole.q_heads;
    plan->alibi = plan_alloc(plan, heads, sizeof *plan->alibi);
    if (!plan->alibi) return base_fail(BURST_MEMORY, "no memory for the slopes of %zu heads", heads);
    memcpy(plan->alibi, plan->whole.alibi, heads * sizeof *plan->alibi);
    plan->whole.alibi = plan->alibi;
    return BURST_OK;
}

static void share_out(burst_plan *plan, const burst_mask *mask, burst_partition partition) {
    const bool by_heads = plan->strategy == BURST_STRATEGY_ULYSSES; /* any partition is balanced: the simplest */
    plan->partition = partition != BURST_PARTITION_AUTO ? partition
                      : by_heads                        ? BURST_PARTITION_CONTIGUOUS
                                                        : partition_choose(mask, plan->ranks);
    plan->balance = plan->ranks > 1 && !by_heads ? partition_balance(mask, plan->partition, plan->ranks) : 1;
    plan->q = plan_share_of(plan, BURST_SIDE_Q, plan->rank);
    plan->k = plan_share_of(plan, BURST_SIDE_K, plan->rank);
    plan->shape = plan->whole;
    plan->shape.q_tokens = plan->q.tokens;
    plan->shape.k_tokens = plan->k.tokens;
}

/* A dry plan only states them. */
static burst_status make_requests(burst_plan *plan) {
    const size_t count = PLAN_REQUESTS * ((size_t)plan->ranks + 1);
    if (plan->ranks == 1) return BURST_OK;
    if (plan->options.dry) {
        plan->own_bytes += count * sizeof *plan->requests;
        return BURST_OK;
    }
    plan->requests = plan_alloc(plan, count, sizeof *plan->requests);
    if (!plan->requests) return base_fail(BURST_MEMORY, "no memory for the messages of %d ranks", plan->ranks);
    return BURST_OK;
}

static burst_status make_messages(burst_plan *plan) {
    plan_memory *m = &plan->memory;
    if (plan->ranks == 1 || plan->options.dry) return BURST_OK;
    m->home = base_alloc(m->home_bytes);
    m->wire = m->home ? transport_alloc(plan->transport, m->wire_bytes) : NULL;
    if (!m->wire)
        return base_fail(BURST_MEMORY, "no memory for messages: %zu bytes needed", m->home_bytes + m->wire_bytes);
    return BURST_OK;
}

/* d_sink of every rank, and the sum. */
static burst_status make_sinks(burst_plan *plan) {
    if (plan->ranks == 1 || !plan->whole.sink || !(plan->passes & BURST_PASS_BACKWARD)) return BURST_OK;
    plan->sinks = plan_alloc(plan, (size_t)plan->whole.q_heads, sizeof *plan->sinks);
    if (!plan->sinks)
        return base_fail(BURST_MEMORY, "no memory for the sinks of %" PRId64 " heads", plan->whole.q_heads);
    return BURST_OK;
}

static burst_status fill_plan(burst_plan *plan, const burst_mask *mask, const plan_request *request) {
    burst_status status = count_pairs(plan, mask);
    if (status == BURST_OK) status = copy_alibi(plan);
    if (status == BURST_OK) status = make_sinks(plan);
    if (status == BURST_OK) status = make_requests(plan);
    if (status != BURST_OK) return status;
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    plan->slice_count = mask->starts[rows];
    plan->list_count = rows;
    share_out(plan, mask, request->partition);
    status = plan_exchanges(plan) ? stage_make(plan, mask) : route_make(plan, mask, request->sides);
    return status == BURST_OK ? make_messages(plan) : status;
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
        const burst_transport *t = request->transport;
        const int ranks = burst_transport_size(t), rank = burst_transport_rank(t);
        *plan = (burst_plan){.whole = request->shape,
                             .options = request->local,
                             .passes = request->passes,
                             .no_overlap = request->no_overlap,
                             .narrow = request->narrow,
                             .send_o = request->send_o,
                             .strategy = request->strategy,
                             .timeout = request->timeout,
                             .own_bytes = sizeof *plan,
                             .transport = ranks > 1 ? request->transport : NULL,
                             .rank = rank,
                             .ranks = ranks,
                             .report = BURST_REPORT_INIT,
                             .progress = request->progress,
                             .progress_user = request->progress_user,
                             .cancel = request->cancel};
        plan->options.dry = t && t->dry;
        plan->lends = request->lends;
        status = fill_plan(plan, full ? full : request->mask, request);
    }
    burst_mask_free(full);
    if (status == BURST_OK)
        *result = plan;
    else
        plan_free(plan);
    return status;
}

/* What a broken transport may still touch is not freed. */
void plan_free(burst_plan *plan) {
    if (!plan) return;
    lao_free(plan->local);
    base_free(plan->memory.home);
    if (!plan->stuck) transport_release(plan->transport, plan->memory.wire, plan->memory.wire_bytes);
    base_free(plan->requests);
    base_free(plan->sinks);
    base_free(plan->alibi);
    base_free(plan->lists);
    base_free(plan->rects);
    base_free(plan->steps);
    base_free(plan);
}

size_t plan_bytes(const burst_plan *plan) {
    return plan->own_bytes + plan->memory.home_bytes + plan->memory.wire_bytes + lao_bytes(plan->local);
}

/* Every buffer is some part of a tensor of the larger side, of all tokens at most; there are fewer than 32. */
bool plan_messages_fit(const burst_plan *plan) {
    const lao_shape *s = &plan->whole;
    const double tokens = (double)(s->q_tokens > s->k_tokens ? s->q_tokens : s->k_tokens);
    const double dims = (double)(s->head_dim + s->value_dim + 3) * (double)s->q_heads;
    return 32.0 * sizeof(double) * (double)s->batch * tokens * dims < 9e18;
}

int64_t plan_work(const burst_plan *plan, unsigned pass) {
    if (!plan_exchanges(plan)) return plan->routes[plan_pass_index(pass)].pairs * plan->whole.q_heads;
    return plan->strategy == BURST_STRATEGY_GATHER ? plan->routes[0].pairs * plan->whole.q_heads
                                                   : plan->pairs * (plan->whole.q_heads / plan->ranks);
}

size_t plan_stats_bytes(const burst_plan *plan) {
    const lao_shape *s = &plan->shape;
    return (size_t)(s->batch * s->q_heads * s->q_tokens) * 2 * dtype_sum_bytes(s->dtype);
}
