/* meddler.c - see meddler.h. */
#include "meddler.h"

static burst_status meddle(meddler *m) {
    if (++m->posts != m->fail_at) return BURST_OK;
    return burst_carrier_fail(BURST_TRANSPORT, "the cable was cut");
}

static burst_status meddler_send(void *self, int peer, int channel, const void *from, size_t bytes, uint64_t *ticket) {
    meddler *m = self;
    const burst_status status = meddle(m);
    return status ? status : m->inner->carrier.send(m->inner->self, peer, channel, from, bytes, ticket);
}

static burst_status meddler_receive(void *self, int peer, int channel, void *to, size_t bytes, uint64_t *ticket) {
    meddler *m = self;
    const burst_status status = meddle(m);
    return status ? status : m->inner->carrier.receive(m->inner->self, peer, channel, to, bytes, ticket);
}

static burst_status meddler_test(void *self, uint64_t ticket, int *done) {
    const meddler *m = self;
    return m->inner->carrier.test(m->inner->self, ticket, done);
}

static int meddler_cancel(void *self, uint64_t ticket) {
    const meddler *m = self;
    return m->inner->carrier.cancel(m->inner->self, ticket);
}

static int meddler_lends(void *self, int peer) {
    const meddler *m = self;
    return m->inner->carrier.lends(m->inner->self, peer);
}

static burst_status meddler_borrow(void *self, int peer, int channel, size_t bytes, uint64_t *ticket) {
    meddler *m = self;
    const burst_status status = meddle(m);
    return status ? status : m->inner->carrier.borrow(m->inner->self, peer, channel, bytes, ticket);
}

static void *meddler_borrowed(void *self, uint64_t ticket) {
    const meddler *m = self;
    return m->inner->carrier.borrowed(m->inner->self, ticket);
}

static void meddler_give_back(void *self, uint64_t ticket) {
    const meddler *m = self;
    m->inner->carrier.give_back(m->inner->self, ticket);
}

burst_carrier meddler_carrier(bool lending) {
    burst_carrier carrier = BURST_CARRIER_INIT;
    carrier.send = meddler_send, carrier.receive = meddler_receive;
    carrier.test = meddler_test, carrier.cancel = meddler_cancel;
    if (lending) {
        carrier.lends = meddler_lends, carrier.borrow = meddler_borrow;
        carrier.borrowed = meddler_borrowed, carrier.give_back = meddler_give_back;
    }
    return carrier;
}

burst_status meddler_open(meddler *m, burst_transport *inner, bool lending, burst_transport **out) {
    const burst_carrier carrier = meddler_carrier(lending);
    m->inner = inner;
    transport_watch_close(inner); /* its notes would meet ours */
    return burst_transport_create_custom(&carrier, m, inner->rank, inner->size, inner->size, out);
}
