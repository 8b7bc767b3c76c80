/* flight.c - see flight.h. One idea: a request that is on its way is tested between tiles, so that what can move moves
 * while this rank computes; a wait is only for what was not there in time, and is counted.
 * Does not know what is sent, or why. */
#include "flight.h"

/* Lets everything on its way move on, and keeps the time in which something is expected. */
static burst_status carry(void *user) {
    flight *f = user;
    burst_transport *t = f->plan->transport;
    bool expected = false;
    for (int n = 0; n < f->count; n++) {
        transport_request *one = &f->requests[n];
        if (!one->posted || one->done) continue;
        const burst_status status = transport_test(t, one);
        if (status != BURST_OK) return transport_fail(t, status);
        expected = expected || (one->receiving && !one->done);
    }
    if (!expected && f->since > 0) {
        f->plan->report.seconds_transfer += base_seconds() - f->since;
        f->since = 0;
    }
    return transport_attend(t);
}

void flight_open(flight *f, burst_plan *plan, int count) {
    *f = (flight){.plan = plan, .call = call_begin(plan), .requests = plan->requests, .count = count};
    f->call.carry = carry;
    f->call.user = f;
    for (int n = 0; n < count; n++) f->requests[n] = (transport_request){.posted = false};
    flight_round(f, 0);
}

void flight_round(flight *f, int round) { f->round = f->plan->transport->round = round; }

void flight_close(flight *f) { f->plan->transport->round = -1; }

burst_status flight_meanwhile(void *user) {
    flight *f = user;
    if (call_cancelled(f->plan)) return call_say_cancelled();
    return carry(f);
}

burst_status flight_wait(flight *f, transport_request *one) {
    const transport_patience patience = {f->plan->timeout, flight_meanwhile, f};
    const double since = base_seconds();
    if (!one->posted || one->done) return BURST_OK;
    const burst_status status = transport_wait(f->plan->transport, one, &patience);
    const double seconds = base_seconds() - since;
    f->plan->report.seconds_waiting += seconds;
    if (one->receiving) f->missed += seconds;
    return status;
}

burst_status flight_send(flight *f, int peer, int channel, const void *data, size_t bytes, transport_request *one) {
    burst_transport *t = f->plan->transport;
    const burst_status status = transport_send(t, peer, channel, data, bytes, one);
    return status == BURST_OK ? BURST_OK : transport_fail(t, status);
}

burst_status flight_expect(flight *f, int peer, int channel, void *data, size_t bytes, transport_request *one) {
    burst_transport *t = f->plan->transport;
    const burst_status status = transport_receive(t, peer, channel, f->plan->lends ? NULL : data, bytes, one);
    if (status != BURST_OK) return transport_fail(t, status);
    if (f->since == 0) f->since = base_seconds();
    return BURST_OK;
}

void flight_compute(flight *f, double share) {
    f->call.step = share;
    f->started_at = base_seconds();
}

burst_status flight_computed(flight *f, burst_status status) {
    burst_transport *t = f->plan->transport;
    status = call_status(&f->call, status);
    f->call.before += f->call.step;
    f->plan->report.seconds_computing += base_seconds() - f->started_at;
    if (f->call.status != BURST_OK && t->broken != BURST_OK) return transport_check(t); /* its sentence again */
    return status == BURST_OK ? BURST_OK : transport_fail(t, status);                   /* cancelled here: tell all */
}

void flight_account(flight *f) {
    burst_report *report = &f->plan->report;
    if (f->since > 0) report->seconds_transfer += base_seconds() - f->since;
    report->hidden = report->seconds_transfer > 0 ? 1 - f->missed / report->seconds_transfer : 1;
    if (report->hidden < 0) report->hidden = 0;
}
