/* plan.h - decides: which pairs are allowed (masks), which rectangles they make, what all of it costs.
 * The only header of this folder that other folders see. Pure data: nothing here computes attention or moves bytes. */
#ifndef BURST_PLAN_H
#define BURST_PLAN_H

#include <stdatomic.h>

#include "lao.h"
#include "transport.h"

/* A million million tokens: positions, distances and their sums stay far from overflow. */
#define PLAN_TOKENS_MAX ((int64_t)1 << 40)

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* Slices are trimmed: every query of a slice sees a key of it and every key is seen; lo and hi are finite. */
struct burst_mask {
    int64_t q_tokens, k_tokens;
    int64_t batch;       /* 0: one list serves every batch row; else one list per row */
    size_t *starts;      /* list b is slices[starts[b]] .. slices[starts[b + 1] - 1] */
    burst_slice *slices; /* pairwise disjoint within a list */
};

/* Allowed pairs of one head over `batch` rows; false if there are more than an int64_t holds. */
bool mask_pairs(const burst_mask *mask, int64_t batch, int64_t *pairs);

/* Slices in the making. Zero-initialised is empty. */
typedef struct slice_list {
    burst_slice *items;
    size_t count, capacity;
} slice_list;

burst_status slice_append(slice_list *list, const burst_slice *slice);
/* Shrinks the slice to the rows and keys that meet, makes lo and hi finite; false if no pair is left. */
bool slice_trim(burst_slice *slice);
bool slice_overlaps(const burst_slice *a, const burst_slice *b);
/* Of trimmed slices: two that share a pair, if any do. BURST_MEMORY if there is none to sort them with. */
burst_status slice_find_overlap(const burst_slice *slices, size_t count, bool *found, size_t *first, size_t *second);
/* Pairs of a trimmed slice, added to *pairs; false (and *pairs untouched) if that overflows. */
bool slice_count_pairs(const burst_slice *slice, int64_t *pairs);

/* ---- partitions -------------------------------------------------------------------------------------------------- */

/* The tokens of one rank on one side. */
typedef struct plan_share {
    int count;
    int64_t tokens;
    burst_span spans[BURST_SPANS_MAX];
} plan_share;

plan_share partition_share(burst_partition kind, int64_t tokens, int ranks, int rank);
/* The rectangles of a list of slices between two shares of equal strides, of local queries first .. last-1 only. Returns
 * how many; fills rects and adds to *pairs unless NULL. */
int64_t partition_rects(const burst_slice *slices, size_t count, const plan_share *q, const plan_share *k,
                        int64_t first, int64_t last, lao_rect *rects, int64_t *pairs);
/* Allowed pairs of a head over `batch` rows between two shares, of local queries first .. last-1. */
int64_t partition_pairs(const burst_mask *mask, int64_t batch, const plan_share *q, const plan_share *k, int64_t first,
                        int64_t last);
/* How much longer the ring takes than if all ranks always had the same to do: 1 is ideal. */
double partition_balance(const burst_mask *mask, burst_partition kind, int ranks);
burst_partition partition_choose(const burst_mask *mask, int ranks);

/* ---- routes ------------------------------------------------------------------------------------------------------ */

/* One thing to compute: this rank's block (a part of it) or a visitor, against what stays at home. */
typedef struct plan_step {
    int visitor;          /* the rank whose block it is */
    int64_t first, last;  /* local queries; all of them but where the own block is parted */
    int64_t pairs, rects; /* allowed pairs of a head over all batch rows; 0: nothing to compute */
    size_t local;         /* number of its local attention */
} plan_step;

/* A pass of the ring: step 0 is (the first part of) the own block, step t visitor rank + t, and a last one the rest of the
 * own block, which hides the way home of what others have added. One rank: step 0 is all. */
typedef struct plan_route {
    burst_side side; /* which travels */
    plan_step *steps;
    int count;     /* ranks, + 1 if the own block is parted */
    int64_t pairs; /* of all steps */
} plan_route;

/* Parts of what travels lie behind one another, reals first, each [batch][heads][tokens][dim]. */
typedef struct plan_part {
    int64_t heads, dim;
    size_t element;
} plan_part;
enum { PLAN_PARTS_MAX = 4 };
typedef struct plan_set {
    int count;
    plan_part parts[PLAN_PARTS_MAX];
} plan_set;

/* What a visitor brings, and what is added to it on its way. In the order:
 *   forward  K side: K, V;                     nothing
 *   forward  Q side: Q;                        acc, (m, sum)
 *   backward K side: K, V;                     d_k, d_v
 *   backward Q side: (m, 1/sum), D, Q, d_o;    d_q       (send_o: (m, 1/sum), Q, d_o, o;  d_q) */
plan_set route_read_set(const burst_plan *plan, unsigned pass, burst_side side);
plan_set route_write_set(const lao_shape *shape, unsigned pass, burst_side side, bool narrow);
size_t route_set_bytes(const plan_set *set, int64_t batch, int64_t tokens);

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* What a plan is made from; checked by the caller. */
typedef struct plan_request {
    lao_shape shape;        /* of the whole problem; defaults resolved; lists are made here; alibi is copied */
    const burst_mask *mask; /* NULL: full */
    burst_transport *transport;
    lao_options local; /* isa is chosen; the memory limit is that of the whole plan */
    bool isa_forced;
    unsigned passes; /* BURST_PASS_* */
    burst_partition partition;
    burst_side sides[2]; /* forward, backward */
    bool no_overlap, narrow, send_o;
    burst_strategy strategy; /* never AUTO */
    bool lends;              /* every rank can read what those have that it receives from */
    double timeout;
    void (*progress)(void *user, double done);
    void *progress_user;
    const volatile int *cancel;
} plan_request;

/* Memory of the ring or the exchange, for the pass that needs more. */
typedef struct plan_memory {
    size_t home_bytes, wire_bytes;
    void *home; /* what stays */
    void *wire; /* what is sent and received */
} plan_memory;

enum { PLAN_WIRE_LEAST = 4096 }; /* bytes: tensors are scattered and gathered through the message memory, too */
enum { PLAN_REQUESTS = 5 };      /* kinds of messages of a call: the ring has 4, the exchange 5 */

struct burst_plan {
    lao_shape whole; /* the problem; its lists are not set */
    lao_shape shape; /* this rank's part of it */
    lao_options options;
    unsigned passes;
    burst_partition partition;
    plan_share q, k;      /* this rank's tokens */
    plan_route routes[2]; /* forward, backward */
    plan_step *steps;     /* of both routes */
    bool no_overlap, narrow, send_o, lends;
    burst_strategy strategy;
    double timeout, balance;
    float *alibi;
    lao_rect *rects;
    size_t slice_count, list_count; /* list_count: 1, or one per batch row */
    lao_list *lists;
    int64_t pairs;    /* of the whole problem */
    size_t own_bytes; /* allocated here, without the local attention's and the ring's */
    size_t local_count;
    lao *local;
    plan_memory memory;
    burst_transport *transport; /* NULL: one rank */
    int rank, ranks;
    int64_t number;              /* of this plan on its transport */
    transport_request *requests; /* [PLAN_REQUESTS * (ranks + 1)] of the ring or the exchange */
    double *sinks;               /* [q_heads], iff there are sinks, ranks and a backward pass */
    bool stuck;                  /* the transport may still touch memory of a failed call */
    burst_report report;
    void (*progress)(void *user, double done);
    void *progress_user;
    const volatile int *cancel;
    atomic_bool busy; /* a call is running */
};

static inline int plan_pass_index(unsigned pass) { return pass == BURST_PASS_FORWARD ? 0 : 1; }
/* Gather or ulysses, with somebody to exchange with; else the ring, or one rank. */
static inline bool plan_exchanges(const burst_plan *plan) {
    return plan->ranks > 1 && plan->strategy != BURST_STRATEGY_RING;
}

burst_status plan_create(const plan_request *request, burst_plan **plan);
void plan_free(burst_plan *plan);
size_t plan_bytes(const burst_plan *plan);
size_t plan_stats_bytes(const burst_plan *plan);
size_t plan_describe(const burst_plan *plan, char *text, size_t size);
/* What this rank sends in a pass, by the formula. */
int64_t plan_wire_bytes(const burst_plan *plan, unsigned pass, burst_side side);
/* Can the sizes of all buffers of the ring or the exchange be counted? */
bool plan_messages_fit(const burst_plan *plan);
/* Pairs that this rank computes in a pass, over all heads. */
int64_t plan_work(const burst_plan *plan, unsigned pass);
/* The share of a rank; tokens of a block. */
plan_share plan_share_of(const burst_plan *plan, burst_side side, int rank);

/* Steps of both passes and their local attentions' shapes: routes.c, for plan.c. */
burst_status route_make(burst_plan *plan, const burst_mask *mask, const burst_side sides[2]);
/* Buffers of one pass on this rank; with memory->home and wire NULL it only measures. */
typedef struct plan_buffers {
    void *read[2]; /* the own block is packed in the first; visitors come into them in turn, unless they are borrowed */
    void *write[3]; /* what is added; received in the last, unless borrowed, computed in the others in turn */
    void *sums;     /* narrow gradients only: reals, of what is added */
    /* at home */
    lao_state state;       /* forward */
    void *ms, *dots;       /* backward: of the own queries */
    void *d_q, *d_k, *d_v; /* backward: sums so far */
} plan_buffers;
void route_buffers(const burst_plan *plan, unsigned pass, const plan_memory *memory, plan_buffers *buffers,
                   size_t *home_bytes, size_t *wire_bytes);

/* ---- exchanges: gather and ulysses (stages.c) -------------------------------------------------------------------- */

/* The heads that a rank computes in a stage. */
typedef struct stage_heads {
    int64_t q_first, q_count, k_first, k_count;
} stage_heads;

/* A tensor that is exchanged: [batch][heads][tokens][dim], heads and tokens those of its side. Reals come first in a set,
 * so that all parts of a message are aligned. */
typedef struct stage_part {
    burst_side side;
    int64_t dim;
    size_t element;
} stage_part;
enum { STAGE_PARTS_MAX = 6 };
typedef struct stage_set {
    int count;
    stage_part parts[STAGE_PARTS_MAX];
} stage_set;

/* What a stage reads of all ranks' tokens, and what it finds for them. In the order:
 *   gather  forward:  K, V;                             nothing (queries are at home)
 *   gather  backward: K, V;                             d_k, d_v
 *   ulysses forward:  Q, K, V;                          (m, 1/sum), lse, o
 *   ulysses backward: (m, 1/sum), D, Q, d_o, K, V;      d_k, d_v, d_q
 * Gradients travel as elements where they are complete and not `added` to what is there; where several ranks find parts of
 * some, all travel as reals. */
stage_set stage_read_set(const burst_plan *plan, unsigned pass);
stage_set stage_write_set(const burst_plan *plan, unsigned pass, bool stats, bool lse, bool added);
int stage_count(const burst_plan *plan);
stage_heads stage_heads_of(const burst_plan *plan, int rank, int stage);
/* Of the first `parts` parts: a message with some tokens of each side. */
size_t stage_bytes(const burst_plan *plan, const stage_set *set, int parts, const stage_heads *heads, int64_t q_tokens,
                   int64_t k_tokens);
/* Message between a rank's tokens and a rank's heads. */
size_t stage_message_bytes(const burst_plan *plan, const stage_set *set, int token_rank, int head_rank, int stage);
int64_t stage_wire_bytes(const burst_plan *plan, unsigned pass);
/* Where a rank's tokens are put among all tokens of a side: its spans, in their order. */
plan_share stage_places(const burst_plan *plan, burst_side side, int rank);
burst_status stage_make(burst_plan *plan, const burst_mask *mask);

typedef struct stage_buffers {
    void *send[2];   /* a stage's messages to every rank, this one too; in turn. Gather: one message for all */
    void *receive;   /* the next stage's messages, unless they are borrowed */
    void *whole;     /* the read set of a stage, of all tokens */
    void *found;     /* its write set, of all tokens */
    void *back;      /* messages home, to every rank, this one too */
    void *home;      /* those that come home, unless they are borrowed */
    void *sums;      /* reals: parts of a gradient are added up */
    void *ms, *dots; /* of the own queries: all heads (ulysses, backward), or those of a stage (gather) */
    void *lse, *d_q; /* gather: of the own queries and a stage's heads */
} stage_buffers;
void stage_buffers_of(const burst_plan *plan, unsigned pass, const plan_memory *memory, stage_buffers *buffers,
                      size_t *home_bytes, size_t *wire_bytes);
/* Of the stages' local attentions: behind them, ulysses' backward has one for the own queries of all heads. */
static inline size_t stage_home_local(const burst_plan *plan) { return (size_t)stage_count(plan); }

#endif
