/* exchange.c - knows how all ranks meet at once: gather (all-gather of K and V, d_k and d_v sent home) and ulysses (tokens for
 * heads, and back).
 * One idea: a stage is some heads. What it reads comes from every rank straight, what it finds goes straight home; while a
 * stage is computed the next one's messages arrive, and the last one's results leave.
 *   stage c: put what came where it belongs; send and expect stage c + 1; compute; take home what stage c - 1 found; send this
 * A rank's message to itself is made as all others and never sent. Sums are made in the order of ranks: the same bits always.
 * Does not know masks, partitions or kernels. Nothing is allocated. */
#include <string.h>

#include "flight.h"

typedef struct exchange {
    flight flight;
    burst_plan *plan;
    unsigned flags;
    stage_set read, write;
    stage_buffers b;
    const lao_forward_args *forward;
    const lao_backward_args *backward;
    /* by rank */
    transport_request *read_in, *read_out[2], *write_in, *write_out;
} exchange;

static bool by_heads(const exchange *x) { return x->plan->strategy == BURST_STRATEGY_ULYSSES; }

static size_t real_bytes(const exchange *x) { return dtype_sum_bytes(x->plan->whole.dtype); }

/* ---- where things lie -------------------------------------------------------------------------------------------- */

static size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

/* A rank's message among those of a stage: of this rank's tokens for its heads (mine), or of its tokens for this rank's. */
static char *message_at(const exchange *x, const stage_set *set, void *base, int rank, int stage, bool mine) {
    const burst_plan *plan = x->plan;
    size_t before = 0;
    if (!base) return NULL; /* nothing is received where messages are borrowed */
    for (int r = 0; r < rank; r++)
        before += aligned(stage_message_bytes(plan, set, mine ? plan->rank : r, mine ? r : plan->rank, stage));
    return (char *)base + before;
}

/* One message serves all where all compute the same heads. */
static char *sent_at(const exchange *x, int rank, int stage) {
    return by_heads(x) ? message_at(x, &x->read, x->b.send[stage % 2], rank, stage, true) : x->b.send[stage % 2];
}

/* A part of a message, or of all tokens. */
typedef struct room {
    char *data;
    int64_t heads, tokens;
    size_t row; /* bytes */
} room;

static room room_of(const exchange *x, const stage_set *set, int index, void *base, const stage_heads *heads,
                    int64_t q_tokens, int64_t k_tokens) {
    const stage_part *part = &set->parts[index];
    const bool q = part->side == BURST_SIDE_Q;
    return (room){(char *)base + stage_bytes(x->plan, set, index, heads, q_tokens, k_tokens),
                  q ? heads->q_count : heads->k_count, q ? q_tokens : k_tokens, (size_t)part->dim * part->element};
}

static room room_of_rank(const exchange *x, const stage_set *set, int index, void *message, const stage_heads *heads,
                         int token_rank) {
    return room_of(x, set, index, message, heads, plan_share_of(x->plan, BURST_SIDE_Q, token_rank).tokens,
                   plan_share_of(x->plan, BURST_SIDE_K, token_rank).tokens);
}

static lao_tensor whole_tensor(const exchange *x, const stage_set *set, int index, void *base,
                               const stage_heads *heads) {
    const room r = room_of(x, set, index, base, heads, x->plan->whole.q_tokens, x->plan->whole.k_tokens);
    const int64_t dim = set->parts[index].dim;
    return (lao_tensor){r.data, r.heads * r.tokens * dim, dim, r.tokens * dim};
}

/* Packed rows of all heads, as a tensor. */
static lao_tensor packed_tensor(int64_t heads, int64_t tokens, int64_t dim, const void *data) {
    return (lao_tensor){(void *)(uintptr_t)data, heads * tokens * dim, dim, tokens * dim};
}

static lao_tensor from_head(lao_tensor t, int64_t head, size_t element) {
    if (t.data) t.data = (char *)t.data + head * t.head * (int64_t)element;
    return t;
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

/* Between packed rows, of heads from `first` on, and a tensor of this rank's tokens. */
static void copy_rows(const exchange *x, const room *packed, const lao_tensor *t, int64_t first, size_t element,
                      bool out) {
    const int64_t rows = x->plan->whole.batch * packed->heads * packed->tokens;
#pragma omp parallel for num_threads(x->plan->options.threads) schedule(static)
    for (int64_t n = 0; n < rows; n++) {
        const int64_t b = n / packed->tokens / packed->heads, h = n / packed->tokens % packed->heads + first;
        const int64_t i = n % packed->tokens;
        char *at = packed->data + (size_t)n * packed->row;
        char *other = (char *)t->data + (b * t->batch + i * t->token + h * t->head) * (int64_t)element;
        memcpy(out ? other : at, out ? at : other, packed->row);
    }
}

/* Between a rank's tokens in a message and their places among all tokens. */
static void copy_places(const exchange *x, const room *message, const room *whole, burst_side side, int rank, bool in) {
    const plan_share places = stage_places(x->plan, side, rank);
    const int64_t lists = x->plan->whole.batch * message->heads;
#pragma omp parallel for num_threads(x->plan->options.threads) schedule(static)
    for (int64_t n = 0; n < lists; n++) {
        char *at = message->data + (size_t)(n * message->tokens) * message->row;
        for (int span = 0; span < places.count; span++) {
            const burst_span *s = &places.spans[span];
            const int64_t run = s->stride == 1 ? s->count : 1;
            for (int64_t i = 0; i < s->count; i += run, at += (size_t)run * message->row) {
                char *other = whole->data + (size_t)(n * whole->tokens + s->begin + i * s->stride) * whole->row;
                memcpy(in ? other : at, in ? at : other, (size_t)run * message->row);
            }
        }
    }
}

static void copy_message(const exchange *x, const stage_set *set, void *message, void *whole, int rank, int stage,
                         bool in) {
    const stage_heads heads = stage_heads_of(x->plan, x->plan->rank, stage);
    for (int n = 0; n < set->count; n++) {
        const room packed = room_of_rank(x, set, n, message, &heads, rank);
        const room all = room_of(x, set, n, whole, &heads, x->plan->whole.q_tokens, x->plan->whole.k_tokens);
        copy_places(x, &packed, &all, set->parts[n].side, rank, in);
    }
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* This rank's tensors in the order of the read set, all heads. */
static lao_tensor source_of(const exchange *x, int index) {
    const lao_shape *s = &x->plan->shape;
    const int keys = x->read.count - 2;
    if (index >= keys) {
        const lao_tensor *k = x->forward ? &x->forward->k : &x->backward->k;
        const lao_tensor *v = x->forward ? &x->forward->v : &x->backward->v;
        return index == keys ? *k : *v;
    }
    if (x->forward) return x->forward->q;
    if (index < 2) return packed_tensor(s->q_heads, s->q_tokens, index == 0 ? 2 : 1, index == 0 ? x->b.ms : x->b.dots);
    return index == 2 ? x->backward->q : x->backward->d_o;
}

static void pack_reads(const exchange *x, int stage) {
    for (int rank = 0; rank < (by_heads(x) ? x->plan->ranks : 1); rank++) {
        const stage_heads heads = stage_heads_of(x->plan, rank, stage);
        for (int n = 0; n < x->read.count; n++) {
            const stage_part *part = &x->read.parts[n];
            const room packed = room_of_rank(x, &x->read, n, sent_at(x, rank, stage), &heads, x->plan->rank);
            const lao_tensor from = source_of(x, n);
            copy_rows(x, &packed, &from, part->side == BURST_SIDE_Q ? heads.q_first : heads.k_first, part->element,
                      false);
        }
    }
}

/* The t-th to be talked to: never all the same one first. */
static int peer_of(const exchange *x, int t) { return (x->plan->rank + t) % x->plan->ranks; }

static burst_status wait_for_all(exchange *x, transport_request *requests) {
    burst_status status = BURST_OK;
    for (int t = 1; t < x->plan->ranks && status == BURST_OK; t++)
        status = flight_wait(&x->flight, &requests[peer_of(x, t)]);
    return status;
}

static burst_status post_reads(exchange *x, int stage) {
    const int me = x->plan->rank;
    if (stage >= stage_count(x->plan)) return BURST_OK;
    burst_status status = wait_for_all(x, x->read_out[stage % 2]); /* what was sent from there two stages ago */
    if (status != BURST_OK) return status;
    pack_reads(x, stage);
    for (int t = 1; t < x->plan->ranks && status == BURST_OK; t++) {
        const int from = peer_of(x, x->plan->ranks - t);
        status =
            flight_expect(&x->flight, from, TRANSPORT_READ, message_at(x, &x->read, x->b.receive, from, stage, false),
                          stage_message_bytes(x->plan, &x->read, from, me, stage), &x->read_in[from]);
    }
    for (int t = 1; t < x->plan->ranks && status == BURST_OK; t++) {
        const int to = peer_of(x, t);
        status = flight_send(&x->flight, to, TRANSPORT_READ, sent_at(x, to, stage),
                             stage_message_bytes(x->plan, &x->read, me, to, stage), &x->read_out[stage % 2][to]);
    }
    return status;
}

/* What came, and the own tokens, each to its place. */
static void place_reads(exchange *x, int stage) {
    for (int rank = 0; rank < x->plan->ranks; rank++) {
        void *message = rank == x->plan->rank ? sent_at(x, rank, stage) : x->read_in[rank].data;
        copy_message(x, &x->read, message, x->b.whole, rank, stage, true);
        if (rank != x->plan->rank) transport_give_back(x->plan->transport, &x->read_in[rank]);
    }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static burst_status post_writes(exchange *x, int stage) {
    burst_status status = BURST_OK;
    for (int rank = 0; rank < x->plan->ranks; rank++)
        copy_message(x, &x->write, message_at(x, &x->write, x->b.back, rank, stage, false), x->b.found, rank, stage,
                     false);
    for (int t = 1; t < x->plan->ranks && status == BURST_OK; t++) {
        const int from = peer_of(x, x->plan->ranks - t);
        status =
            flight_expect(&x->flight, from, TRANSPORT_WRITE, message_at(x, &x->write, x->b.home, from, stage, true),
                          stage_message_bytes(x->plan, &x->write, x->plan->rank, from, stage), &x->write_in[from]);
    }
    for (int t = 1; t < x->plan->ranks && status == BURST_OK; t++) {
        const int to = peer_of(x, t);
        status = flight_send(&x->flight, to, TRANSPORT_WRITE, message_at(x, &x->write, x->b.back, to, stage, false),
                             stage_message_bytes(x->plan, &x->write, to, x->plan->rank, stage), &x->write_out[to]);
    }
    return status;
}

static char *came_home(const exchange *x, int rank, int stage) {
    return rank == x->plan->rank ? message_at(x, &x->write, x->b.back, rank, stage, false) : x->write_in[rank].data;
}

/* Forward of ulysses: rows of some heads, as they are. */
static void take_rows(const exchange *x, int stage, int rank) {
    const lao_forward_args *args = x->forward;
    const lao_shape *s = &x->plan->shape;
    const stage_heads heads = stage_heads_of(x->plan, rank, stage);
    int n = 0;
    const bool stats = x->flags & CALL_EXACT, lse = x->flags & CALL_LSE;
    const lao_tensor to[3] = {packed_tensor(s->q_heads, s->q_tokens, 2, args->stats),
                              packed_tensor(s->q_heads, s->q_tokens, 1, args->lse), args->o};
    const bool there[3] = {stats, lse, true};
    for (int which = 0; which < 3; which++) {
        if (!there[which]) continue;
        const room packed = room_of_rank(x, &x->write, n, came_home(x, rank, stage), &heads, x->plan->rank);
        if (to[which].data) copy_rows(x, &packed, &to[which], heads.q_first, x->write.parts[n].element, true);
        n++;
    }
}

static bool same_keys(const exchange *x, int a, int b, int stage) {
    return stage_heads_of(x->plan, a, stage).k_first == stage_heads_of(x->plan, b, stage).k_first;
}

/* A gradient of some heads of the own tokens: as it is, or rounded, or added to what is there. */
static void store(const exchange *x, const room *found, int64_t dim, size_t element, int64_t first, lao_tensor out,
                  bool accumulate) {
    const size_t e = dtype_bytes(x->plan->whole.dtype);
    if (!out.data) return;
    if (element != real_bytes(x)) {
        copy_rows(x, found, &out, first, element, true);
        return;
    }
    const lao_sums sums = {found->heads, found->tokens, dim, found->data, NULL};
    const lao_tensor part = from_head(out, first, e);
    lao_store(lao_at(x->plan->local, 0), &sums, &part, accumulate);
}

/* d_k or d_v: the parts of ranks that have the same keys stand side by side, and are added in their order. */
static void take_keys(const exchange *x, int stage, int index) {
    const lao_backward_args *args = x->backward;
    const stage_part *part = &x->write.parts[index];
    const lao_tensor out = index == 0 ? args->d_k : args->d_v;
    for (int rank = 0; rank < x->plan->ranks; rank++) {
        const stage_heads heads = stage_heads_of(x->plan, rank, stage);
        const bool first = rank == 0 || !same_keys(x, rank - 1, rank, stage);
        const bool last = rank == x->plan->ranks - 1 || !same_keys(x, rank, rank + 1, stage);
        room found = room_of_rank(x, &x->write, index, came_home(x, rank, stage), &heads, x->plan->rank);
        const int64_t count = x->plan->whole.batch * found.heads * found.tokens * part->dim;
        if (!(first && last)) {
            if (first)
                memcpy(x->b.sums, found.data, (size_t)count * part->element);
            else
                lao_add(lao_at(x->plan->local, 0), false, count, x->b.sums, found.data);
            found.data = x->b.sums;
        }
        if (last) store(x, &found, part->dim, part->element, heads.k_first, out, args->accumulate_kv);
    }
}

static void take_queries(const exchange *x, int stage, int rank) {
    const stage_heads heads = stage_heads_of(x->plan, rank, stage);
    const stage_part *part = &x->write.parts[2];
    const room found = room_of_rank(x, &x->write, 2, came_home(x, rank, stage), &heads, x->plan->rank);
    store(x, &found, part->dim, part->element, heads.q_first, x->backward->d_q, x->backward->accumulate_q);
}

/* What all ranks found for the own tokens in a stage. */
static burst_status take_home(exchange *x, int stage) {
    if (!x->write.count || stage < 0) return BURST_OK;
    burst_status status = wait_for_all(x, x->write_in);
    if (status != BURST_OK) return status;
    for (int rank = 0; rank < x->plan->ranks && by_heads(x); rank++)
        (x->forward ? take_rows : take_queries)(x, stage, rank);
    for (int n = 0; n < 2 && x->backward; n++) take_keys(x, stage, n);
    for (int rank = 0; rank < x->plan->ranks; rank++) transport_give_back(x->plan->transport, &x->write_in[rank]);
    return wait_for_all(x, x->write_out);
}

/* ---- computing --------------------------------------------------------------------------------------------------- */

static const void *sink_from(const exchange *x, const void *sink, int64_t head) {
    return sink ? (const char *)sink + (size_t)head * real_bytes(x) : NULL;
}

static burst_status compute_forward(exchange *x, int stage) {
    const stage_heads heads = stage_heads_of(x->plan, x->plan->rank, stage);
    const size_t e = dtype_bytes(x->plan->whole.dtype);
    const bool stats = x->flags & CALL_EXACT, lse = x->flags & CALL_LSE;
    lao_forward_args args = *x->forward;
    int n = 0;
    args.exact = stats;
    args.pulse = call_pulse(&x->flight.call);
    args.sink = sink_from(x, args.sink, heads.q_first);
    args.k = whole_tensor(x, &x->read, x->read.count - 2, x->b.whole, &heads);
    args.v = whole_tensor(x, &x->read, x->read.count - 1, x->b.whole, &heads);
    if (by_heads(x)) {
        args.q = whole_tensor(x, &x->read, 0, x->b.whole, &heads);
        args.stats = stats ? whole_tensor(x, &x->write, n++, x->b.found, &heads).data : NULL;
        args.lse = lse ? whole_tensor(x, &x->write, n++, x->b.found, &heads).data : NULL;
        args.o = whole_tensor(x, &x->write, n, x->b.found, &heads);
        return lao_forward(lao_at(x->plan->local, (size_t)stage), &args);
    }
    const lao_shape *s = &x->plan->shape;
    args.q = from_head(args.q, heads.q_first, e);
    args.o = from_head(args.o, heads.q_first, e);
    args.stats = x->forward->stats ? x->b.ms : NULL;
    args.lse = x->forward->lse ? x->b.lse : NULL;
    const burst_status status = lao_forward(lao_at(x->plan->local, (size_t)stage), &args);
    for (int dim = 1; dim <= 2 && status == BURST_OK; dim++) {
        const lao_tensor out =
            packed_tensor(s->q_heads, s->q_tokens, dim, dim == 1 ? x->forward->lse : x->forward->stats);
        const room rows = {dim == 1 ? x->b.lse : x->b.ms, heads.q_count, s->q_tokens, (size_t)dim * real_bytes(x)};
        if (out.data) copy_rows(x, &rows, &out, heads.q_first, real_bytes(x), true);
    }
    return status;
}

/* The rows of the stage's heads are at home: their statistics as a stage wants them, and D. */
static void prepare_rows(const exchange *x, int stage, const stage_heads *heads) {
    const lao_shape *s = &x->plan->shape;
    const size_t e = dtype_bytes(s->dtype);
    lao_backward_args args = *x->backward;
    args.o = from_head(args.o, heads->q_first, e);
    args.d_o = from_head(args.d_o, heads->q_first, e);
    args.q = from_head(args.q, heads->q_first, e);
    args.sink = sink_from(x, args.sink, heads->q_first);
    /* statistics or lse of these heads, as lao_dots reads them: one batch row behind the other */
    const int64_t dim = args.stats ? 2 : 1;
    const lao_tensor given = packed_tensor(s->q_heads, s->q_tokens, dim, args.stats ? args.stats : args.lse);
    const room rows = {args.stats ? x->b.ms : x->b.dots, heads->q_count, s->q_tokens, (size_t)dim * real_bytes(x)};
    copy_rows(x, &rows, &given, heads->q_first, real_bytes(x), false);
    if (args.stats)
        args.stats = rows.data;
    else
        args.lse = rows.data;
    lao_dots(lao_at(x->plan->local, (size_t)stage), &args, x->b.ms, x->b.dots,
             x->flags & CALL_SINK ? x->plan->sinks + heads->q_first : NULL);
}

static burst_status compute_backward(exchange *x, int stage) {
    const lao_shape *s = &x->plan->shape;
    const stage_heads heads = stage_heads_of(x->plan, x->plan->rank, stage);
    const size_t e = dtype_bytes(s->dtype);
    const int first = by_heads(x) ? 4 : 0; /* part of K */
    lao_backward_args args = *x->backward;
    args.pulse = call_pulse(&x->flight.call);
    args.sink = sink_from(x, args.sink, heads.q_first);
    args.d_sink = NULL;
    args.sink_sums = x->flags & CALL_SINK ? x->plan->sinks + heads.q_first : NULL;
    args.k = whole_tensor(x, &x->read, first, x->b.whole, &heads);
    args.v = whole_tensor(x, &x->read, first + 1, x->b.whole, &heads);
    args.d_k = whole_tensor(x, &x->write, 0, x->b.found, &heads);
    args.d_v = whole_tensor(x, &x->write, 1, x->b.found, &heads);
    args.wide = x->write.parts[0].element == real_bytes(x);
    args.accumulate_q = args.accumulate_kv = false;
    args.lse = NULL;
    if (by_heads(x)) {
        args.stats = whole_tensor(x, &x->read, 0, x->b.whole, &heads).data;
        args.dots = whole_tensor(x, &x->read, 1, x->b.whole, &heads).data;
        args.q = whole_tensor(x, &x->read, 2, x->b.whole, &heads);
        args.d_o = whole_tensor(x, &x->read, 3, x->b.whole, &heads);
        args.d_q = whole_tensor(x, &x->write, 2, x->b.found, &heads);
        return lao_backward(lao_at(x->plan->local, (size_t)stage), &args);
    }
    prepare_rows(x, stage, &heads);
    args.stats = x->b.ms;
    args.dots = x->b.dots;
    args.q = from_head(args.q, heads.q_first, e);
    args.d_o = from_head(args.d_o, heads.q_first, e);
    args.d_q = packed_tensor(heads.q_count, s->q_tokens, s->head_dim, x->b.d_q);
    const burst_status status = lao_backward(lao_at(x->plan->local, (size_t)stage), &args);
    const room found = {x->b.d_q, heads.q_count, s->q_tokens, (size_t)s->head_dim * real_bytes(x)};
    if (status == BURST_OK)
        store(x, &found, s->head_dim, real_bytes(x), heads.q_first, x->backward->d_q, x->backward->accumulate_q);
    return status;
}

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

static burst_status compute(exchange *x, int stage) {
    flight_compute(&x->flight, 1.0 / stage_count(x->plan));
    return flight_computed(&x->flight, x->forward ? compute_forward(x, stage) : compute_backward(x, stage));
}

static burst_status run(exchange *x) {
    const int stages = stage_count(x->plan);
    burst_status status = post_reads(x, 0);
    if (status == BURST_OK) status = wait_for_all(x, x->read_in);
    for (int stage = 0; stage < stages && status == BURST_OK; stage++) {
        flight_round(&x->flight, stage);
        place_reads(x, stage);
        status = post_reads(x, stage + 1);
        if (status == BURST_OK && x->plan->no_overlap) status = wait_for_all(x, x->read_in);
        if (status == BURST_OK) status = compute(x, stage);
        if (status == BURST_OK) status = take_home(x, stage - 1);
        if (status == BURST_OK && x->write.count) status = post_writes(x, stage);
        if (status == BURST_OK && x->plan->no_overlap) status = wait_for_all(x, x->write_in);
        if (status == BURST_OK) status = wait_for_all(x, x->read_in);
    }
    if (status == BURST_OK) status = take_home(x, stages - 1);
    for (int n = 0; n < 2 && status == BURST_OK; n++) status = wait_for_all(x, x->read_out[n]);
    flight_account(&x->flight);
    return status;
}

/* Nothing of the call is in flight afterwards; what cannot be taken back stays with the transport. */
static burst_status close_exchange(exchange *x, burst_status status) {
    burst_transport *t = x->plan->transport;
    for (int sends = 0; sends < 2; sends++) /* what was borrowed goes back first: its lender waits for it */
        for (int n = 0; n < x->flight.count; n++)
            if (x->flight.requests[n].receiving == (sends == 0) && !transport_cancel(t, &x->flight.requests[n]))
                x->plan->stuck = true;
    flight_close(&x->flight);
    return status == BURST_OK || t->broken == BURST_OK ? status : transport_check(t);
}

static void open_exchange(exchange *x, burst_plan *plan, unsigned pass, unsigned flags) {
    size_t home, wire;
    *x = (exchange){.plan = plan, .flags = flags};
    x->read = stage_read_set(plan, pass);
    x->write = stage_write_set(plan, pass, flags & CALL_EXACT, flags & CALL_LSE, flags & CALL_ADD);
    stage_buffers_of(plan, pass, &plan->memory, &x->b, &home, &wire);
    flight_open(&x->flight, plan, PLAN_REQUESTS * plan->ranks);
    transport_request *at = x->flight.requests;
    x->read_in = at, x->write_in = at + plan->ranks, x->write_out = at + 2 * plan->ranks;
    for (int n = 0; n < 2; n++) x->read_out[n] = at + (3 + n) * plan->ranks;
}

burst_status exchange_forward(burst_plan *plan, const lao_forward_args *args, unsigned flags) {
    exchange x;
    open_exchange(&x, plan, BURST_PASS_FORWARD, flags);
    x.forward = args;
    return close_exchange(&x, run(&x));
}

burst_status exchange_backward(burst_plan *plan, const lao_backward_args *args, unsigned flags) {
    exchange x;
    open_exchange(&x, plan, BURST_PASS_BACKWARD, flags);
    x.backward = args;
    if (flags & CALL_SINK) memset(plan->sinks, 0, (size_t)plan->whole.q_heads * sizeof *plan->sinks);
    if (by_heads(&x))
        lao_dots(lao_at(plan->local, stage_home_local(plan)), args, x.b.ms, x.b.dots,
                 flags & CALL_SINK ? plan->sinks : NULL);
    const burst_status status = close_exchange(&x, run(&x));
    return status == BURST_OK ? call_sinks(&x.flight.call, flags, args) : status;
}
