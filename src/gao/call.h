/* call.h - one call on its way, shared by the files of this folder: who listens, what was done, what broke it. */
#ifndef BURST_CALL_H
#define BURST_CALL_H

#include "gao.h"

typedef struct gao_call {
    burst_plan *plan;
    double said, last;   /* when progress was called last, and with what */
    double before, step; /* pairs met in earlier rounds, and of this round, as shares of all */
    burst_status status; /* of what broke it between tiles */
    /* between tiles and while waiting; NULL: nothing to do */
    burst_status (*carry)(void *user);
    void *user;
} gao_call;

gao_call call_begin(burst_plan *plan);
/* The pulse of a local attention in this call; no pulse at all if nobody listens. */
lao_pulse call_pulse(gao_call *call);
/* What a stopped local attention means. */
burst_status call_status(const gao_call *call, burst_status status);
bool call_cancelled(const burst_plan *plan);
burst_status call_say_cancelled(void);
transport_patience call_patience(burst_plan *plan); /* ended by the cancel flag */
burst_status call_agree_end(burst_plan *plan);

/* d_sink of all ranks, summed in their order (the same bits everywhere) and written; nothing if nobody wants it. */
burst_status call_sinks(gao_call *call, unsigned flags, const lao_backward_args *args);

burst_status ring_forward(burst_plan *plan, const lao_forward_args *args, unsigned flags);
burst_status ring_backward(burst_plan *plan, const lao_backward_args *args, unsigned flags);

burst_status exchange_forward(burst_plan *plan, const lao_forward_args *args, unsigned flags);
burst_status exchange_backward(burst_plan *plan, const lao_backward_args *args, unsigned flags);

/* Flags of gao_agree: what some rank wants of a call. Statistics; d_sink; lse; gradients that are added to what is there. */
enum { CALL_EXACT = 1u, CALL_SINK = 2u, CALL_LSE = 4u, CALL_ADD = 8u };

#endif
