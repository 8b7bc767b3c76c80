/* api.c - the public functions of plans and calls: check what the caller says, call down.
 * One idea: nothing happens before everything has been checked; results are handed out only on success.
 * Masks, transports and errors have their public functions where their data are. */
#include "api.h"

const char *burst_isa_name(burst_isa isa) { return lao_isa_name(isa); }

int burst_isa_supported(burst_isa isa) { return lao_isa_runs(isa); }

/* As in BURST_OPTIONS_INIT: for ranks whose options cannot be read. */
static const double default_timeout = 300;

static bool has_peers(const burst_transport *transport) { return transport && transport->size > 1 && !transport->dry; }

burst_status burst_plan_create(const burst_problem *problem, burst_transport *transport, const burst_options *options,
                               burst_plan **plan) {
    plan_request request = {.transport = transport, .timeout = default_timeout};
    burst_plan *made = NULL;
    unsigned flags = 0;
    burst_status status = transport_check(transport);
    if (status != BURST_OK) return status;
    if (!plan) status = base_fail(BURST_INVALID, "plan is NULL: expected where to put the handle");
    if (status == BURST_OK) status = problem_check(problem, &request);
    if (status == BURST_OK) status = options_check(options, &request);
    request.lends = transport && transport->dry; /* its ranks are on this node */
    if (!has_peers(transport)) return status == BURST_OK ? plan_create(&request, plan) : status;
    status = request_agree(&request, status);
    if (status != BURST_OK) return status;
    const transport_patience patience = {.timeout = request.timeout};
    const gao_what what = {.kind = GAO_CREATE};
    status = gao_agree(transport, &patience, plan_create(&request, &made), what, &flags);
    if (status == BURST_OK)
        made->number = ++transport->plans, *plan = made;
    else
        plan_free(made);
    return status;
}

void burst_plan_free(burst_plan *plan) { plan_free(plan); }

size_t burst_plan_describe(const burst_plan *plan, char *text, size_t size) {
    if (plan) return plan_describe(plan, text, size);
    if (text && size > 0) text[0] = '\0';
    return 0;
}

size_t burst_plan_workspace_bytes(const burst_plan *plan) { return plan ? plan_bytes(plan) : 0; }

size_t burst_plan_stats_bytes(const burst_plan *plan) { return plan ? plan_stats_bytes(plan) : 0; }

int64_t burst_plan_pairs(const burst_plan *plan) { return plan ? plan->pairs : 0; }

int burst_plan_threads(const burst_plan *plan) { return plan ? plan->options.threads : 0; }

burst_isa burst_plan_isa(const burst_plan *plan) { return plan ? plan->options.isa : BURST_ISA_AUTO; }

/* The workspace serves one call at a time; this also catches a progress callback that calls back into its plan. */
static burst_status plan_enter(burst_plan *plan) {
    if (!plan) return base_fail(BURST_INVALID, "plan is NULL");
    if (atomic_exchange_explicit(&plan->busy, true, memory_order_acquire))
        return base_fail(BURST_INVALID,
                         "the plan is busy with another call: one call at a time, or one plan per thread");
    return BURST_OK;
}

/* Is there anybody to call with? */
static burst_status plan_ready(const burst_plan *plan) {
    if (plan->options.dry)
        return base_fail(BURST_UNSUPPORTED, "the plan was made on a dry transport: it can be asked, not run");
    return transport_check(plan->transport);
}

static burst_status plan_leave(burst_plan *plan, burst_status status) {
    atomic_store_explicit(&plan->busy, false, memory_order_release);
    return status;
}

burst_status burst_forward(burst_plan *plan, const burst_forward_args *args) {
    burst_status status = plan_enter(plan);
    if (status != BURST_OK) return status;
    lao_forward_args local;
    status = plan_ready(plan);
    if (status == BURST_OK) status = gao_forward(plan, &local, forward_check(plan, args, &local));
    return plan_leave(plan, status);
}

burst_status burst_backward(burst_plan *plan, const burst_backward_args *args) {
    burst_status status = plan_enter(plan);
    if (status != BURST_OK) return status;
    lao_backward_args local;
    status = plan_ready(plan);
    if (status == BURST_OK) status = gao_backward(plan, &local, backward_check(plan, args, &local));
    return plan_leave(plan, status);
}

burst_status burst_plan_scatter(burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *whole,
                                void *local) {
    burst_status status = plan_enter(plan);
    if (status != BURST_OK) return status;
    status = plan_ready(plan);
    if (status == BURST_OK)
        status = gao_scatter(plan, side, root, token_bytes, whole, local,
                             move_check(plan, side, root, token_bytes, whole, local));
    return plan_leave(plan, status);
}

burst_status burst_plan_gather(burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *local,
                               void *whole) {
    burst_status status = plan_enter(plan);
    if (status != BURST_OK) return status;
    status = plan_ready(plan);
    if (status == BURST_OK)
        status = gao_gather(plan, side, root, token_bytes, local, whole,
                            move_check(plan, side, root, token_bytes, whole, local));
    return plan_leave(plan, status);
}

burst_status burst_plan_report(const burst_plan *plan, burst_report *report) {
    if (!plan) return base_fail(BURST_INVALID, "plan is NULL");
    if (!report) return base_fail(BURST_INVALID, "report is NULL: expected where to put it");
    const burst_status status = base_check_struct("burst_report", report->struct_size, sizeof *report);
    if (status == BURST_OK) *report = plan->report;
    return status;
}
