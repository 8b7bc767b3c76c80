/* ring.h - the ring as the journeys see it: what a pass of it holds, and what a journey has to say. */
#ifndef BURST_RING_H
#define BURST_RING_H

#include "flight.h"

typedef struct ring ring;

/* What differs between the journeys. */
typedef struct journey {
    /* Computes a step: with the block `visitor` (NULL: the own one), leaving in `sums` what it adds to that. */
    burst_status (*compute)(ring *r, const plan_step *step, char *visitor, char *sums);
    /* sums = sums (+) arrived, of a visitor; `empty`: nothing is in sums */
    void (*fold)(ring *r, const plan_step *step, char *sums, char *arrived, bool empty);
} journey;

struct ring {
    burst_plan *plan;
    const plan_route *route;
    const journey *way;
    unsigned pass, flags;
    plan_set read, write;
    plan_buffers b;
    flight flight;
    const lao_forward_args *forward;
    const lao_backward_args *backward;
    int to, from; /* the ranks next to this one */
    /* by round: receives of visitors and of what was added to them, and the sends of both */
    transport_request *read_in, *read_out, *write_in, *write_out;
};

/* Everything but way, forward and backward is filled. */
void ring_open(ring *r, burst_plan *plan, unsigned pass, unsigned flags);
/* All rounds. Afterwards what others added to the own block has come home. */
burst_status ring_run(ring *r);
/* What came home; NULL if nothing travels to be added to. */
char *ring_came_home(const ring *r);
/* After ring_run: if all is well, gives back what came home and waits until everything sent has left; in any case nothing
 * of the call is in flight afterwards. Returns `status`, or what went wrong. */
burst_status ring_close(ring *r, burst_status status);
size_t ring_block_bytes(const ring *r, const plan_set *set, int rank);
/* Sums as they travel in 16 bits. */
void ring_narrow(ring *r, const plan_step *step, char *sums, char *message);

#endif
