/* system.c - see system.h. Formulas are written from the papers' side, not from the library's: they check what it counts. */
#include "system.h"

#include <stdio.h>
#include <string.h>

#define RING BURST_STRATEGY_RING

const system_kind systems[SYSTEMS] = {
    {.name = "flash", .alone = 1},       /* one rank holds all, the others idle */
    {.name = "rsa", .rival = RIVAL_RSA}, /* the first RingAttention: whole rows of scores */
    {.name = "ring",
     /* blockwise RingAttention: contiguous, K side both ways */
     .partition = BURST_PARTITION_CONTIGUOUS,
     .side_forward = BURST_SIDE_K,
     .side_backward = BURST_SIDE_K,
     .strategy = RING},
    {.name = "ring-zigzag",
     /* the same, zigzag */
     .partition = BURST_PARTITION_ZIGZAG,
     .side_forward = BURST_SIDE_K,
     .side_backward = BURST_SIDE_K,
     .strategy = RING},
    {.name = "ring-striped",
     /* the same, striped */
     .partition = BURST_PARTITION_STRIPED,
     .side_forward = BURST_SIDE_K,
     .side_backward = BURST_SIDE_K,
     .strategy = RING},
    {.name = "burst", .strategy = RING}, /* what the plan chooses */
    {.name = "burst-q",
     /* as in the paper: K side forward, Q side backward */
     .side_forward = BURST_SIDE_K,
     .side_backward = BURST_SIDE_Q,
     .strategy = RING},
    {.name = "burst-o",
     /* burst-q, sending O instead of D */
     .side_forward = BURST_SIDE_K,
     .side_backward = BURST_SIDE_Q,
     .strategy = RING,
     .send_o = 1},
    {.name = "burst-gao", .rival = RIVAL_GAO}, /* burst-q without local tiles: scores of a round are stored */
    {.name = "burst-serial", .strategy = RING, .no_overlap = 1}, /* burst without overlap */
    {.name = "gather", .strategy = BURST_STRATEGY_GATHER},       /* all-gather of K and V */
    {.name = "ulysses", .strategy = BURST_STRATEGY_ULYSSES},     /* all-to-all over heads */
};

const system_kind *system_find(const char *name, size_t length) {
    for (int n = 0; n < SYSTEMS; n++)
        if (strlen(systems[n].name) == length && strncmp(systems[n].name, name, length) == 0) return &systems[n];
    return NULL;
}

void system_apply(const system_kind *s, burst_options *o) {
    o->partition = s->rival ? rival_partition(s->rival) : s->partition;
    o->side_forward = s->side_forward, o->side_backward = s->side_backward;
    o->strategy = s->strategy;
    o->send_o = s->send_o;
    if (s->no_overlap) o->no_overlap = 1;
}

const char *system_refuses(const system_kind *s, const word *w) { return rival_refuses(s->rival, w); }

/* ---- formulas ---------------------------------------------------------------------------------------------------- */

/* As in the tables of bytes: per token and batch row. */
typedef struct widths {
    double q, k, v, o, heads, e, f;
} widths;

static widths widths_of(const word *w) {
    return (widths){(double)(w->heads * w->d),    (double)(w->groups * w->d), (double)(w->groups * w->v),
                    (double)(w->heads * w->v),    (double)w->heads,           (double)data_size(w->dtype),
                    w->dtype == BURST_F64 ? 8 : 4};
}

/* What a block's token sends at each of its P - 1 hops. */
static double ring_token(const system_kind *s, const widths *x, burst_side side, int backward) {
    const double k = (x->k + x->v) * (x->e + (backward ? x->f : 0));
    if (side == BURST_SIDE_K) return k;
    if (!backward) return x->q * x->e + x->f * x->o + 2 * x->f * x->heads;
    if (s->rival) return (x->q + x->o) * x->e + 2 * x->f * x->heads + x->q * x->f; /* lse and D */
    if (s->send_o) return (x->q + 2 * x->o) * x->e + 2 * x->f * x->heads + x->q * x->f;
    return (x->q + x->o) * x->e + 3 * x->f * x->heads + x->q * x->f;
}

static burst_side ring_side(const system_kind *s, const word *w, const widths *x, int backward) {
    if (s->rival == RIVAL_GAO) return backward ? BURST_SIDE_Q : BURST_SIDE_K;
    if (s->rival == RIVAL_RSA) return BURST_SIDE_K;
    const burst_side forced = backward ? s->side_backward : s->side_forward;
    if (forced != BURST_SIDE_AUTO) return forced;
    const double q = (double)w->n * ring_token(s, x, BURST_SIDE_Q, backward);
    return q < (double)w->k * ring_token(s, x, BURST_SIDE_K, backward) ? BURST_SIDE_Q : BURST_SIDE_K;
}

double system_bytes(const system_kind *s, const word *w, int ranks, int backward, int stats) {
    const widths x = widths_of(w);
    const double p = ranks, n = (double)(w->batch * w->n), m = (double)(w->batch * w->k);
    if (s->alone || ranks == 1) return 0;
    if (s->strategy == BURST_STRATEGY_GATHER) return (p - 1) * m * (x.k + x.v) * (x.e + (backward ? x.f : 0));
    if (s->strategy == BURST_STRATEGY_ULYSSES) {
        const double copies = p > (double)w->groups ? p / (double)w->groups : 1, kv = (x.k + x.v) * copies;
        const double gradient = copies > 1 ? x.f : x.e; /* parts of a sum travel as reals */
        const double back_q = backward ? x.q * gradient : 0, back_k = backward ? kv * gradient : 0;
        const double rows = backward || stats ? 3 : 1; /* (m, 1 / sum) and D, or and lse; else lse alone */
        return (p - 1) / p * (n * ((x.q + x.o) * x.e + rows * x.f * x.heads + back_q) + m * (kv * x.e + back_k));
    }
    const burst_side side = ring_side(s, w, &x, backward);
    return (p - 1) * (side == BURST_SIDE_Q ? n : m) * ring_token(s, &x, side, backward);
}

/* Stages of gather and ulysses: their kv heads in at most four. */
static double stages(const system_kind *s, const word *w, int ranks) {
    int64_t heads = w->groups;
    if (s->strategy == BURST_STRATEGY_ULYSSES) heads = w->groups >= ranks ? w->groups / ranks : 1;
    const int64_t each = (heads + 3) / 4;
    return (double)((heads + each - 1) / each);
}

double system_messages(const system_kind *s, const word *w, int ranks, int backward) {
    const widths x = widths_of(w);
    const double hops = (double)ranks * (ranks - 1);
    if (s->alone || ranks == 1) return 0;
    if (s->strategy == BURST_STRATEGY_GATHER) return hops * stages(s, w, ranks) * (backward ? 2 : 1);
    if (s->strategy == BURST_STRATEGY_ULYSSES) return hops * stages(s, w, ranks) * 2;
    if (s->rival == RIVAL_RSA) return hops * 2; /* two rings forward; K, V and their gradients backward */
    return hops * (backward || ring_side(s, w, &x, backward) == BURST_SIDE_Q ? 2 : 1);
}

const char *system_amount(double bytes, char text[32]) {
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    int unit = 0;
    for (bytes /= 1024; bytes >= 1024 && unit < 2; unit++) bytes /= 1024;
    snprintf(text, 32, "%.3g %s", bytes, units[unit]);
    return text;
}

double system_tensor_bytes(const word *w, int64_t n, int64_t m, int backward) {
    const widths x = widths_of(w);
    const double q = (double)(w->batch * n), k = (double)(w->batch * m);
    const double forward = q * ((x.q + x.o) * x.e + x.f * x.heads) + k * (x.k + x.v) * x.e;
    if (!backward) return forward;
    return forward + q * ((x.q + x.o) * x.e + 2 * x.f * x.heads) + k * (x.k + x.v) * x.e;
}
