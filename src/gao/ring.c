/* ring.c - knows the ring loop: post, compute, fold, wait; GAO of the paper, in four journeys.
 * One idea: in every pass one side travels, and what travels is a read set (needed before computing) and a write set (ready
 * after it, one hop behind, on its own channel). A rank's contribution to its own block never travels, so both sets make
 * ranks - 1 hops; the rest of the own block comes last and hides the write set's way home.
 *   round 0        the own block (its first part), while the first visitor arrives
 *   round t        visitor rank + t, while the next arrives; its write set arrives, is added to, goes on
 *   round ranks    the rest of the own block, while its write set comes home
 * Messages go to rank - 1 and come from rank + 1. Where the carrier lends, visitors are read where they lie.
 * Does not know kernels or masks. Nothing is allocated. */
#include "call.h"

#include <string.h>

typedef struct ring ring;

/* What differs between the journeys. */
typedef struct journey {
    /* Computes a step: with the block `visitor` (NULL: the own one), leaving in `sums` what it adds to that. */
    burst_status (*compute)(ring *r, const plan_step *step, char *visitor, char *sums);
    /* sums = sums (+) arrived, of a visitor; `empty`: nothing is in sums */
    void (*fold)(ring *r, const plan_step *step, char *sums, char *arrived, bool empty);
} journey;

struct ring {
    burst_plan *plan;
    const plan_route *route;
    const journey *way;
    burst_transport *t;
    unsigned pass, flags;
    plan_set read, write;
    plan_buffers b;
    gao_call call;
    const lao_forward_args *forward;
    const lao_backward_args *backward;
    int to, from; /* the ranks next to this one */
    int round;
    double in_flight_since; /* 0: nothing is expected */
    double missed;          /* seconds waited for what was expected */
    /* by round: receives of visitors and of what was added to them, and the sends of both */
    transport_request *read_in, *read_out, *write_in, *write_out;
};

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static int requests(const ring *r) { return 4 * (r->plan->ranks + 1); }

/* Lets everything on its way move on, and keeps the time in which something is expected. */
static burst_status carry(void *user) {
    ring *r = user;
    bool expected = false;
    for (int n = 0; n < requests(r); n++) {
        transport_request *one = &r->read_in[n];
        if (!one->posted || one->done) continue;
        const burst_status status = transport_test(r->t, one);
        if (status != BURST_OK) return transport_fail(r->t, status);
        expected = expected || (one->receiving && !one->done);
    }
    const double now = base_seconds();
    if (!expected && r->in_flight_since > 0) {
        r->plan->report.seconds_transfer += now - r->in_flight_since;
        r->in_flight_since = 0;
    }
    return transport_attend(r->t);
}

static burst_status while_waiting(void *user) {
    ring *r = user;
    if (call_cancelled(r->plan)) return call_say_cancelled();
    return carry(r);
}

static burst_status wait_for(ring *r, transport_request *one) {
    const transport_patience patience = {r->plan->timeout, r->round, while_waiting, r};
    const double since = base_seconds();
    if (!one->posted || one->done) return BURST_OK;
    const burst_status status = transport_wait(r->t, one, &patience);
    const double seconds = base_seconds() - since;
    r->plan->report.seconds_waiting += seconds;
    if (one->receiving) r->missed += seconds;
    return status;
}

static size_t block_bytes(const ring *r, const plan_set *set, int rank) {
    return route_set_bytes(set, r->plan->whole.batch, plan_share_of(r->plan, r->route->side, rank).tokens);
}

static int visitor_of(const ring *r, int round) { return (r->plan->rank + round) % r->plan->ranks; }

static burst_status send(ring *r, int channel, const void *data, const plan_set *set, int round,
                         transport_request *one) {
    const burst_status status =
        transport_send(r->t, r->to, channel, data, block_bytes(r, set, visitor_of(r, round)), one);
    return status == BURST_OK ? BURST_OK : transport_fail(r->t, status);
}

static burst_status expect(ring *r, int channel, void *data, const plan_set *set, int round, transport_request *one) {
    const burst_status status = transport_receive(r->t, r->from, channel, r->plan->lends ? NULL : data,
                                                  block_bytes(r, set, visitor_of(r, round)), one);
    if (status != BURST_OK) return transport_fail(r->t, status);
    if (r->in_flight_since == 0) r->in_flight_since = base_seconds();
    return BURST_OK;
}

/* ---- what is in a message ---------------------------------------------------------------------------------------- */

static int64_t tokens_of(const ring *r, const plan_step *step) {
    return plan_share_of(r->plan, r->route->side, step->visitor).tokens;
}

static char *part_at(const ring *r, const plan_set *set, int index, int64_t tokens, char *message) {
    const plan_set before = {index, {set->parts[0], set->parts[1], set->parts[2], set->parts[3]}};
    return message + route_set_bytes(&before, r->plan->whole.batch, tokens);
}

static lao_tensor tensor_at(const plan_part *part, int64_t tokens, void *data) {
    return (lao_tensor){data, part->heads * tokens * part->dim, part->dim, tokens * part->dim};
}

static lao_tensor part_tensor(const ring *r, const plan_set *set, int index, int64_t tokens, char *message) {
    return tensor_at(&set->parts[index], tokens, part_at(r, set, index, tokens, message));
}

/* The reals of one side at home. */
static lao_tensor home_tensor(int64_t heads, int64_t tokens, int64_t dim, void *data) {
    const plan_part part = {heads, dim, 0};
    return tensor_at(&part, tokens, data);
}

/* The own block's tensor as a part of a message. */
static void pack(const ring *r, int index, const lao_tensor *from) {
    const plan_part *part = &r->read.parts[index];
    const int64_t tokens = tokens_of(r, &r->route->steps[0]), rows = r->plan->whole.batch * part->heads * tokens;
    const size_t bytes = (size_t)part->dim * part->element;
    char *to = part_at(r, &r->read, index, tokens, r->b.read[0]);
#pragma omp parallel for num_threads(r->plan->options.threads) schedule(static)
    for (int64_t n = 0; n < rows; n++) {
        const int64_t b = n / tokens / part->heads, h = n / tokens % part->heads, i = n % tokens;
        memcpy(to + (size_t)n * bytes,
               (const char *)from->data + (b * from->batch + i * from->token + h * from->head) * (int64_t)part->element,
               bytes);
    }
}

/* Gradients as they travel in 16 bits. */
static void narrow(ring *r, const plan_step *step, char *sums, char *message) {
    const int64_t tokens = tokens_of(r, step);
    const plan_set wide = route_write_set(&r->plan->whole, r->pass, r->route->side, false);
    for (int n = 0; n < r->write.count; n++) {
        const lao_sums part = {r->write.parts[n].heads, tokens, r->write.parts[n].dim,
                               part_at(r, &wide, n, tokens, sums), NULL};
        const lao_tensor to = part_tensor(r, &r->write, n, tokens, message);
        lao_store(lao_at(r->plan->local, step->local), &part, &to, false);
    }
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

/* The block that is in this round's hands, as it is sent on. */
static char *block_of(const ring *r, int round) { return round == 0 ? r->b.read[0] : r->read_in[round].data; }

/* Where a visitor's additions are computed; free once what was sent from it three (two) rounds ago has left. */
static int buffers_in_turn(const ring *r) { return r->plan->lends ? 3 : 2; }

static char *message_of(const ring *r, int round) { return r->b.write[round % buffers_in_turn(r)]; }

/* Narrow gradients are summed up aside, and only travel narrow. */
static char *sums_of(const ring *r, int round) { return r->b.sums ? r->b.sums : message_of(r, round); }

/* The next visitor is expected, and this one (or the own block) is sent on. */
static burst_status exchange_reads(ring *r, int round) {
    burst_status status = BURST_OK;
    if (round >= r->plan->ranks - 1) return BURST_OK;
    if (round > 0 && !r->plan->lends) status = wait_for(r, &r->read_out[round - 1]); /* the buffer to receive into */
    if (status == BURST_OK)
        status = expect(r, TRANSPORT_READ, r->b.read[(round + 1) % 2], &r->read, round + 1, &r->read_in[round + 1]);
    if (status == BURST_OK) status = send(r, TRANSPORT_READ, block_of(r, round), &r->read, round, &r->read_out[round]);
    return status;
}

/* What others have added to this round's visitor (or, behind the last, to the own block) is expected. */
static burst_status expect_writes(ring *r, int round) {
    if (!r->write.count || round < 2 || r->write_in[round].posted || r->write_in[round].done) return BURST_OK;
    return expect(r, TRANSPORT_WRITE, r->b.write[2], &r->write, round, &r->write_in[round]);
}

/* Without overlap: nothing is computed while anything is on its way. */
static burst_status wait_for_all(ring *r) {
    burst_status status = BURST_OK;
    for (int n = 0; n < requests(r) && status == BURST_OK; n++)
        if (!r->plan->lends || r->read_in[n].receiving) status = wait_for(r, &r->read_in[n]);
    return status;
}

static burst_status compute(ring *r, const plan_step *step, char *visitor, char *sums) {
    const double since = base_seconds(), all = (double)r->route->pairs;
    r->call.step = all > 0 ? (double)step->pairs / all : 0;
    const burst_status status = call_status(&r->call, r->way->compute(r, step, visitor, sums));
    r->call.before += r->call.step;
    r->plan->report.seconds_computing += base_seconds() - since;
    if (r->call.status != BURST_OK) return transport_check(r->t);        /* its sentence again */
    return status == BURST_OK ? BURST_OK : transport_fail(r->t, status); /* cancelled here: tell all */
}

/* What this rank found for a visitor joins what others found before, and goes on. */
static burst_status pass_on(ring *r, int round, const plan_step *step, char *sums) {
    burst_status status = wait_for(r, &r->write_in[round]);
    if (status != BURST_OK) return status;
    if (round >= 2) {
        r->way->fold(r, step, sums, r->write_in[round].data, step->pairs == 0);
        transport_give_back(r->t, &r->write_in[round]);
    }
    if (r->b.sums) narrow(r, step, sums, message_of(r, round));
    return send(r, TRANSPORT_WRITE, message_of(r, round), &r->write, round, &r->write_out[round]);
}

static burst_status visit(ring *r, int round) {
    const plan_step *step = &r->route->steps[round];
    const int turns = buffers_in_turn(r);
    char *sums = r->write.count ? sums_of(r, round) : NULL;
    burst_status status = r->write.count && round > turns ? wait_for(r, &r->write_out[round - turns]) : BURST_OK;
    /* Of the first host at least an empty sum goes on. */
    if (status == BURST_OK && (step->pairs > 0 || (round == 1 && sums)))
        status = compute(r, step, block_of(r, round), sums);
    if (status == BURST_OK && sums) status = pass_on(r, round, step, sums);
    return status;
}

static burst_status run(ring *r) {
    burst_status status = BURST_OK;
    for (r->round = 0; r->round < r->route->count && status == BURST_OK; r->round++) {
        const int t = r->round;
        const plan_step *step = &r->route->steps[t];
        status = exchange_reads(r, t);
        if (status == BURST_OK) status = expect_writes(r, t);
        if (status == BURST_OK && r->plan->no_overlap) status = wait_for_all(r);
        if (status != BURST_OK) break;
        if (t > 0 && t < r->plan->ranks)
            status = visit(r, t);
        else if (t == 0 || step->pairs > 0)
            status = compute(r, step, NULL, NULL);
        if (status == BURST_OK && t < r->plan->ranks - 1) status = wait_for(r, &r->read_in[t + 1]);
    }
    if (status == BURST_OK) status = expect_writes(r, r->plan->ranks);
    return status == BURST_OK ? wait_for(r, &r->write_in[r->plan->ranks]) : status;
}

/* Everything sent has left, everything borrowed is given back: from the last hop backwards, each waits for the next. */
static burst_status settle(ring *r) {
    burst_status status = BURST_OK;
    for (int t = r->plan->ranks; t >= 0 && status == BURST_OK; t--) {
        status = wait_for(r, &r->write_out[t]);
        if (status == BURST_OK) status = wait_for(r, &r->read_out[t]);
        if (status == BURST_OK) transport_give_back(r->t, &r->read_in[t]);
    }
    return status;
}

/* Time in which something was expected, and how much of it was spent computing. */
static void account(ring *r) {
    burst_report *report = &r->plan->report;
    if (r->in_flight_since > 0) report->seconds_transfer += base_seconds() - r->in_flight_since;
    report->hidden = report->seconds_transfer > 0 ? 1 - r->missed / report->seconds_transfer : 1;
    if (report->hidden < 0) report->hidden = 0;
}

/* The call is over, well or not. Sends first: what was borrowed and sent on may only go back when its next reader has
 * given it back. What cannot be taken back stays with the transport. */
static void abandon(ring *r) {
    transport_request *const sends[2] = {r->read_out, r->write_out}, *const receives[2] = {r->read_in, r->write_in};
    for (int n = 0; n < 2; n++)
        for (int t = 0; t <= r->plan->ranks; t++)
            if (!transport_cancel(r->t, &sends[n][t])) r->plan->stuck = true;
    for (int n = 0; n < 2 && !(r->plan->stuck && r->plan->lends); n++)
        for (int t = 0; t <= r->plan->ranks; t++)
            if (!transport_cancel(r->t, &receives[n][t])) r->plan->stuck = true;
}

static transport_request *requests_of(const burst_plan *plan, int kind) {
    return plan->requests + (size_t)kind * ((size_t)plan->ranks + 1);
}

static void open_ring(ring *r, burst_plan *plan, unsigned pass, unsigned flags) {
    size_t home, wire;
    *r = (ring){.plan = plan,
                .route = &plan->routes[plan_pass_index(pass)],
                .t = plan->transport,
                .pass = pass,
                .flags = flags,
                .call = call_begin(plan),
                .to = (plan->rank + plan->ranks - 1) % plan->ranks,
                .from = (plan->rank + 1) % plan->ranks,
                .read_in = requests_of(plan, 0),
                .read_out = requests_of(plan, 1),
                .write_in = requests_of(plan, 2),
                .write_out = requests_of(plan, 3)};
    r->read = route_read_set(&plan->whole, pass, r->route->side);
    r->write = route_write_set(&plan->whole, pass, r->route->side, plan->narrow);
    r->call.carry = carry;
    r->call.user = r;
    route_buffers(plan, pass, &plan->memory, &r->b, &home, &wire);
    for (int n = 0; n < requests(r); n++) r->read_in[n] = (transport_request){.posted = false};
}

/* What others have added to the own block, once it is home. */
static char *came_home(const ring *r) { return r->write.count ? r->write_in[r->plan->ranks].data : NULL; }

static lao *own_local(const ring *r) { return lao_at(r->plan->local, r->route->steps[0].local); }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static lao_state state_at(const ring *r, int64_t tokens, char *message) {
    return (lao_state){part_at(r, &r->write, 0, tokens, message), part_at(r, &r->write, 1, tokens, message)};
}

static burst_status forward_compute(ring *r, const plan_step *step, char *visitor, char *sums) {
    const int64_t tokens = tokens_of(r, step);
    lao_forward_args args = *r->forward;
    args.exact = r->flags & CALL_EXACT;
    args.pulse = call_pulse(&r->call);
    args.state = r->b.state;
    args.fresh = r->round == 0;
    if (visitor && r->route->side == BURST_SIDE_K) {
        args.k = part_tensor(r, &r->read, 0, tokens, visitor);
        args.v = part_tensor(r, &r->read, 1, tokens, visitor);
    } else if (visitor) {
        args.q = part_tensor(r, &r->read, 0, tokens, visitor);
        args.state = state_at(r, tokens, sums);
        args.fresh = true;
    }
    return lao_forward(lao_at(r->plan->local, step->local), &args);
}

static void forward_fold(ring *r, const plan_step *step, char *sums, char *arrived, bool empty) {
    const int64_t tokens = tokens_of(r, step);
    const lao_state into = state_at(r, tokens, sums), from = state_at(r, tokens, arrived);
    if (empty)
        memcpy(sums, arrived, block_bytes(r, &r->write, step->visitor));
    else
        lao_fold(lao_at(r->plan->local, step->local), &into, &from);
}

burst_status ring_forward(burst_plan *plan, const lao_forward_args *args, unsigned flags) {
    static const journey way = {forward_compute, forward_fold};
    ring r;
    open_ring(&r, plan, BURST_PASS_FORWARD, flags);
    r.way = &way;
    r.forward = args;
    if (r.route->side == BURST_SIDE_K) {
        pack(&r, 0, &args->k);
        pack(&r, 1, &args->v);
    } else {
        pack(&r, 0, &args->q);
    }
    burst_status status = run(&r);
    account(&r);
    if (status == BURST_OK) {
        const lao_state others = came_home(&r) ? state_at(&r, plan->q.tokens, came_home(&r)) : (lao_state){NULL, NULL};
        lao_finish(own_local(&r), &r.b.state, others.acc ? &others : NULL, args);
        transport_give_back(r.t, &r.write_in[plan->ranks]);
        status = settle(&r);
    }
    abandon(&r);
    return status;
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The outputs at home; what a visitor gets is put in their place. */
static lao_backward_args backward_home(const ring *r) {
    const lao_shape *s = &r->plan->shape;
    lao_backward_args args = *r->backward;
    args.pulse = r->call.carry ? call_pulse((gao_call *)&r->call) : args.pulse;
    args.stats = r->b.ms;
    args.dots = r->b.dots;
    args.wide = true;
    args.d_q = home_tensor(s->q_heads, s->q_tokens, s->head_dim, r->b.d_q);
    args.d_k = home_tensor(s->kv_heads, s->k_tokens, s->head_dim, r->b.d_k);
    args.d_v = home_tensor(s->kv_heads, s->k_tokens, s->value_dim, r->b.d_v);
    args.accumulate_q = args.accumulate_kv = r->round > 0;
    args.d_sink = NULL;
    args.sink_sums = r->flags & CALL_SINK ? r->plan->sinks : NULL;
    return args;
}

static burst_status backward_compute(ring *r, const plan_step *step, char *visitor, char *sums) {
    const int64_t tokens = tokens_of(r, step);
    const plan_set wide = route_write_set(&r->plan->whole, r->pass, r->route->side, false);
    lao_backward_args args = backward_home(r);
    if (visitor && r->route->side == BURST_SIDE_K) {
        args.k = part_tensor(r, &r->read, 0, tokens, visitor);
        args.v = part_tensor(r, &r->read, 1, tokens, visitor);
        args.d_k = part_tensor(r, &wide, 0, tokens, sums);
        args.d_v = part_tensor(r, &wide, 1, tokens, sums);
        args.accumulate_kv = false;
    } else if (visitor) {
        args.stats = part_at(r, &r->read, 0, tokens, visitor);
        args.dots = part_at(r, &r->read, 1, tokens, visitor);
        args.q = part_tensor(r, &r->read, 2, tokens, visitor);
        args.d_o = part_tensor(r, &r->read, 3, tokens, visitor);
        args.d_q = part_tensor(r, &wide, 0, tokens, sums);
        args.accumulate_q = false;
    }
    return lao_backward(lao_at(r->plan->local, step->local), &args);
}

static void backward_fold(ring *r, const plan_step *step, char *sums, char *arrived, bool empty) {
    const int64_t tokens = tokens_of(r, step);
    const plan_set wide = route_write_set(&r->plan->whole, r->pass, r->route->side, false);
    if (empty) memset(sums, 0, route_set_bytes(&wide, r->plan->whole.batch, tokens));
    for (int n = 0; n < r->write.count; n++) {
        const int64_t count = r->plan->whole.batch * wide.parts[n].heads * tokens * wide.parts[n].dim;
        lao_add(lao_at(r->plan->local, step->local), r->plan->narrow, count, part_at(r, &wide, n, tokens, sums),
                part_at(r, &r->write, n, tokens, arrived));
    }
}

/* One gradient of this rank's tokens: what was found at home and, as part `index` of what came home, elsewhere. */
static void write_gradient(ring *r, void *sums, burst_side side, int64_t dim, int index, const lao_tensor *out,
                           bool accumulate) {
    const lao_shape *s = &r->plan->shape;
    const bool q = side == BURST_SIDE_Q;
    lao_sums all = {q ? s->q_heads : s->kv_heads, q ? s->q_tokens : s->k_tokens, dim, sums, NULL};
    if (!out->data) return;
    if (side == r->route->side) {
        char *arrived = part_at(r, &r->write, index, all.tokens, came_home(r));
        if (r->plan->narrow)
            lao_add(own_local(r), true, s->batch * all.heads * all.tokens * dim, sums, arrived);
        else
            all.other = arrived;
    }
    lao_store(own_local(r), &all, out, accumulate);
}

/* d_sink of all ranks, summed in their order: the same bits everywhere. */
static burst_status sum_sinks(ring *r) {
    enum { AT_ONCE = TRANSPORT_RECORD_MAX / sizeof(double) };
    const transport_patience patience = {r->plan->timeout, -1, while_waiting, r};
    double *sinks = r->plan->sinks;
    if (!(r->flags & CALL_SINK)) return BURST_OK;
    for (int64_t h = 0; h < r->plan->whole.q_heads; h += AT_ONCE) {
        const int64_t left = r->plan->whole.q_heads - h, count = left < AT_ONCE ? left : AT_ONCE;
        const size_t bytes = (size_t)count * sizeof(double);
        const burst_status status = transport_agree(r->t, sinks + h, bytes, &patience);
        if (status != BURST_OK) return status;
        for (int64_t n = 0; n < count; n++) {
            sinks[h + n] = 0;
            for (int rank = 0; rank < r->plan->ranks; rank++)
                sinks[h + n] += ((const double *)transport_record(r->t, rank, bytes))[n];
        }
    }
    return BURST_OK;
}

static void write_sinks(const ring *r) {
    const lao_backward_args *args = r->backward;
    for (int64_t h = 0; h < r->plan->whole.q_heads && args->d_sink; h++) {
        if (r->plan->whole.dtype == BURST_F64) {
            double *out = (double *)args->d_sink + h;
            *out = r->plan->sinks[h] + (args->accumulate_q ? *out : 0);
        } else {
            float *out = (float *)args->d_sink + h;
            *out = (float)(r->plan->sinks[h] + (args->accumulate_q ? (double)*out : 0));
        }
    }
}

/* Statistics and D of the own rows; the own block as it will travel. */
static void backward_prepare(ring *r) {
    const lao_shape *s = &r->plan->shape;
    const lao_backward_args *args = r->backward;
    double *sinks = r->flags & CALL_SINK ? r->plan->sinks : NULL;
    if (sinks) memset(sinks, 0, (size_t)s->q_heads * sizeof *sinks);
    lao_dots(own_local(r), args, r->b.ms, r->b.dots, sinks);
    if (r->route->side == BURST_SIDE_K) {
        pack(r, 0, &args->k);
        pack(r, 1, &args->v);
        return;
    }
    const lao_tensor ms = home_tensor(s->q_heads, s->q_tokens, 2, r->b.ms);
    const lao_tensor dots = home_tensor(s->q_heads, s->q_tokens, 1, r->b.dots);
    pack(r, 0, &ms);
    pack(r, 1, &dots);
    pack(r, 2, &args->q);
    pack(r, 3, &args->d_o);
}

burst_status ring_backward(burst_plan *plan, const lao_backward_args *args, unsigned flags) {
    static const journey way = {backward_compute, backward_fold};
    const lao_shape *s = &plan->shape;
    ring r;
    open_ring(&r, plan, BURST_PASS_BACKWARD, flags);
    r.way = &way;
    r.backward = args;
    backward_prepare(&r);
    burst_status status = run(&r);
    account(&r);
    if (status == BURST_OK) {
        write_gradient(&r, r.b.d_q, BURST_SIDE_Q, s->head_dim, 0, &args->d_q, args->accumulate_q);
        write_gradient(&r, r.b.d_k, BURST_SIDE_K, s->head_dim, 0, &args->d_k, args->accumulate_kv);
        write_gradient(&r, r.b.d_v, BURST_SIDE_K, s->value_dim, 1, &args->d_v, args->accumulate_kv);
        transport_give_back(r.t, &r.write_in[plan->ranks]);
        status = settle(&r);
    }
    if (status == BURST_OK) status = sum_sinks(&r);
    if (status == BURST_OK) write_sinks(&r);
    abandon(&r);
    return status;
}
