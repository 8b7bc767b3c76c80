/* ring.c - knows the ring loop: post, compute, fold, wait; GAO of the paper, for all journeys (journeys.c).
 * One idea: in every pass one side travels, and what travels is a read set (needed before computing) and a write set (ready
 * after it, one hop behind, on its own channel). A rank's contribution to its own block never travels, so both sets make
 * ranks - 1 hops; the rest of the own block comes last and hides the write set's way home.
 *   round 0        the own block (its first part), while the first visitor arrives
 *   round t        visitor rank + t, while the next arrives; its write set arrives, is added to, goes on
 *   round ranks    the rest of the own block, while its write set comes home
 * Messages go to rank - 1 and come from rank + 1. Where the carrier lends, visitors are read where they lie.
 * Does not know what is in a message, kernels or masks. Nothing is allocated. */
#include "ring.h"

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static int requests(const ring *r) { return 4 * (r->plan->ranks + 1); }

size_t ring_block_bytes(const ring *r, const plan_set *set, int rank) {
    return route_set_bytes(set, r->plan->whole.batch, plan_share_of(r->plan, r->route->side, rank).tokens);
}

static int visitor_of(const ring *r, int round) { return (r->plan->rank + round) % r->plan->ranks; }

static burst_status send(ring *r, int channel, const void *data, const plan_set *set, int round,
                         transport_request *one) {
    return flight_send(&r->flight, r->to, channel, data, ring_block_bytes(r, set, visitor_of(r, round)), one);
}

static burst_status expect(ring *r, int channel, void *data, const plan_set *set, int round, transport_request *one) {
    return flight_expect(&r->flight, r->from, channel, data, ring_block_bytes(r, set, visitor_of(r, round)), one);
}

static burst_status wait_for(ring *r, transport_request *one) { return flight_wait(&r->flight, one); }

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
    const double all = (double)r->route->pairs;
    flight_compute(&r->flight, all > 0 ? (double)step->pairs / all : 0);
    return flight_computed(&r->flight, r->way->compute(r, step, visitor, sums));
}

/* What this rank found for a visitor joins what others found before, and goes on. */
static burst_status pass_on(ring *r, int round, const plan_step *step, char *sums) {
    burst_status status = wait_for(r, &r->write_in[round]);
    if (status != BURST_OK) return status;
    if (round >= 2) {
        r->way->fold(r, step, sums, r->write_in[round].data, step->pairs == 0);
        transport_give_back(r->plan->transport, &r->write_in[round]);
    }
    if (r->b.sums) ring_narrow(r, step, sums, message_of(r, round));
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

burst_status ring_run(ring *r) {
    burst_status status = BURST_OK;
    for (int t = 0; t < r->route->count && status == BURST_OK; t++) {
        flight_round(&r->flight, t);
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
    if (status == BURST_OK) status = wait_for(r, &r->write_in[r->plan->ranks]);
    flight_account(&r->flight);
    return status;
}

/* Everything sent has left, everything borrowed is given back: from the last hop backwards, each waits for the next. */
static burst_status settle(ring *r) {
    burst_status status = BURST_OK;
    for (int t = r->plan->ranks; t >= 0 && status == BURST_OK; t--) {
        status = wait_for(r, &r->write_out[t]);
        if (status == BURST_OK) status = wait_for(r, &r->read_out[t]);
        if (status == BURST_OK) transport_give_back(r->plan->transport, &r->read_in[t]);
    }
    return status;
}

/* The call is over, well or not. In the order of settle, so that nobody waits in a circle: what was borrowed and sent on
 * goes back when its next reader has given it back. What cannot be taken back stays with the transport. */
static void abandon(ring *r) {
    for (int t = r->plan->ranks; t >= 0; t--) {
        const bool wrote = transport_cancel(r->plan->transport, &r->write_out[t]),
                   sent = transport_cancel(r->plan->transport, &r->read_out[t]);
        const bool came = transport_cancel(r->plan->transport, &r->write_in[t]);
        const bool read = sent && transport_cancel(r->plan->transport, &r->read_in[t]);
        if (!wrote || !came || !read) r->plan->stuck = true;
    }
}

static transport_request *requests_of(const burst_plan *plan, int kind) {
    return plan->requests + (size_t)kind * ((size_t)plan->ranks + 1);
}

void ring_open(ring *r, burst_plan *plan, unsigned pass, unsigned flags) {
    size_t home, wire;
    *r = (ring){.plan = plan,
                .route = &plan->routes[plan_pass_index(pass)],
                .pass = pass,
                .flags = flags,
                .to = (plan->rank + plan->ranks - 1) % plan->ranks,
                .from = (plan->rank + 1) % plan->ranks,
                .read_in = requests_of(plan, 0),
                .read_out = requests_of(plan, 1),
                .write_in = requests_of(plan, 2),
                .write_out = requests_of(plan, 3)};
    r->read = route_read_set(plan, pass, r->route->side);
    r->write = route_write_set(&plan->whole, pass, r->route->side, plan->narrow);
    flight_open(&r->flight, plan, requests(r));
    route_buffers(plan, pass, &plan->memory, &r->b, &home, &wire);
}

/* What others have added to the own block, once it is home. */
char *ring_came_home(const ring *r) { return r->write.count ? r->write_in[r->plan->ranks].data : NULL; }

burst_status ring_close(ring *r, burst_status status) {
    if (status == BURST_OK) {
        transport_give_back(r->plan->transport, &r->write_in[r->plan->ranks]);
        status = settle(r);
    }
    abandon(r);
    flight_close(&r->flight);
    return status == BURST_OK || r->plan->transport->broken == BURST_OK ? status : transport_check(r->plan->transport);
}
