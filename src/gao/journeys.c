/* journeys.c - knows what travels: forward and backward, with the K side or the Q side on its way; what a step computes with
 * it, how sums are folded, and how the result is written.
 *   journey          stays                              read set                   write set
 *   forward, K side  Q, running (acc, m, sum)           K, V                       -
 *   forward, Q side  K, V                               Q                          acc, (m, sum)
 *   backward, K side Q, dO, (m, 1/sum), D, dQ           K, V                       dK, dV
 *   backward, Q side K, V, dK, dV                       (m, 1/sum), D, Q, dO       dQ
 * With send_o, O travels in the place of D, last.
 * Does not know rounds, buffers or messages. */
#include <string.h>

#include "ring.h"

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
void ring_narrow(ring *r, const plan_step *step, char *sums, char *message) {
    const int64_t tokens = tokens_of(r, step);
    const plan_set wide = route_write_set(&r->plan->whole, r->pass, r->route->side, false);
    for (int n = 0; n < r->write.count; n++) {
        const lao_sums part = {r->write.parts[n].heads, tokens, r->write.parts[n].dim,
                               part_at(r, &wide, n, tokens, sums), NULL};
        const lao_tensor to = part_tensor(r, &r->write, n, tokens, message);
        lao_store(lao_at(r->plan->local, step->local), &part, &to, false);
    }
}

static lao *own_local(const ring *r) { return lao_at(r->plan->local, r->route->steps[0].local); }

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static lao_state state_at(const ring *r, int64_t tokens, char *message) {
    return (lao_state){part_at(r, &r->write, 0, tokens, message), part_at(r, &r->write, 1, tokens, message)};
}

static burst_status forward_compute(ring *r, const plan_step *step, char *visitor, char *sums) {
    const int64_t tokens = tokens_of(r, step);
    lao_forward_args args = *r->forward;
    args.exact = r->flags & CALL_EXACT;
    args.pulse = call_pulse(&r->flight.call);
    args.state = r->b.state;
    args.fresh = r->flight.round == 0;
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
        memcpy(sums, arrived, ring_block_bytes(r, &r->write, step->visitor));
    else
        lao_fold(lao_at(r->plan->local, step->local), &into, &from);
}

burst_status ring_forward(burst_plan *plan, const lao_forward_args *args, unsigned flags) {
    static const journey way = {forward_compute, forward_fold};
    ring r;
    ring_open(&r, plan, BURST_PASS_FORWARD, flags);
    r.way = &way;
    r.forward = args;
    if (r.route->side == BURST_SIDE_K) {
        pack(&r, 0, &args->k);
        pack(&r, 1, &args->v);
    } else {
        pack(&r, 0, &args->q);
    }
    burst_status status = ring_run(&r);
    if (status == BURST_OK) {
        const lao_state others =
            ring_came_home(&r) ? state_at(&r, plan->q.tokens, ring_came_home(&r)) : (lao_state){NULL, NULL};
        lao_finish(own_local(&r), &r.b.state, others.acc ? &others : NULL, args);
    }
    return ring_close(&r, status);
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* The outputs at home; what a visitor gets is put in their place. */
static lao_backward_args backward_home(const ring *r) {
    const lao_shape *s = &r->plan->shape;
    lao_backward_args args = *r->backward;
    args.pulse = r->flight.call.carry ? call_pulse((gao_call *)&r->flight.call) : args.pulse;
    args.stats = r->b.ms;
    args.dots = r->b.dots;
    args.wide = true;
    args.d_q = home_tensor(s->q_heads, s->q_tokens, s->head_dim, r->b.d_q);
    args.d_k = home_tensor(s->kv_heads, s->k_tokens, s->head_dim, r->b.d_k);
    args.d_v = home_tensor(s->kv_heads, s->k_tokens, s->value_dim, r->b.d_v);
    args.accumulate_q = args.accumulate_kv = r->flight.round > 0;
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
        const int q = r->plan->send_o ? 1 : 2;
        args.stats = part_at(r, &r->read, 0, tokens, visitor);
        args.q = part_tensor(r, &r->read, q, tokens, visitor);
        args.d_o = part_tensor(r, &r->read, q + 1, tokens, visitor);
        args.dots = r->plan->send_o ? NULL : part_at(r, &r->read, 1, tokens, visitor);
        if (r->plan->send_o) args.o = part_tensor(r, &r->read, q + 2, tokens, visitor);
        /* with D from o, what o tells of d_sink would be told again */
        if (r->plan->send_o && dtype_bytes(r->plan->whole.dtype) != 2) args.sink_sums = NULL;
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
        char *arrived = part_at(r, &r->write, index, all.tokens, ring_came_home(r));
        if (r->plan->narrow)
            lao_add(own_local(r), true, s->batch * all.heads * all.tokens * dim, sums, arrived);
        else
            all.other = arrived;
    }
    lao_store(own_local(r), &all, out, accumulate);
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
    const int q = r->plan->send_o ? 1 : 2;
    pack(r, 0, &ms);
    if (!r->plan->send_o) pack(r, 1, &dots);
    pack(r, q, &args->q);
    pack(r, q + 1, &args->d_o);
    if (r->plan->send_o) pack(r, q + 2, &args->o);
}

burst_status ring_backward(burst_plan *plan, const lao_backward_args *args, unsigned flags) {
    static const journey way = {backward_compute, backward_fold};
    const lao_shape *s = &plan->shape;
    ring r;
    ring_open(&r, plan, BURST_PASS_BACKWARD, flags);
    r.way = &way;
    r.backward = args;
    backward_prepare(&r);
    burst_status status = ring_run(&r);
    if (status == BURST_OK) {
        write_gradient(&r, r.b.d_q, BURST_SIDE_Q, s->head_dim, 0, &args->d_q, args->accumulate_q);
        write_gradient(&r, r.b.d_k, BURST_SIDE_K, s->head_dim, 0, &args->d_k, args->accumulate_kv);
        write_gradient(&r, r.b.d_v, BURST_SIDE_K, s->value_dim, 1, &args->d_v, args->accumulate_kv);
    }
    status = ring_close(&r, status);
    return status == BURST_OK ? call_sinks(&r.flight.call, flags, args) : status;
}
