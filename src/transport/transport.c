/* transport.c - knows the handle: its ends, its carrier, its messages and their count.
 * One idea: whatever carries the bytes (threads, MPI, the caller's own) is a table of a few functions that do not wait;
 * all waiting, agreeing and failing is built on it once (watch.c).
 * NULL stands for one rank everywhere, so that a caller with one rank never has to mention it. */
#include "transport.h"

#include <stdio.h>
#include <string.h>

const char *const transport_channel_names[TRANSPORT_CHANNELS] = {"agree", "watch", "read", "write", "move"};

enum { RANKS_MAX = 1 << 20 };

burst_status transport_create(const burst_carrier *carrier, void *self, int rank, int size, int here,
                              burst_transport **transport) {
    burst_transport *t = base_alloc(sizeof *t);
    if (!t) return base_fail(BURST_MEMORY, "no memory for the %zu bytes of a transport", sizeof *t);
    *t = (burst_transport){.rank = rank, .size = size, .here = here, .self = self, .round = -1, .broken = BURST_OK};
    if (carrier) t->carrier = *carrier;
    const burst_status status = carrier && size > 1 ? transport_watch_open(t) : BURST_OK;
    if (status != BURST_OK) {
        base_free(t);
        return status;
    }
    *transport = t;
    return BURST_OK;
}

static burst_status check_place(const void *transport, int rank, int size) {
    if (!transport) return base_fail(BURST_INVALID, "transport is NULL: expected where to put the handle");
    if (size < 1 || size > RANKS_MAX) return base_fail(BURST_INVALID, "%d ranks: expected 1 to %d", size, RANKS_MAX);
    if (rank < 0 || rank >= size)
        return base_fail(BURST_INVALID, "rank is %d: expected 0 to %d, less than the %d ranks", rank, size - 1, size);
    return BURST_OK;
}

burst_status burst_transport_create_self(burst_transport **transport) {
    const burst_status status = check_place(transport, 0, 1);
    return status == BURST_OK ? transport_create(NULL, NULL, 0, 1, 1, transport) : status;
}

burst_status burst_transport_create_dry(int rank, int size, burst_transport **transport) {
    burst_status status = check_place(transport, rank, size);
    if (status == BURST_OK) status = transport_create(NULL, NULL, rank, size, size, transport);
    if (status == BURST_OK) (*transport)->dry = true;
    return status;
}

static burst_status check_carrier(const burst_carrier *c) {
    if (!c) return base_fail(BURST_INVALID, "carrier is NULL");
    const burst_status status = base_check_struct("burst_carrier", c->struct_size, sizeof *c);
    if (status != BURST_OK) return status;
    if (!c->send || !c->receive || !c->test || !c->cancel)
        return base_fail(BURST_INVALID, "a carrier needs send, receive, test and cancel: one of them is NULL");
    const int lending = !!c->lends + !!c->borrow + !!c->borrowed + !!c->give_back;
    if (lending != 0 && lending != 4)
        return base_fail(BURST_INVALID, "a carrier lends with all of lends, borrow, borrowed and give_back, or none");
    if (!c->allocate != !c->release)
        return base_fail(BURST_INVALID, "a carrier has both allocate and release, or none");
    return BURST_OK;
}

burst_status burst_transport_create_custom(const burst_carrier *carrier, void *self, int rank, int size, int here,
                                           burst_transport **transport) {
    burst_status status = check_carrier(carrier);
    if (status == BURST_OK) status = check_place(transport, rank, size);
    if (status != BURST_OK) return status;
    if (here < 0 || here > size)
        return base_fail(BURST_INVALID, "%d ranks share the cores: expected 0 (1) to the %d there are", here, size);
    return transport_create(carrier, self, rank, size, here == 0 ? 1 : here, transport);
}

int burst_transport_rank(const burst_transport *transport) { return transport ? transport->rank : 0; }

int burst_transport_size(const burst_transport *transport) { return transport ? transport->size : 1; }

void burst_transport_free(burst_transport *t) {
    if (!t) return;
    transport_watch_close(t);
    if (t->carrier.close) t->carrier.close(t->self);
    base_free(t);
}

burst_status burst_carrier_fail(burst_status status, const char *sentence) {
    return base_fail(status, "%s", sentence ? sentence : "");
}

bool transport_lends(const burst_transport *t, int peer) {
    return t->carrier.lends && t->carrier.lends(t->self, peer) != 0;
}

void *transport_alloc(burst_transport *t, size_t bytes) {
    return t && t->carrier.allocate ? t->carrier.allocate(t->self, bytes) : base_alloc(bytes);
}

void transport_release(burst_transport *t, void *memory, size_t bytes) {
    if (memory && t && t->carrier.release)
        t->carrier.release(t->self, memory, bytes);
    else
        base_free(memory);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* A carrier may have said why; if not, this does. */
static burst_status explain(const burst_transport *t, const transport_request *r, burst_status status) {
    if (status == BURST_OK) return BURST_OK;
    if (status != BURST_PEER) status = BURST_TRANSPORT;
    const char *said = burst_last_error();
    char round[32] = "";
    if (t->round >= 0) snprintf(round, sizeof round, ", round %d", t->round);
    return base_fail(status, "%s rank %d on channel %s (%zu bytes%s) failed%s%s",
                     r->receiving ? "receiving from" : "sending to", r->peer, transport_channel_names[r->channel],
                     r->bytes, round, said[0] ? ": " : "", said);
}

burst_status transport_send(burst_transport *t, int peer, int channel, const void *data, size_t bytes,
                            transport_request *r) {
    *r = (transport_request){.posted = true, .peer = peer, .channel = channel, .bytes = bytes};
    base_fail(BURST_OK, "%s", "");
    const burst_status status = t->carrier.send(t->self, peer, channel, data, bytes, &r->ticket);
    if (status != BURST_OK) {
        r->posted = false;
        return explain(t, r, status);
    }
    t->traffic.bytes[channel] += (int64_t)bytes;
    t->traffic.messages[channel]++;
    return BURST_OK;
}

burst_status transport_receive(burst_transport *t, int peer, int channel, void *data, size_t bytes,
                               transport_request *r) {
    *r = (transport_request){.posted = true,
                             .receiving = true,
                             .borrowed = !data,
                             .peer = peer,
                             .channel = channel,
                             .data = data,
                             .bytes = bytes};
    base_fail(BURST_OK, "%s", "");
    const burst_status status = data ? t->carrier.receive(t->self, peer, channel, data, bytes, &r->ticket)
                                     : t->carrier.borrow(t->self, peer, channel, bytes, &r->ticket);
    if (status != BURST_OK) r->posted = false;
    return explain(t, r, status);
}

burst_status transport_test(burst_transport *t, transport_request *r) {
    int done = 0;
    if (!r->posted || r->done) return BURST_OK;
    base_fail(BURST_OK, "%s", "");
    const burst_status status = t->carrier.test(t->self, r->ticket, &done);
    if (status != BURST_OK) return explain(t, r, status);
    if (!done) return BURST_OK;
    r->done = true;
    if (r->channel != TRANSPORT_WATCH) t->completed++;
    if (r->borrowed) r->data = t->carrier.borrowed(t->self, r->ticket);
    if (!r->borrowed) r->posted = false;
    return BURST_OK;
}

void transport_give_back(burst_transport *t, transport_request *r) {
    if (r->posted && r->done && r->borrowed) t->carrier.give_back(t->self, r->ticket);
    *r = (transport_request){.posted = false};
}

bool transport_cancel(burst_transport *t, transport_request *r) {
    if (!r->posted) return true;
    if (r->borrowed && r->done) {
        transport_give_back(t, r);
        return true;
    }
    const bool over = t->carrier.cancel(t->self, r->ticket) != 0;
    if (over) r->posted = false;
    return over;
}
