/* move.c - knows how whole tensors become shares and shares whole tensors again.
 * One idea: a share is a list of spans, so its tokens are copied row by row; between ranks a share is one message, and the
 * rank that has the whole tensor takes the others one after another, through the plan's message memory piece by piece.
 * For setting up, results and tests: simple before fast. */
#include "call.h"

#include <string.h>

typedef struct mover {
    burst_plan *plan;
    burst_side side;
    size_t token_bytes;
    transport_patience patience;
} mover;

static int64_t whole_tokens(const mover *m) {
    return m->side == BURST_SIDE_Q ? m->plan->whole.q_tokens : m->plan->whole.k_tokens;
}

/* A part of every token in a run of local tokens, all batch rows taken as one list; it fits the plan's message memory. */
typedef struct piece {
    int64_t first, count; /* tokens */
    size_t from, bytes;   /* of each */
} piece;

/* Between the whole tensor, by position, and a share of it, which begins with the piece's first token. */
static void copy(const mover *m, int rank, char *whole, char *share, const piece *p, bool out) {
    const plan_share s = plan_share_of(m->plan, m->side, rank);
    for (int64_t n = p->first; n < p->first + p->count; n++) {
        int64_t i = n % s.tokens, span = 0;
        const int64_t row = n / s.tokens;
        while (i >= s.spans[span].count) i -= s.spans[span++].count;
        const int64_t position = s.spans[span].begin + i * s.spans[span].stride;
        char *at = whole + (size_t)(row * whole_tokens(m) + position) * m->token_bytes + p->from;
        char *other = share + (size_t)(n - p->first) * p->bytes;
        memcpy(out ? other : at, out ? at : other, p->bytes);
    }
}

static int64_t share_tokens(const mover *m, int rank) {
    return m->plan->whole.batch * plan_share_of(m->plan, m->side, rank).tokens;
}

/* All of a rank's share; fits only where it need not go through the message memory. */
static piece all_of(const mover *m, int rank) { return (piece){0, share_tokens(m, rank), 0, m->token_bytes}; }

/* The piece that follows p, in a share of so many tokens: many whole tokens, or a part of one that is too large. */
static bool next_piece(const mover *m, int64_t tokens, piece *p) {
    const size_t room = m->plan->memory.wire_bytes;
    p->from += p->bytes;
    if (p->from >= m->token_bytes) p->first += p->count, p->from = 0;
    if (p->first >= tokens) return false;
    const size_t left = m->token_bytes - p->from;
    const int64_t fit = (int64_t)(room / m->token_bytes), rest = tokens - p->first;
    p->bytes = left < room ? left : room;
    p->count = fit == 0 ? 1 : fit < rest ? fit : rest;
    return true;
}

static burst_status exchange(const mover *m, int peer, void *data, size_t bytes, bool sending) {
    burst_transport *t = m->plan->transport;
    transport_request r = {.posted = false};
    burst_status status = sending ? transport_send(t, peer, TRANSPORT_MOVE, data, bytes, &r)
                                  : transport_receive(t, peer, TRANSPORT_MOVE, data, bytes, &r);
    if (status != BURST_OK) return transport_fail(t, status);
    status = transport_wait(t, &r, &m->patience);
    if (status != BURST_OK && !transport_cancel(t, &r)) m->plan->stuck = true;
    return status;
}

/* This rank's share of a piece, which lies token by token in the share, to or from the message memory. */
static void copy_share(const mover *m, char *share, char *buffer, const piece *p, bool out) {
    for (int64_t n = 0; n < p->count; n++) {
        char *at = share + (size_t)(p->first + n) * m->token_bytes + p->from, *other = buffer + (size_t)n * p->bytes;
        memcpy(out ? other : at, out ? at : other, p->bytes);
    }
}

/* Between the rank that has the whole tensor and one that has a share of it. */
static burst_status carry_share(const mover *m, int root, int rank, char *whole, char *share, bool to_root) {
    const bool at_root = m->plan->rank == root;
    char *buffer = m->plan->memory.wire;
    piece p = {0, 0, m->token_bytes, 0};
    while (m->token_bytes && next_piece(m, share_tokens(m, rank), &p)) {
        if (at_root && !to_root) copy(m, rank, whole, buffer, &p, true);
        if (!at_root && to_root) copy_share(m, share, buffer, &p, true);
        const burst_status status =
            exchange(m, at_root ? rank : root, buffer, (size_t)p.count * p.bytes, at_root != to_root);
        if (status != BURST_OK) return status;
        if (at_root && to_root) copy(m, rank, whole, buffer, &p, false);
        if (!at_root && !to_root) copy_share(m, share, buffer, &p, false);
    }
    return BURST_OK;
}

static burst_status begin(const mover *m, int kind, int root, burst_status checked) {
    const gao_what what = {m->plan->number, kind + (m->side == BURST_SIDE_K), root, (int64_t)m->token_bytes};
    unsigned flags = 0;
    return gao_agree(m->plan->transport, &m->patience, checked, what, &flags);
}

static burst_status end(const mover *m, burst_status status) {
    return status == BURST_OK ? call_agree_end(m->plan) : status;
}

burst_status gao_scatter(burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *whole,
                         void *local, burst_status checked) {
    const mover m = {plan, side, token_bytes, call_patience(plan)};
    char *all = (char *)(uintptr_t)whole; /* only read */
    burst_status status = begin(&m, GAO_SCATTER_Q, root, checked);
    if (status != BURST_OK) return status;
    const piece mine = all_of(&m, plan->rank);
    if (root == -1 || root == plan->rank) copy(&m, plan->rank, all, local, &mine, true);
    for (int rank = 0; rank < plan->ranks && root >= 0 && status == BURST_OK; rank++)
        if (rank != root && (plan->rank == root || plan->rank == rank))
            status = carry_share(&m, root, rank, all, local, false);
    return end(&m, status);
}

burst_status gao_gather(burst_plan *plan, burst_side side, int root, size_t token_bytes, const void *local, void *whole,
                        burst_status checked) {
    const mover m = {plan, side, token_bytes, call_patience(plan)};
    char *mine = (char *)(uintptr_t)local; /* only read */
    burst_status status = begin(&m, GAO_GATHER_Q, root, checked);
    if (status != BURST_OK) return status;
    for (int to = root == -1 ? 0 : root; to < (root == -1 ? plan->ranks : root + 1) && status == BURST_OK; to++) {
        const piece own = all_of(&m, to);
        if (plan->rank == to) copy(&m, to, whole, mine, &own, false);
        for (int rank = 0; rank < plan->ranks && status == BURST_OK; rank++)
            if (rank != to && (plan->rank == to || plan->rank == rank))
                status = carry_share(&m, to, rank, whole, mine, true);
    }
    return end(&m, status);
}
