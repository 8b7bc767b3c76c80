/* self.c - the transport of one rank: it is alone, so nothing is ever carried.
 * NULL stands for it everywhere, so that a caller with one rank never has to mention it. */
#include "transport.h"

burst_status burst_transport_create_self(burst_transport **transport) {
    if (!transport) return base_fail(BURST_INVALID, "transport is NULL: expected where to put the handle");
    burst_transport *self = base_alloc(sizeof *self);
    if (!self) return base_fail(BURST_MEMORY, "no memory for the %zu bytes of a transport", sizeof *self);
    *self = (burst_transport){.rank = 0, .size = 1};
    *transport = self;
    return BURST_OK;
}

int burst_transport_rank(const burst_transport *transport) { return transport ? transport->rank : 0; }

int burst_transport_size(const burst_transport *transport) { return transport ? transport->size : 1; }

void burst_transport_free(burst_transport *transport) { base_free(transport); }
