/* gao.c - knows how a call goes: start, compute the rounds, tell progress, stop when cancelled.
 * One idea: what the caller wants to hear (rarely, never backwards, 1 at the end) is made here from the local
 * attention's pulse, so that the code between tiles stays a bare clock tick.
 * Does not know tiles, masks or checks. */
#include "gao.h"

/* Between two progress calls: quick for an eye, and nothing beside the milliseconds of computing between them. */
static const double progress_seconds = 0.004;

typedef struct call_state {
    const burst_plan *plan;
    double said, last; /* when progress was called last, and with what */
} call_state;

static bool is_cancelled(const burst_plan *plan) {
    return plan->cancel && __atomic_load_n(plan->cancel, __ATOMIC_RELAXED) != 0;
}

static int on_pulse(void *user, double done) {
    call_state *state = user;
    const burst_plan *plan = state->plan;
    if (is_cancelled(plan)) return 1;
    if (!plan->progress) return 0;
    const double now = base_seconds();
    if (now - state->said < progress_seconds) return 0;
    const double capped = done < 1 ? done : 1;
    if (capped > state->last) state->last = capped;
    state->said = now;
    plan->progress(plan->progress_user, state->last);
    return 0;
}

/* No pulse at all if nobody listens. */
static lao_pulse make_pulse(call_state *state) {
    const bool heard = state->plan->progress || state->plan->cancel;
    return (lao_pulse){heard ? on_pulse : NULL, state};
}

static burst_status cancelled(void) {
    return base_fail(BURST_CANCELLED, "the cancel flag was set: outputs are undefined");
}

static burst_status finish(const burst_plan *plan, burst_status status) {
    if (status == BURST_CANCELLED) return cancelled();
    if (status == BURST_OK && plan->progress) plan->progress(plan->progress_user, 1.0);
    return status;
}

burst_status gao_forward(burst_plan *plan, const lao_forward_args *args) {
    if (is_cancelled(plan)) return cancelled();
    call_state state = {plan, base_seconds(), 0.0};
    lao_forward_args round = *args;
    round.pulse = make_pulse(&state);
    return finish(plan, lao_forward(plan->local, &round));
}

burst_status gao_backward(burst_plan *plan, const lao_backward_args *args) {
    if (is_cancelled(plan)) return cancelled();
    call_state state = {plan, base_seconds(), 0.0};
    lao_backward_args round = *args;
    round.pulse = make_pulse(&state);
    return finish(plan, lao_backward(plan->local, &round));
}
