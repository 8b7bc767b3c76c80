/* meddler.h - a carrier of the caller's, for tests: it stands between the library and the threads' carrier, fails when told,
 * and lends or does not. */
#ifndef TESTS_MEDDLER_H
#define TESTS_MEDDLER_H

#include "run.h"
#include "transport.h"

typedef struct meddler {
    burst_transport *inner;
    int64_t posts, fail_at; /* the so-manieth post fails; 0: never */
} meddler;

burst_carrier meddler_carrier(bool lending);
/* A transport in place of `inner`, whose own watch is closed. */
burst_status meddler_open(meddler *m, burst_transport *inner, bool lending, burst_transport **out);

#endif
