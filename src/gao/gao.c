/* gao.c - knows how a call goes: agree to begin, compute the rounds, tell progress, stop when cancelled, agree at the end.
 * One idea: what the caller wants to hear (rarely, never backwards, 1 at the end) is made here from the local attention's
 * pulse, so that the code between tiles stays a bare clock tick.
 * Does not know tiles, masks or checks. */
#include "call.h"

#include <stdio.h>
#include <string.h>

/* Between two progress calls: quick for an eye, and nothing beside the milliseconds of computing between them. */
static const double progress_seconds = 0.004;

bool call_cancelled(const burst_plan *plan) {
    return plan->cancel && __atomic_load_n(plan->cancel, __ATOMIC_RELAXED) != 0;
}

burst_status call_say_cancelled(void) {
    return base_fail(BURST_CANCELLED, "the cancel flag was set: outputs are undefined");
}

gao_call call_begin(burst_plan *plan) {
    return (gao_call){.plan = plan, .said = base_seconds(), .step = 1, .status = BURST_OK};
}

static int on_pulse(void *user, double done) {
    gao_call *call = user;
    const burst_plan *plan = call->plan;
    if (call_cancelled(plan)) return 1;
    if (call->carry) call->status = call->carry(call->user);
    if (call->status != BURST_OK) return 1;
    if (!plan->progress) return 0;
    const double now = base_seconds();
    if (now - call->said < progress_seconds) return 0;
    const double share = call->before + call->step * done, capped = share < 1 ? share : 1;
    if (capped > call->last) call->last = capped;
    call->said = now;
    plan->progress(plan->progress_user, call->last);
    return 0;
}

lao_pulse call_pulse(gao_call *call) {
    const bool heard = call->plan->progress || call->plan->cancel || call->carry;
    return (lao_pulse){heard ? on_pulse : NULL, call};
}

burst_status call_status(const gao_call *call, burst_status status) {
    if (status != BURST_CANCELLED) return status;
    return call->status != BURST_OK ? call->status : call_say_cancelled();
}

/* ---- agreement --------------------------------------------------------------------------------------------------- */

typedef struct verdict {
    int32_t status;
    uint32_t flags;
    gao_what what;
    char sentence[224];
} verdict;

burst_status gao_agree(burst_transport *t, const transport_patience *patience, burst_status mine, gao_what what,
                       unsigned *flags) {
    verdict v = {.status = (int32_t)mine, .flags = *flags, .what = what};
    if (!t) return mine;
    if (mine != BURST_OK) snprintf(v.sentence, sizeof v.sentence, "%s", burst_last_error());
    const burst_status status = transport_agree(t, &v, sizeof v, patience);
    if (mine != BURST_OK) return base_fail(mine, "%s", v.sentence);
    if (status != BURST_OK) return status;
    for (int r = 0; r < t->size; r++) {
        const verdict *first = transport_record(t, 0, sizeof v), *other = transport_record(t, r, sizeof v);
        *flags |= other->flags;
        if (memcmp(&first->what, &other->what, sizeof what) != 0)
            return base_fail(
                BURST_MISMATCH,
                "ranks 0 and %d are not in the same call: all ranks make the same calls, with the same plans, in "
                "the same order",
                r);
        if (other->status != BURST_OK)
            return base_fail(BURST_PEER, "rank %d failed, %s: %.200s", r,
                             burst_status_name((burst_status)other->status), other->sentence);
    }
    return BURST_OK;
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* While ranks agree, this one may be cancelled. */
static burst_status unless_cancelled(void *user) { return call_cancelled(user) ? call_say_cancelled() : BURST_OK; }

transport_patience call_patience(burst_plan *plan) {
    return (transport_patience){plan->timeout, unless_cancelled, plan};
}

static burst_status begin(burst_plan *plan, burst_status checked, int kind, unsigned *flags) {
    const transport_patience patience = call_patience(plan);
    const gao_what what = {.plan = plan->number, .kind = kind};
    if (checked == BURST_OK && call_cancelled(plan)) checked = call_say_cancelled();
    return gao_agree(plan->transport, &patience, checked, what, flags);
}

burst_status call_agree_end(burst_plan *plan) {
    const transport_patience patience = {.timeout = plan->timeout}; /* too late to be cancelled */
    const gao_what what = {.plan = plan->number, .kind = GAO_END};
    unsigned flags = 0;
    return gao_agree(plan->transport, &patience, BURST_OK, what, &flags);
}

/* Whoever failed on the way has told all, so a failure here is everybody's. */
static burst_status end(burst_plan *plan, burst_status status) {
    if (status == BURST_OK) status = call_agree_end(plan);
    if (status == BURST_OK && plan->progress) plan->progress(plan->progress_user, 1.0);
    return status;
}

/* ---- sinks ------------------------------------------------------------------------------------------------------- */

static burst_status sum_sinks(gao_call *call) {
    enum { AT_ONCE = TRANSPORT_RECORD_MAX / sizeof(double) };
    const burst_plan *plan = call->plan;
    const transport_patience patience = call_patience(call->plan);
    double *sinks = plan->sinks;
    for (int64_t h = 0; h < plan->whole.q_heads; h += AT_ONCE) {
        const int64_t left = plan->whole.q_heads - h, count = left < AT_ONCE ? left : AT_ONCE;
        const size_t bytes = (size_t)count * sizeof(double);
        const burst_status status = transport_agree(plan->transport, sinks + h, bytes, &patience);
        if (status != BURST_OK) return status;
        for (int64_t n = 0; n < count; n++) {
            sinks[h + n] = 0;
            for (int rank = 0; rank < plan->ranks; rank++)
                sinks[h + n] += ((const double *)transport_record(plan->transport, rank, bytes))[n];
        }
    }
    return BURST_OK;
}

burst_status call_sinks(gao_call *call, unsigned flags, const lao_backward_args *args) {
    const burst_plan *plan = call->plan;
    const burst_status status = flags & CALL_SINK ? sum_sinks(call) : BURST_OK;
    for (int64_t h = 0; h < plan->whole.q_heads && args->d_sink && status == BURST_OK; h++) {
        if (plan->whole.dtype == BURST_F64) {
            double *out = (double *)args->d_sink + h;
            *out = plan->sinks[h] + (args->accumulate_q ? *out : 0);
        } else {
            float *out = (float *)args->d_sink + h;
            *out = (float)(plan->sinks[h] + (args->accumulate_q ? (double)*out : 0));
        }
    }
    return status;
}

/* ---- one rank ---------------------------------------------------------------------------------------------------- */

static burst_status forward_alone(burst_plan *plan, const lao_forward_args *args) {
    gao_call call = call_begin(plan);
    lao_forward_args round = *args;
    round.exact = args->stats != NULL;
    round.pulse = call_pulse(&call);
    return call_status(&call, lao_forward(plan->local, &round));
}

static burst_status backward_alone(burst_plan *plan, const lao_backward_args *args) {
    gao_call call = call_begin(plan);
    lao_backward_args round = *args;
    round.pulse = call_pulse(&call);
    return call_status(&call, lao_backward(plan->local, &round));
}

/* What the call took and sent; one rank only computes. */
static void close_report(burst_plan *plan, unsigned pass, double since, const transport_traffic *before) {
    burst_report *r = &plan->report;
    r->pairs = plan_work(plan, pass);
    r->seconds = base_seconds() - since;
    if (!plan->transport) {
        r->seconds_computing = r->seconds;
        r->hidden = 1;
        return;
    }
    const transport_traffic *now = &plan->transport->traffic;
    r->read_bytes = now->bytes[TRANSPORT_READ] - before->bytes[TRANSPORT_READ];
    r->read_messages = now->messages[TRANSPORT_READ] - before->messages[TRANSPORT_READ];
    r->write_bytes = now->bytes[TRANSPORT_WRITE] - before->bytes[TRANSPORT_WRITE];
    r->write_messages = now->messages[TRANSPORT_WRITE] - before->messages[TRANSPORT_WRITE];
    r->control_bytes = now->bytes[TRANSPORT_AGREE] - before->bytes[TRANSPORT_AGREE] + now->bytes[TRANSPORT_WATCH] -
                       before->bytes[TRANSPORT_WATCH];
    r->control_messages = now->messages[TRANSPORT_AGREE] - before->messages[TRANSPORT_AGREE] +
                          now->messages[TRANSPORT_WATCH] - before->messages[TRANSPORT_WATCH];
}

static transport_traffic traffic_of(const burst_plan *plan) {
    const transport_traffic none = {{0}, {0}};
    return plan->transport ? plan->transport->traffic : none;
}

burst_status gao_forward(burst_plan *plan, const lao_forward_args *args, burst_status checked) {
    const double since = base_seconds();
    const transport_traffic before = traffic_of(plan);
    unsigned flags = 0;
    if (checked == BURST_OK) flags = (args->stats ? CALL_EXACT : 0) | (args->lse ? CALL_LSE : 0);
    plan->report = (burst_report)BURST_REPORT_INIT;
    burst_status status = begin(plan, checked, GAO_FORWARD, &flags);
    if (status != BURST_OK) return status;
    if (!plan->transport)
        status = forward_alone(plan, args);
    else
        status = (plan_exchanges(plan) ? exchange_forward : ring_forward)(plan, args, flags);
    status = end(plan, status);
    close_report(plan, BURST_PASS_FORWARD, since, &before);
    return status;
}

burst_status gao_backward(burst_plan *plan, const lao_backward_args *args, burst_status checked) {
    const double since = base_seconds();
    const transport_traffic before = traffic_of(plan);
    unsigned flags = 0;
    if (checked == BURST_OK)
        flags = (args->d_sink ? CALL_SINK : 0) | (args->accumulate_q || args->accumulate_kv ? CALL_ADD : 0);
    plan->report = (burst_report)BURST_REPORT_INIT;
    burst_status status = begin(plan, checked, GAO_BACKWARD, &flags);
    if (status != BURST_OK) return status;
    if (!plan->transport)
        status = backward_alone(plan, args);
    else
        status = (plan_exchanges(plan) ? exchange_backward : ring_backward)(plan, args, flags);
    status = end(plan, status);
    close_report(plan, BURST_PASS_BACKWARD, since, &before);
    return status;
}
