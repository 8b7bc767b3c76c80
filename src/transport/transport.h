/* transport.h - carries bytes between ranks. The only header of this folder that other folders see.
 * Knows ranks and their number; knows nothing of attention. So far there is only "self": one rank, nothing to carry. */
#ifndef BURST_TRANSPORT_H
#define BURST_TRANSPORT_H

#include "base.h"

struct burst_transport {
    int rank, size; /* 0 <= rank < size */
};

#endif
