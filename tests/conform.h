/* conform.h - what every transport must do, asked of it by all its ranks together. */
#ifndef TESTS_CONFORM_H
#define TESTS_CONFORM_H

#include "transport.h"

/* Collective. Returns the number of things that were wrong on this rank, each printed. `large`: bytes of the largest
 * message. */
int conform_run(burst_transport *transport, size_t large);

#endif
