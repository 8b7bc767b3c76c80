/* agree.c - knows whether all ranks mean the same problem, before any of them makes a plan of it.
 * One idea: what must be equal is a short list of named numbers (arrays are hashed), which every rank gets of every rank;
 * all find the same first difference and say it. Threads, tiles and limits are each rank's own affair, and
 * instruction sets as far as they sum scores alike. */
#include "api.h"

#include <inttypes.h>
#include <string.h>

typedef struct field {
    const char *name;
    bool real, hashed; /* a double; a hash: its value means nothing to people */
} field;

static const field fields[] = {
    {"the version of the library", false, true},
    {"dtype", false, false},
    {"batch", false, false},
    {"q_heads", false, false},
    {"kv_heads", false, false},
    {"q_tokens", false, false},
    {"k_tokens", false, false},
    {"head_dim", false, false},
    {"value_dim", false, false},
    {"scale", true, false},
    {"softcap", true, false},
    {"sink", false, false},
    {"alibi", false, true},
    {"the mask", false, true},
    {"passes", false, false},
    {"partition", false, false},
    {"side_forward", false, false},
    {"side_backward", false, false},
    {"no_overlap", false, false},
    {"narrow_gradients", false, false},
    {"strategy", false, false},
    {"send_o", false, false},
    {"the order in which isa sums scores (amx, avx512bf16 and scalar have their own: ask all ranks for the same isa)",
     false, true},
};
enum { FIELDS = sizeof fields / sizeof *fields };

typedef struct card {
    int64_t values[FIELDS];
} card;
_Static_assert(sizeof(card) <= TRANSPORT_RECORD_MAX, "a card is one record");

/* FNV-1a */
static uint64_t hash(uint64_t so_far, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t n = 0; n < bytes; n++) so_far = (so_far ^ at[n]) * 0x100000001b3u;
    return so_far;
}

static int64_t hash_mask(const burst_mask *mask) {
    if (!mask) return 0;
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    uint64_t h = hash(0xcbf29ce484222325u, mask->starts, (rows + 1) * sizeof *mask->starts);
    return (int64_t)hash(h, mask->slices, mask->starts[rows] * sizeof *mask->slices);
}

static int64_t bits_of(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double real_of(int64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static card card_of(const plan_request *q) {
    const lao_shape *s = &q->shape;
    const char *version = burst_version();
    const int64_t alibi =
        s->alibi ? (int64_t)hash(0xcbf29ce484222325u, s->alibi, (size_t)s->q_heads * sizeof *s->alibi) : 0;
    return (card){{(int64_t)hash(0xcbf29ce484222325u, version, strlen(version)),
                   s->dtype,
                   s->batch,
                   s->q_heads,
                   s->kv_heads,
                   s->q_tokens,
                   s->k_tokens,
                   s->head_dim,
                   s->value_dim,
                   bits_of(s->scale),
                   bits_of(s->softcap),
                   s->sink,
                   alibi,
                   hash_mask(q->mask),
                   q->passes,
                   (int64_t)q->partition,
                   (int64_t)q->sides[0],
                   (int64_t)q->sides[1],
                   q->no_overlap,
                   q->narrow,
                   (int64_t)q->strategy,
                   q->send_o,
                   (int64_t)lao_isa_order(q->local.isa, s->dtype)}};
}

static burst_status say_difference(int index, int rank, int64_t first, int64_t other) {
    const field *f = &fields[index];
    if (f->hashed) return base_fail(BURST_MISMATCH, "%s is not the same on ranks 0 and %d", f->name, rank);
    if (f->real)
        return base_fail(BURST_MISMATCH, "%s is %.17g on rank 0, %.17g on rank %d", f->name, real_of(first),
                         real_of(other), rank);
    return base_fail(BURST_MISMATCH, "%s is %" PRId64 " on rank 0, %" PRId64 " on rank %d", f->name, first, other,
                     rank);
}

enum { COPIES = 1u, NO_TILES = 2u, NO_PAIRS = 4u }; /* what one rank says counts for all */

/* The ways to sum bf16 that this rank cannot go, or must not because its set was asked for. */
static unsigned isa_lacks(const plan_request *request) {
    const lao_order order = lao_isa_order(request->local.isa, request->shape.dtype);
    if (order == LAO_ORDER_PAIRS) return NO_TILES;
    if (order != LAO_ORDER_TILES) return NO_TILES | NO_PAIRS;
    return !request->isa_forced && lao_isa_runs(BURST_ISA_AVX512BF16) ? 0 : NO_PAIRS;
}

/* Machines of different kinds: nobody has asked for a set, so all take what every one has. */
static burst_isa isa_for_all(const plan_request *request, unsigned flags) {
    const lao_order order = lao_isa_order(request->local.isa, request->shape.dtype);
    if (request->isa_forced || (order != LAO_ORDER_TILES && order != LAO_ORDER_PAIRS)) return request->local.isa;
    if (order == LAO_ORDER_TILES && !(flags & NO_TILES)) return request->local.isa;
    return flags & NO_PAIRS ? BURST_ISA_AVX512 : BURST_ISA_AVX512BF16;
}

burst_status request_agree(plan_request *request, burst_status checked) {
    burst_transport *t = request->transport;
    const transport_patience patience = {.timeout = request->timeout};
    unsigned flags = transport_lends(t, (t->rank + 1) % t->size) ? 0 : COPIES;
    for (int peer = 0; peer < t->size && request->strategy != BURST_STRATEGY_RING; peer++)
        if (peer != t->rank && !transport_lends(t, peer)) flags = COPIES; /* these talk to everybody */
    flags |= isa_lacks(request);
    const gao_what what = {.kind = GAO_CREATE};
    burst_status status = gao_agree(t, &patience, checked, what, &flags);
    if (status != BURST_OK) return status;
    /* One link that copies wants its buffers back while others would still be reading them: all lend, or none. */
    request->lends = !(flags & COPIES);
    request->local.isa = isa_for_all(request, flags);
    const card mine = card_of(request);
    status = transport_agree(t, &mine, sizeof mine, &patience);
    if (status != BURST_OK) return status;
    const card *first = transport_record(t, 0, sizeof mine);
    for (int index = 0; index < FIELDS; index++)
        for (int rank = 1; rank < t->size; rank++) {
            const card *other = transport_record(t, rank, sizeof mine);
            if (other->values[index] != first->values[index])
                return say_difference(index, rank, first->values[index], other->values[index]);
        }
    return BURST_OK;
}
