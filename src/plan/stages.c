/* stages.c - knows the exchanges, gather and ulysses: which heads a rank computes when, what is exchanged for them, how
 * many bytes that is, which buffers it takes.
 * One idea: both are the same walk. In a stage every rank computes some heads for which tokens of all ranks are needed: of
 * keys alone, all ranks the same heads (gather), or of both sides, every rank its own heads (ulysses). A few stages, so that
 * the next one's messages come while this one is computed.
 * Does not know kernels or the order of messages. */
#include "plan.h"

#include <inttypes.h>
#include <string.h>

/* Fewer, and more of the first stage's messages are waited for; more, and a stage has too few tasks to be cut well. */
enum { STAGES_MOST = 4 };

static bool by_heads(const burst_plan *plan) { return plan->strategy == BURST_STRATEGY_ULYSSES; }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* ---- heads ------------------------------------------------------------------------------------------------------- */

static burst_status check_heads(const burst_plan *plan) {
    const int64_t h = plan->whole.q_heads, g = plan->whole.kv_heads, p = plan->ranks;
    if (!by_heads(plan)) return BURST_OK;
    if (h % p != 0)
        return base_fail(BURST_UNSUPPORTED,
                         "ulysses deals out heads: %" PRId64 " query heads are not a multiple of %" PRId64 " ranks", h,
                         p);
    if (g % p != 0 && p % g != 0)
        return base_fail(BURST_UNSUPPORTED,
                         "ulysses deals out heads: %" PRId64
                         " kv heads are neither a multiple nor a divisor of %" PRId64 " ranks",
                         g, p);
    return BURST_OK;
}

/* kv heads that a rank computes in all stages, and in one. */
static int64_t heads_in_all(const burst_plan *plan) {
    if (!by_heads(plan)) return plan->whole.kv_heads;
    return plan->whole.kv_heads >= plan->ranks ? plan->whole.kv_heads / plan->ranks : 1;
}

static int64_t heads_in_stage(const burst_plan *plan) { return ceil_div(heads_in_all(plan), STAGES_MOST); }

int stage_count(const burst_plan *plan) { return (int)ceil_div(heads_in_all(plan), heads_in_stage(plan)); }

stage_heads stage_heads_of(const burst_plan *plan, int rank, int stage) {
    const int64_t all = heads_in_all(plan), each = heads_in_stage(plan), done = stage * each;
    const int64_t group = plan->whole.q_heads / plan->whole.kv_heads, count = all - done < each ? all - done : each;
    stage_heads heads = {.k_first = done, .k_count = count};
    if (by_heads(plan)) heads.k_first += rank * plan->whole.kv_heads / plan->ranks;
    heads.q_first = heads.k_first * group;
    heads.q_count = count * group;
    if (by_heads(plan) &&
        plan->whole.kv_heads < plan->ranks) { /* some heads of a group, whose kv head others have too */
        heads.q_count = plan->whole.q_heads / plan->ranks;
        heads.q_first = rank * heads.q_count;
    }
    return heads;
}

/* ---- what is exchanged ------------------------------------------------------------------------------------------- */

static void add_part(stage_set *set, burst_side side, int64_t dim, size_t element) {
    set->parts[set->count++] = (stage_part){side, dim, element};
}

stage_set stage_read_set(const burst_plan *plan, unsigned pass) {
    const lao_shape *s = &plan->whole;
    const size_t e = dtype_bytes(s->dtype), real = dtype_sum_bytes(s->dtype);
    stage_set set = {.count = 0};
    if (by_heads(plan) && pass == BURST_PASS_BACKWARD) {
        add_part(&set, BURST_SIDE_Q, 2, real);
        add_part(&set, BURST_SIDE_Q, 1, real);
    }
    if (by_heads(plan)) add_part(&set, BURST_SIDE_Q, s->head_dim, e);
    if (by_heads(plan) && pass == BURST_PASS_BACKWARD) add_part(&set, BURST_SIDE_Q, s->value_dim, e);
    add_part(&set, BURST_SIDE_K, s->head_dim, e);
    add_part(&set, BURST_SIDE_K, s->value_dim, e);
    return set;
}

stage_set stage_write_set(const burst_plan *plan, unsigned pass, bool stats, bool lse, bool added) {
    const lao_shape *s = &plan->whole;
    const size_t e = dtype_bytes(s->dtype), real = dtype_sum_bytes(s->dtype);
    stage_set set = {.count = 0};
    if (pass == BURST_PASS_BACKWARD) {
        const bool complete = by_heads(plan) && s->kv_heads >= plan->ranks;
        const size_t gradient = complete && !added ? e : real;
        add_part(&set, BURST_SIDE_K, s->head_dim, gradient);
        add_part(&set, BURST_SIDE_K, s->value_dim, gradient);
        if (by_heads(plan)) add_part(&set, BURST_SIDE_Q, s->head_dim, gradient);
    } else if (by_heads(plan)) {
        if (stats) add_part(&set, BURST_SIDE_Q, 2, real);
        if (lse) add_part(&set, BURST_SIDE_Q, 1, real);
        add_part(&set, BURST_SIDE_Q, s->value_dim, e);
    }
    return set;
}

size_t stage_bytes(const burst_plan *plan, const stage_set *set, int parts, const stage_heads *heads, int64_t q_tokens,
                   int64_t k_tokens) {
    size_t bytes = 0;
    for (int n = 0; n < parts; n++) {
        const stage_part *part = &set->parts[n];
        const bool q = part->side == BURST_SIDE_Q;
        const int64_t rows = plan->whole.batch * (q ? heads->q_count * q_tokens : heads->k_count * k_tokens);
        bytes += (size_t)(rows * part->dim) * part->element;
    }
    return bytes;
}

size_t stage_message_bytes(const burst_plan *plan, const stage_set *set, int token_rank, int head_rank, int stage) {
    const stage_heads heads = stage_heads_of(plan, head_rank, stage);
    return stage_bytes(plan, set, set->count, &heads, plan_share_of(plan, BURST_SIDE_Q, token_rank).tokens,
                       plan_share_of(plan, BURST_SIDE_K, token_rank).tokens);
}

int64_t stage_wire_bytes(const burst_plan *plan, unsigned pass) {
    const stage_set read = stage_read_set(plan, pass), write = stage_write_set(plan, pass, true, true, false);
    int64_t bytes = 0;
    for (int stage = 0; stage < stage_count(plan); stage++)
        for (int peer = 0; peer < plan->ranks; peer++)
            if (peer != plan->rank)
                bytes += (int64_t)(stage_message_bytes(plan, &read, plan->rank, peer, stage) +
                                   stage_message_bytes(plan, &write, peer, plan->rank, stage));
    return bytes;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

/* Ulysses puts tokens where they stand, so that a slice is one rectangle; gather, whose queries may be striped, keeps the
 * keys of a rank together, so that both have one stride. */
plan_share stage_places(const burst_plan *plan, burst_side side, int rank) {
    plan_share share = plan_share_of(plan, side, rank);
    if (by_heads(plan)) return share;
    int64_t before = 0;
    for (int r = 0; r < rank; r++) before += plan_share_of(plan, side, r).tokens;
    share.count = share.tokens > 0;
    share.spans[0] = (burst_span){before, share.tokens, 1};
    return share;
}

/* The rectangles of one batch row; as partition_rects. */
static int64_t row_rects(const burst_plan *plan, const burst_mask *mask, size_t row, lao_rect *rects, int64_t *pairs) {
    const burst_slice *slices = mask->slices + mask->starts[row];
    const size_t count = mask->starts[row + 1] - mask->starts[row];
    int64_t found = 0, before = 0;
    if (by_heads(plan)) {
        const plan_share q = partition_share(BURST_PARTITION_CONTIGUOUS, plan->whole.q_tokens, 1, 0);
        const plan_share k = partition_share(BURST_PARTITION_CONTIGUOUS, plan->whole.k_tokens, 1, 0);
        return partition_rects(slices, count, &q, &k, 0, q.tokens, rects, pairs);
    }
    for (int rank = 0; rank < plan->ranks; rank++) {
        const plan_share k = plan_share_of(plan, BURST_SIDE_K, rank);
        const int64_t more =
            partition_rects(slices, count, &plan->q, &k, 0, plan->q.tokens, rects ? rects + found : NULL, pairs);
        for (int64_t n = found; n < found + more && rects; n++) rects[n].j0 += before;
        found += more;
        before += k.tokens;
    }
    return found;
}

/* ---- the plan ---------------------------------------------------------------------------------------------------- */

static lao_shape stage_shape(const burst_plan *plan, int stage) {
    const stage_heads heads = stage_heads_of(plan, plan->rank, stage);
    lao_shape shape = plan->whole;
    shape.q_heads = heads.q_count;
    shape.kv_heads = heads.k_count;
    if (shape.alibi) shape.alibi += heads.q_first;
    if (!by_heads(plan)) shape.q_tokens = plan->q.tokens;
    return shape;
}

static burst_status make_rects(burst_plan *plan, const burst_mask *mask) {
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    size_t count = 0, bytes = 0;
    for (size_t row = 0; row < rows; row++) count += (size_t)row_rects(plan, mask, row, NULL, NULL);
    if (base_multiply(count, sizeof *plan->rects, &bytes)) plan->rects = base_alloc(bytes);
    plan->lists = plan->rects ? base_alloc(2 * rows * sizeof *plan->lists) : NULL; /* the second half: nothing */
    if (!plan->lists) return base_fail(BURST_MEMORY, "no memory for the plan's %zu rectangles", count);
    plan->own_bytes += bytes + 2 * rows * sizeof *plan->lists;
    count = 0;
    int64_t pairs = 0;
    for (size_t row = 0; row < rows; row++) {
        const size_t found = (size_t)row_rects(plan, mask, row, plan->rects + count, &pairs);
        plan->lists[row] = (lao_list){plan->rects + count, found};
        plan->lists[rows + row] = (lao_list){plan->rects, 0};
        count += found;
    }
    if (mask->batch == 0) pairs *= plan->whole.batch;
    plan->routes[0].pairs = plan->routes[1].pairs = pairs;
    return BURST_OK;
}

static void measure(burst_plan *plan) {
    const plan_memory none = {.home = NULL};
    plan->memory.wire_bytes = PLAN_WIRE_LEAST;
    for (unsigned pass = BURST_PASS_FORWARD; pass <= BURST_PASS_BACKWARD; pass++) {
        stage_buffers buffers;
        size_t home, wire;
        if (!(plan->passes & pass)) continue;
        stage_buffers_of(plan, pass, &none, &buffers, &home, &wire);
        if (home > plan->memory.home_bytes) plan->memory.home_bytes = home;
        if (wire > plan->memory.wire_bytes) plan->memory.wire_bytes = wire;
    }
}

burst_status stage_make(burst_plan *plan, const burst_mask *mask) {
    lao_round rounds[STAGES_MOST + 1];
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    burst_status status = check_heads(plan);
    if (status != BURST_OK) return status;
    if (!plan_messages_fit(plan))
        return base_fail(BURST_MEMORY, "the messages of this problem do not fit the address space");
    status = make_rects(plan, mask);
    if (status != BURST_OK) return status;
    measure(plan);
    const int stages = stage_count(plan);
    for (int n = 0; n < stages; n++) {
        rounds[n] = (lao_round){stage_shape(plan, n), plan->passes};
        rounds[n].shape.lists = plan->lists;
        rounds[n].shape.list_count = (int64_t)rows;
    }
    plan->local_count = (size_t)stages;
    if (by_heads(plan) && plan->passes & BURST_PASS_BACKWARD) {
        lao_round *home = &rounds[plan->local_count++];
        *home = (lao_round){plan->shape, BURST_PASS_BACKWARD};
        home->shape.k_tokens = 0;
        home->shape.lists = plan->lists + rows;
        home->shape.list_count = (int64_t)rows;
    }
    plan->options.memory_used = plan->own_bytes + plan->memory.home_bytes + plan->memory.wire_bytes;
    return lao_create(rounds, plan->local_count, &plan->options, &plan->local);
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

static void *take(char *base, size_t *used, size_t bytes) {
    void *at = base ? base + *used : NULL;
    *used += (bytes + 63) / 64 * 64;
    return at;
}

/* Messages of a stage, with room for the largest share: all ranks have the same room, so that tensors that are scattered
 * through it come in pieces that agree. The first stage has the most heads. */
static size_t messages_bytes(const burst_plan *plan, const stage_set *set, int count) {
    const stage_heads heads = stage_heads_of(plan, plan->rank, 0);
    int64_t q = 0, k = 0;
    for (int rank = 0; rank < plan->ranks; rank++) {
        const int64_t n = plan_share_of(plan, BURST_SIDE_Q, rank).tokens,
                      m = plan_share_of(plan, BURST_SIDE_K, rank).tokens;
        q = n > q ? n : q, k = m > k ? m : k;
    }
    return (size_t)count * ((stage_bytes(plan, set, set->count, &heads, q, k) + 63) / 64 * 64);
}

void stage_buffers_of(const burst_plan *plan, unsigned pass, const plan_memory *memory, stage_buffers *b,
                      size_t *home_bytes, size_t *wire_bytes) {
    const lao_shape *s = &plan->whole;
    const stage_set read = stage_read_set(plan, pass), write = stage_write_set(plan, pass, true, true, true);
    const stage_heads heads = stage_heads_of(plan, plan->rank, 0);
    const size_t real = dtype_sum_bytes(s->dtype);
    const int64_t own_heads = by_heads(plan) ? s->q_heads : heads.q_count;
    const size_t rows = (size_t)(s->batch * own_heads * plan->q.tokens) * real;
    const size_t wide = (size_t)(s->head_dim > s->value_dim ? s->head_dim : s->value_dim);
    const bool gathers = !by_heads(plan), backward = pass == BURST_PASS_BACKWARD;
    *home_bytes = *wire_bytes = 0;
    memset(b, 0, sizeof *b);
    const size_t all = messages_bytes(plan, &write, plan->ranks);
    for (int n = 0; n < 2; n++)
        b->send[n] = take(memory->wire, wire_bytes, messages_bytes(plan, &read, gathers ? 1 : plan->ranks));
    if (!plan->lends) b->receive = take(memory->wire, wire_bytes, messages_bytes(plan, &read, plan->ranks));
    if (write.count) b->back = take(memory->wire, wire_bytes, all);
    if (write.count && !plan->lends) b->home = take(memory->wire, wire_bytes, all);
    b->whole = take(memory->home, home_bytes, stage_bytes(plan, &read, read.count, &heads, s->q_tokens, s->k_tokens));
    if (write.count)
        b->found =
            take(memory->home, home_bytes, stage_bytes(plan, &write, write.count, &heads, s->q_tokens, s->k_tokens));
    if (backward)
        b->sums = take(memory->home, home_bytes, (size_t)(s->batch * heads.k_count * plan->k.tokens) * wide * real);
    if (backward || gathers) b->ms = take(memory->home, home_bytes, rows * 2);
    if (backward) b->dots = take(memory->home, home_bytes, rows);
    if (backward && gathers) b->d_q = take(memory->home, home_bytes, rows * (size_t)s->head_dim);
    if (!backward && gathers) b->lse = take(memory->home, home_bytes, rows);
}
