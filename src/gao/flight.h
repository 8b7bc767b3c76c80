/* flight.h - what is on its way in a call: posting, waiting, and the account of both. The ring and the exchange fly. */
#ifndef BURST_FLIGHT_H
#define BURST_FLIGHT_H

#include "call.h"

typedef struct flight {
    burst_plan *plan;
    gao_call call;
    transport_request *requests; /* all of the call's; those that are on their way are pushed on between tiles */
    int count;
    int round;
    double since;      /* when something began to be expected; 0: nothing is */
    double missed;     /* seconds waited for what was expected */
    double started_at; /* of what is being computed */
} flight;

/* Takes the plan's first `count` requests. The flight must not move afterwards. Begins with round 0. */
void flight_open(flight *f, burst_plan *plan, int count);
void flight_round(flight *f, int round);
void flight_close(flight *f); /* nothing is on its way any more */
burst_status flight_send(flight *f, int peer, int channel, const void *data, size_t bytes, transport_request *one);
/* Where the plan lends, the message is read where it lies, and `data` is not used. */
burst_status flight_expect(flight *f, int peer, int channel, void *data, size_t bytes, transport_request *one);
burst_status flight_wait(flight *f, transport_request *one);
/* For waiting in the midst of a call. */
burst_status flight_meanwhile(void *f);
/* A share of the call's work is computed: how much it is, then what came of it. */
void flight_compute(flight *f, double share);
burst_status flight_computed(flight *f, burst_status status);
/* Time in which something was expected, and how much of it was spent computing, goes into the report. */
void flight_account(flight *f);

#endif
