/* tokens.c - the public functions about a rank's tokens: which they are, where they stand, what follows them.
 * All answers follow from the spans; whole tensors are moved elsewhere (gao). */
#include "api.h"

#include <inttypes.h>

static bool is_side(burst_side side) { return side == BURST_SIDE_Q || side == BURST_SIDE_K; }

static burst_status check_side(const burst_plan *plan, burst_side side) {
    if (!plan) return base_fail(BURST_INVALID, "plan is NULL");
    if (is_side(side)) return BURST_OK;
    return base_fail(BURST_INVALID, "side is %d: expected BURST_SIDE_Q or BURST_SIDE_K", (int)side);
}

int burst_plan_spans(const burst_plan *plan, burst_side side, int rank, burst_span spans[BURST_SPANS_MAX]) {
    if (!plan || !is_side(side) || rank < 0 || rank >= plan->ranks) return -1;
    const plan_share share = plan_share_of(plan, side, rank);
    for (int n = 0; n < share.count && spans; n++) spans[n] = share.spans[n];
    return share.count;
}

int64_t burst_plan_tokens(const burst_plan *plan, burst_side side) {
    if (!plan || !is_side(side)) return 0;
    return side == BURST_SIDE_Q ? plan->q.tokens : plan->k.tokens;
}

burst_status burst_plan_positions(const burst_plan *plan, burst_side side, int64_t *positions) {
    const burst_status status = check_side(plan, side);
    if (status != BURST_OK) return status;
    const plan_share *share = side == BURST_SIDE_Q ? &plan->q : &plan->k;
    if (!positions && share->tokens) return base_fail(BURST_INVALID, "positions is NULL");
    for (int n = 0; n < share->count; n++)
        for (int64_t i = 0; i < share->spans[n].count; i++)
            *positions++ = share->spans[n].begin + i * share->spans[n].stride;
    return BURST_OK;
}

burst_status burst_plan_labels(const burst_plan *plan, const int64_t *ids, int64_t ignore, int64_t *labels) {
    if (!plan) return base_fail(BURST_INVALID, "plan is NULL");
    const int64_t all = plan->whole.q_tokens;
    if ((!ids && all) || (!labels && plan->q.tokens))
        return base_fail(BURST_INVALID, "%s is NULL", !ids && all ? "ids" : "labels");
    for (int64_t b = 0; b < plan->whole.batch; b++)
        for (int n = 0; n < plan->q.count; n++)
            for (int64_t i = 0; i < plan->q.spans[n].count; i++) {
                const int64_t next = plan->q.spans[n].begin + i * plan->q.spans[n].stride + 1;
                *labels++ = next < all ? ids[b * all + next] : ignore;
            }
    return BURST_OK;
}

int64_t burst_plan_wire_bytes(const burst_plan *plan, unsigned pass, burst_side side) {
    if (!plan || (pass != BURST_PASS_FORWARD && pass != BURST_PASS_BACKWARD)) return 0;
    return plan_wire_bytes(plan, pass, is_side(side) ? side : plan->routes[plan_pass_index(pass)].side);
}

burst_status move_check(const burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *whole,
                        const void *local) {
    size_t bytes = 0;
    const burst_status status = check_side(plan, side);
    if (status != BURST_OK) return status;
    if (root < -1 || root >= plan->ranks)
        return base_fail(BURST_INVALID, "root is %d: expected a rank of %d, or -1 for all", root, plan->ranks);
    const int64_t tokens = side == BURST_SIDE_Q ? plan->whole.q_tokens : plan->whole.k_tokens;
    if (!base_multiply((size_t)plan->whole.batch * (size_t)tokens, token_bytes, &bytes) || bytes > PTRDIFF_MAX)
        return base_fail(BURST_INVALID, "%" PRId64 " x %" PRId64 " tokens of %zu bytes overflow the address space",
                         plan->whole.batch, tokens, token_bytes);
    if (!local && burst_plan_tokens(plan, side) && token_bytes) return base_fail(BURST_INVALID, "local is NULL");
    if (!whole && bytes && (root == -1 || root == plan->rank)) return base_fail(BURST_INVALID, "whole is NULL");
    return BURST_OK;
}
