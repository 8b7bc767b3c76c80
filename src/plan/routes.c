/* routes.c - knows the ring: which visitor comes when, what travels, how many bytes that is, which buffers it takes.
 * One idea: a pass lets one side travel; what travels is a read set and a write set, lists of parts; bytes, buffers and
 * the choice of the side all follow from the lists.
 * Blocks go to rank - 1, so the t-th visitor of a rank is the block of rank + t. */
#include "plan.h"

#include <string.h>

/* ---- what travels ------------------------------------------------------------------------------------------------ */

static void add_part(plan_set *set, int64_t heads, int64_t dim, size_t element) {
    set->parts[set->count++] = (plan_part){heads, dim, element};
}

plan_set route_read_set(const burst_plan *plan, unsigned pass, burst_side side) {
    const lao_shape *s = &plan->whole;
    const size_t e = dtype_bytes(s->dtype), real = dtype_sum_bytes(s->dtype);
    plan_set set = {.count = 0};
    if (side == BURST_SIDE_K) {
        add_part(&set, s->kv_heads, s->head_dim, e);
        add_part(&set, s->kv_heads, s->value_dim, e);
        return set;
    }
    if (pass == BURST_PASS_BACKWARD) {
        add_part(&set, s->q_heads, 2, real);
        if (!plan->send_o) add_part(&set, s->q_heads, 1, real);
    }
    add_part(&set, s->q_heads, s->head_dim, e);
    if (pass == BURST_PASS_BACKWARD) add_part(&set, s->q_heads, s->value_dim, e);
    if (pass == BURST_PASS_BACKWARD && plan->send_o) add_part(&set, s->q_heads, s->value_dim, e);
    return set;
}

plan_set route_write_set(const lao_shape *s, unsigned pass, burst_side side, bool narrow) {
    const size_t real = dtype_sum_bytes(s->dtype), gradient = narrow ? dtype_bytes(s->dtype) : real;
    plan_set set = {.count = 0};
    if (pass == BURST_PASS_FORWARD && side == BURST_SIDE_Q) {
        add_part(&set, s->q_heads, s->value_dim, real);
        add_part(&set, s->q_heads, 2, real);
    } else if (pass == BURST_PASS_BACKWARD && side == BURST_SIDE_Q) {
        add_part(&set, s->q_heads, s->head_dim, gradient);
    } else if (pass == BURST_PASS_BACKWARD) {
        add_part(&set, s->kv_heads, s->head_dim, gradient);
        add_part(&set, s->kv_heads, s->value_dim, gradient);
    }
    return set;
}

size_t route_set_bytes(const plan_set *set, int64_t batch, int64_t tokens) {
    size_t bytes = 0;
    for (int n = 0; n < set->count; n++)
        bytes += (size_t)(batch * tokens * set->parts[n].heads * set->parts[n].dim) * set->parts[n].element;
    return bytes;
}

plan_share plan_share_of(const burst_plan *plan, burst_side side, int rank) {
    return partition_share(plan->partition, side == BURST_SIDE_Q ? plan->whole.q_tokens : plan->whole.k_tokens,
                           plan->ranks, rank);
}

/* Every rank sends its own block and all visitors but the last, and what it added to each visitor. */
int64_t plan_wire_bytes(const burst_plan *plan, unsigned pass, burst_side side) {
    if (plan_exchanges(plan)) return stage_wire_bytes(plan, pass);
    const plan_set read = route_read_set(plan, pass, side);
    const plan_set write = route_write_set(&plan->whole, pass, side, plan->narrow);
    int64_t bytes = 0;
    for (int t = 0; t < plan->ranks; t++) {
        const int64_t tokens = plan_share_of(plan, side, (plan->rank + t) % plan->ranks).tokens;
        if (t < plan->ranks - 1) bytes += (int64_t)route_set_bytes(&read, plan->whole.batch, tokens);
        if (t > 0) bytes += (int64_t)route_set_bytes(&write, plan->whole.batch, tokens);
    }
    return bytes;
}

/* By the bytes of all ranks; K at a tie: it needs no folding on the way. */
static burst_side choose_side(const burst_plan *plan, unsigned pass) {
    double bytes[2];
    for (int n = 0; n < 2; n++) {
        const burst_side side = n == 0 ? BURST_SIDE_Q : BURST_SIDE_K;
        const plan_set read = route_read_set(plan, pass, side);
        const plan_set write = route_write_set(&plan->whole, pass, side, plan->narrow);
        const double tokens = (double)(side == BURST_SIDE_Q ? plan->whole.q_tokens : plan->whole.k_tokens);
        bytes[n] = tokens * (double)(route_set_bytes(&read, 1, 1) + route_set_bytes(&write, 1, 1));
    }
    return bytes[0] < bytes[1] ? BURST_SIDE_Q : BURST_SIDE_K;
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

static void shares_of_step(const burst_plan *plan, burst_side side, int visitor, plan_share *q, plan_share *k) {
    *q = side == BURST_SIDE_Q ? plan_share_of(plan, BURST_SIDE_Q, visitor) : plan->q;
    *k = side == BURST_SIDE_K ? plan_share_of(plan, BURST_SIDE_K, visitor) : plan->k;
}

/* Where to part the own block: the first part hides the first visitor's way here, the second the way home of what others
 * added, so they are as the bytes of the two sets. Whole tiles of queries, if there are enough. */
static int64_t parting(const burst_plan *plan, const burst_mask *mask, unsigned pass, burst_side side) {
    const plan_set read = route_read_set(plan, pass, side);
    const plan_set write = route_write_set(&plan->whole, pass, side, plan->narrow);
    const double r = (double)route_set_bytes(&read, 1, 1), w = (double)route_set_bytes(&write, 1, 1);
    const int64_t batch = plan->whole.batch, tokens = plan->q.tokens;
    const double wanted = r / (r + w) * (double)partition_pairs(mask, batch, &plan->q, &plan->k, 0, tokens);
    const int64_t tile = tokens >= 8 * 288 ? 288 : tokens >= 8 * 48 ? 48 : 1;
    int64_t low = 0, high = tokens / tile; /* tiles in the first part: the fewest that have enough pairs */
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if ((double)partition_pairs(mask, batch, &plan->q, &plan->k, 0, middle * tile) < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low * tile < tokens ? low * tile : tokens;
}

static void fill_route(burst_plan *plan, const burst_mask *mask, unsigned pass, plan_step *steps) {
    plan_route *route = &plan->routes[plan_pass_index(pass)];
    const plan_set write = route_write_set(&plan->whole, pass, route->side, plan->narrow);
    route->steps = steps;
    route->count = plan->ranks;
    for (int t = 0; t < plan->ranks; t++) {
        plan_share q, k;
        const int visitor = (plan->rank + t) % plan->ranks;
        shares_of_step(plan, route->side, visitor, &q, &k);
        steps[t] = (plan_step){.visitor = visitor, .last = q.tokens};
    }
    if (write.count > 0 && plan->ranks > 1 && !plan->no_overlap) {
        const int64_t at = parting(plan, mask, pass, route->side);
        steps[plan->ranks] = (plan_step){.visitor = plan->rank, .first = at, .last = plan->q.tokens};
        steps[0].last = at;
        route->count++;
    }
}

/* The rectangles of a step: counted (rects NULL), or filled from `at` on, with its lists. Returns how many. */
static size_t step_rects(const burst_plan *plan, const burst_mask *mask, burst_side side, plan_step *step,
                         lao_rect *rects, lao_list *lists) {
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    size_t count = 0;
    plan_share q, k;
    shares_of_step(plan, side, step->visitor, &q, &k);
    step->pairs = 0;
    for (size_t row = 0; row < rows; row++) {
        const size_t found =
            (size_t)partition_rects(mask->slices + mask->starts[row], mask->starts[row + 1] - mask->starts[row], &q, &k,
                                    step->first, step->last, rects ? rects + count : NULL, &step->pairs);
        if (lists) lists[row] = (lao_list){rects + count, found};
        count += found;
    }
    if (mask->batch == 0) step->pairs *= plan->whole.batch;
    step->rects = (int64_t)count;
    return count;
}

static burst_status make_rects(burst_plan *plan, const burst_mask *mask, lao_round *rounds) {
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    size_t count = 0, bytes = 0, n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int t = 0; t < plan->routes[pass].count; t++)
            if (plan->ranks > 1 || n++ == 0)
                count += step_rects(plan, mask, plan->routes[pass].side, &plan->routes[pass].steps[t], NULL, NULL);
    if (base_multiply(count, sizeof *plan->rects, &bytes)) plan->rects = base_alloc(bytes);
    plan->lists = plan->rects ? base_alloc(plan->local_count * rows * sizeof *plan->lists) : NULL;
    if (!plan->lists) return base_fail(BURST_MEMORY, "no memory for the plan's %zu rectangles", count);
    plan->own_bytes += bytes + plan->local_count * rows * sizeof *plan->lists;
    count = n = 0;
    for (int pass = 0; pass < 2; pass++) {
        plan_route *route = &plan->routes[pass];
        for (int t = 0; t < route->count; t++) {
            plan_step *step = &route->steps[t];
            if (plan->ranks == 1 && n == 1) { /* one rank: both passes have one local attention */
                *step = plan->routes[0].steps[0];
            } else {
                lao_list *lists = plan->lists + n * rows;
                plan_share q, k;
                shares_of_step(plan, route->side, step->visitor, &q, &k);
                step->local = n;
                count += step_rects(plan, mask, route->side, step, plan->rects + count, lists);
                rounds[n] = (lao_round){plan->shape, plan->ranks == 1 ? plan->passes : pass == 0 ? 1u : 2u};
                rounds[n].shape.q_tokens = q.tokens;
                rounds[n].shape.k_tokens = k.tokens;
                rounds[n].shape.lists = lists;
                rounds[n++].shape.list_count = (int64_t)rows;
            }
            route->pairs += step->pairs;
        }
    }
    return BURST_OK;
}

static unsigned pass_flag(int pass) { return pass == 0 ? BURST_PASS_FORWARD : BURST_PASS_BACKWARD; }

/* Both passes take turns in one memory. */
static void measure_ring(burst_plan *plan) {
    const plan_memory none = {.home = NULL};
    plan->memory.wire_bytes = PLAN_WIRE_LEAST;
    for (int pass = 0; pass < 2; pass++) {
        plan_buffers buffers;
        size_t home, wire;
        if (!(plan->passes & pass_flag(pass))) continue;
        route_buffers(plan, pass_flag(pass), &none, &buffers, &home, &wire);
        if (home > plan->memory.home_bytes) plan->memory.home_bytes = home;
        if (wire > plan->memory.wire_bytes) plan->memory.wire_bytes = wire;
    }
}

burst_status route_make(burst_plan *plan, const burst_mask *mask, const burst_side sides[2]) {
    const size_t most = 2 * ((size_t)plan->ranks + 1);
    plan->steps = base_alloc(most * sizeof *plan->steps);
    if (!plan->steps) return base_fail(BURST_MEMORY, "no memory for the rounds of %d ranks", plan->ranks);
    plan->own_bytes += most * sizeof *plan->steps;
    plan_step *at = plan->steps;
    for (int pass = 0; pass < 2; pass++) {
        const unsigned flag = pass_flag(pass);
        plan->routes[pass].side = sides[pass] != BURST_SIDE_AUTO ? sides[pass] : choose_side(plan, flag);
        if (!(plan->passes & flag)) continue;
        fill_route(plan, mask, flag, at);
        at += plan->routes[pass].count;
    }
    if (plan->ranks > 1 && !plan_messages_fit(plan))
        return base_fail(BURST_MEMORY, "the ring's buffers of this problem do not fit the address space");
    if (plan->ranks > 1) measure_ring(plan);
    plan->local_count = plan->ranks == 1 ? 1 : (size_t)(at - plan->steps);
    lao_round *rounds = base_alloc(plan->local_count * sizeof *rounds);
    if (!rounds) return base_fail(BURST_MEMORY, "no memory for the rounds of %d ranks", plan->ranks);
    burst_status status = make_rects(plan, mask, rounds);
    /* The limit is for all of the plan: what it has taken so far is told to the local attention, whose sentence then gives
     * the bytes of all. */
    plan->options.memory_used = plan->own_bytes + plan->memory.home_bytes + plan->memory.wire_bytes;
    if (status == BURST_OK) status = lao_create(rounds, plan->local_count, &plan->options, &plan->local);
    base_free(rounds);
    return status;
}

/* ---- buffers ----------------------------------------------------------------------------------------------------- */

typedef struct ruler {
    char *base;
    size_t used;
} ruler;

static void *take(ruler *r, size_t bytes) {
    void *at = r->base ? r->base + r->used : NULL;
    r->used += (bytes + 63) / 64 * 64;
    return at;
}

void route_buffers(const burst_plan *plan, unsigned pass, const plan_memory *memory, plan_buffers *b,
                   size_t *home_bytes, size_t *wire_bytes) {
    const lao_shape *s = &plan->whole;
    const burst_side side = plan->routes[plan_pass_index(pass)].side;
    const plan_set read = route_read_set(plan, pass, side), write = route_write_set(s, pass, side, plan->narrow);
    const plan_set sums = route_write_set(s, pass, side, false);
    const size_t real = dtype_sum_bytes(s->dtype);
    const size_t rows = (size_t)(s->batch * s->q_heads * plan->q.tokens) * real;
    const size_t keys = (size_t)(s->batch * s->kv_heads * plan->k.tokens) * real;
    ruler home = {memory->home, 0}, wire = {memory->wire, 0};
    int64_t tokens = 0; /* of the largest block */
    for (int r = 0; r < plan->ranks; r++) {
        const int64_t n = plan_share_of(plan, side, r).tokens;
        tokens = n > tokens ? n : tokens;
    }
    memset(b, 0, sizeof *b);
    for (int n = 0; n < (plan->lends ? 1 : 2); n++) b->read[n] = take(&wire, route_set_bytes(&read, s->batch, tokens));
    for (int n = 0; n < 3 && write.count; n++) b->write[n] = take(&wire, route_set_bytes(&write, s->batch, tokens));
    if (plan->narrow && pass == BURST_PASS_BACKWARD) b->sums = take(&home, route_set_bytes(&sums, s->batch, tokens));
    if (pass == BURST_PASS_FORWARD) {
        b->state.acc = take(&home, rows * (size_t)s->value_dim);
        b->state.ms = take(&home, rows * 2);
    } else {
        b->ms = take(&home, rows * 2);
        b->dots = take(&home, rows);
        b->d_q = take(&home, rows * (size_t)s->head_dim);
        b->d_k = take(&home, keys * (size_t)s->head_dim);
        b->d_v = take(&home, keys * (size_t)s->value_dim);
    }
    *home_bytes = home.used;
    *wire_bytes = wire.used;
}
