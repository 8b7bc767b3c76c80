/* burst.h - exact softmax attention, forward and backward.
 *
 * THE IDEA. Attention is computed tile by tile in cache and folded into a running (accumulator, maximum, sum) per query
 * row, so no score matrix is ever stored. The sequence can be split over ranks: each keeps one side of its block at home,
 * and the other travels round a ring. What is not supported is refused with a sentence; nothing is approximated.
 *
 * THE NOUNS.
 *   problem    what is computed: sizes, type, scale, score modifiers, mask.
 *   mask       which query may see which key: a list of disjoint banded slices, made by a builder.
 *   rank       who computes a share of the sequence: this process, one of its threads, or an MPI process.
 *   transport  one rank's end of the lines to the others. NULL, or "self": one rank, this process.
 *   plan       a problem made ready on this machine: kernels, tiles, threads, all memory. It serves any number of
 *              forward and backward calls in any order (many layers, one plan), one call at a time; different plans may
 *              run at the same time. Nothing is allocated after it is made (but OpenMP starts its threads at a thread's
 *              first call, and over MPI, ranks of one node see each other's memory from then on, and MPI does as it likes).
 *   status     every function that can fail returns one; burst_last_error() has the sentence, per thread.
 *
 * WHAT IS COMPUTED, for query q and key k of one batch row, query head h, kv head h / (H / G):
 *   s = scale * dot(q, k);  softcap: s = cap * tanh(s / cap);  ALiBi: s -= slope[h] * |k - q - diag|;  then the mask;
 *   lse = ln(sum e^s + e^sink[h]) (the sink only if the problem has one),  o = sum e^(s - lse) v.
 *   A row that sees no key: o = 0, lse = sink[h] or -inf, gradients 0.
 *   diag is where distance 0 lies: N_k - N_q when aligned to the end (the default), 0 when aligned to the start; per
 *   document when packed.
 *
 * LAYOUT. A tensor is [batch][tokens][heads][dim] unless it says its strides; dim is contiguous. lse is
 * [batch][heads][N_q] in f32 (f64 for f64 problems), and so are sink and d_sink: [heads]. With several ranks, tokens and
 * N_q are the rank's own, in the order of its spans; sinks are the same on all ranks, and so is d_sink: the total.
 *
 * A WHOLE EXAMPLE: causal attention over 4096 tokens, 8 query heads on 2 kv heads, head dim 64.
 *
 *   burst_mask_spec causal = BURST_MASK_SPEC_INIT;
 *   causal.q_tokens = causal.k_tokens = 4096;
 *   causal.causal = 1;
 *   burst_mask *mask = NULL;
 *   burst_problem problem = BURST_PROBLEM_INIT;
 *   problem.q_heads = 8, problem.kv_heads = 2;
 *   problem.q_tokens = problem.k_tokens = 4096;
 *   problem.head_dim = 64;
 *   burst_plan *plan = NULL;
 *   burst_forward_args args = BURST_FORWARD_ARGS_INIT;
 *   args.q.data = q, args.k.data = k, args.v.data = v, args.o.data = o;
 *   burst_status status = burst_mask_create(&causal, &mask);
 *   problem.mask = mask;
 *   if (status == BURST_OK) status = burst_plan_create(&problem, NULL, NULL, &plan);
 *   if (status == BURST_OK) status = burst_forward(plan, &args);
 *   if (status != BURST_OK) fprintf(stderr, "%s: %s\n", burst_status_name(status), burst_last_error());
 *   burst_plan_free(plan);
 *   burst_mask_free(mask);
 *
 * STRUCTS that start with struct_size have an _INIT; 0 means "choose for me" where nothing else is said. free(NULL) is fine.
 */
#ifndef BURST_H
#define BURST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define BURST_VERSION_MAJOR 0
#define BURST_VERSION_MINOR 1
#define BURST_VERSION_PATCH 0

#if defined(BURST_BUILDING)
#define BURST_API __attribute__((visibility("default")))
#else
#define BURST_API
#endif

/* ---- status ------------------------------------------------------------------------------------------------------ */

/* name, number, meaning */
#define BURST_STATUS_MAP(X)                                                                                            \
    X(OK, 0, "success")                                                                                                \
    X(INVALID, 1, "the caller said something that cannot be meant")                                                    \
    X(UNSUPPORTED, 2, "meaningful, but not offered here")                                                              \
    X(MEMORY, 3, "not enough memory, or the memory limit is too small")                                                \
    X(CANCELLED, 4, "the cancel flag was set; outputs are undefined")                                                  \
    X(MISMATCH, 5, "ranks disagree about the problem")                                                                 \
    X(PEER, 6, "another rank failed; the sentence names it")                                                           \
    X(TRANSPORT, 7, "bytes could not be carried between ranks")

typedef enum burst_status {
#define BURST_STATUS_ENUM(name, number, meaning) BURST_##name = number,
    BURST_STATUS_MAP(BURST_STATUS_ENUM)
#undef BURST_STATUS_ENUM
} burst_status;

BURST_API const char *burst_status_name(burst_status status); /* "BURST_INVALID" */
/* The sentence of this thread's last failure; "" if none. Valid until this thread's next call into the library. */
BURST_API const char *burst_last_error(void);
BURST_API const char *burst_version(void); /* "0.1.0" */

/* ---- element types and instruction sets -------------------------------------------------------------------------- */

typedef enum burst_dtype {
    BURST_F32 = 0,
    BURST_BF16 = 1,
    BURST_F16 = 2,
    BURST_F64 = 3 /* for tests and science: exact arithmetic in double, not tuned */
} burst_dtype;

typedef enum burst_isa {
    BURST_ISA_AUTO = 0, /* the environment's BURST_ISA if set, else the best this CPU has */
    BURST_ISA_SCALAR = 1,
    BURST_ISA_AVX2 = 2,
    BURST_ISA_AVX512 = 3,
    BURST_ISA_NEON = 4,
    /* Tile registers for bf16; f32 and f16 take AVX-512 then. Linux gives them to a process that asks, for good: the first bf16
     * plan, or burst_isa_supported, asks, and from then on sigaltstack() wants AT_MINSIGSTKSZ bytes (some 12 KB). */
    BURST_ISA_AMX = 5,
    /* Dot products of bf16; f32 and f16 take AVX-512 then. Here and with AMX, bf16 numbers and sums of scores below 2^-126 count as
     * 0: ask for AVX512 where a huge scale makes something of them. */
    BURST_ISA_AVX512BF16 = 6 /* f64 is plain C on every CPU: its plans say SCALAR, whatever is asked for */
} burst_isa;

BURST_API const char *burst_isa_name(burst_isa isa); /* "avx2"; NULL if unknown */
BURST_API int burst_isa_supported(burst_isa isa);    /* 1 if built in and this CPU runs it; of AUTO 0 */

/* ---- masks ------------------------------------------------------------------------------------------------------- */

/* Query q may see key k iff q_begin <= q < q_end, k_begin <= k < k_end and lo <= k - q <= hi. */
typedef struct burst_slice {
    int64_t q_begin, q_end, k_begin, k_end;
    int64_t lo, hi; /* INT64_MIN, INT64_MAX: unbounded */
    int64_t diag;   /* where k - q counts as distance 0; only ALiBi looks at it. At most 2^40 either way */
} burst_slice;

typedef enum burst_align {
    BURST_ALIGN_END = 0,  /* the last query stands at the last key: off = N_k - N_q */
    BURST_ALIGN_START = 1 /* the first query stands at the first key: off = 0 */
} burst_align;

/* A mask by its parts. A pair is allowed iff every part allows it. With t = k - q - off (per document when packed) and
 * k counted from the start of its document:
 *   causal        t <= 0
 *   window        -window_left <= t <= window_right; sink_tokens keys at the start are exempt from the left edge
 *   prefix        k < prefix or t <= 0
 *   documents     q and k in the same document
 * With nothing set the mask is full; causal with a prefix is causal: a prefix-LM sets the prefix alone. At most 2^40
 * tokens on either side. */
typedef struct burst_mask_spec {
    size_t struct_size;
    int64_t q_tokens, k_tokens;
    burst_align align;
    int causal;
    int64_t window_left, window_right; /* -1: unbounded */
    int64_t sink_tokens;               /* 0: none; needs no window, but does nothing without one */
    int64_t prefix;                    /* -1: none */
    int64_t documents;                 /* 0: not packed; else both arrays have documents + 1 entries, 0 first, N last */
    const int64_t *q_offsets, *k_offsets; /* NULL if not packed; documents may be empty on either side */
} burst_mask_spec;
#define BURST_MASK_SPEC_INIT                                                                                           \
    { sizeof(burst_mask_spec), 0, 0, BURST_ALIGN_END, 0, -1, -1, 0, -1, 0, NULL, NULL }

typedef struct burst_mask burst_mask; /* immutable; plans keep their own copy */

BURST_API burst_status burst_mask_create(const burst_mask_spec *spec, burst_mask **mask);
/* Any list of disjoint slices; overlapping ones are refused. */
BURST_API burst_status burst_mask_create_slices(int64_t q_tokens, int64_t k_tokens, const burst_slice *slices,
                                                size_t count, burst_mask **mask);
/* Block-sparse: bitmap[i * ceil(k_tokens / block) + j] != 0 lets query block i see key block j, as far as the parts of
 * `spec` (it also gives the sizes) allow it too. */
BURST_API burst_status burst_mask_create_blocks(const burst_mask_spec *spec, int64_t block, const unsigned char *bitmap,
                                                burst_mask **mask);
/* One question, several answers, q_tokens = k_tokens = question + sum of answers: the question is causal, every answer
 * sees the question and, causally, itself. */
BURST_API burst_status burst_mask_create_shared_question(int64_t question, const int64_t *answers, size_t count,
                                                         burst_mask **mask);
/* Padded batches: row b has q_lengths[b] queries and k_lengths[b] keys at the start of its q_tokens and k_tokens, and
 * the parts of `spec` hold within them (aligned to the end: off = k_lengths[b] - q_lengths[b]). Documents cannot be
 * combined with it. The mask is for problems of this batch only. */
BURST_API burst_status burst_mask_create_lengths(const burst_mask_spec *spec, int64_t batch, const int64_t *q_lengths,
                                                 const int64_t *k_lengths, burst_mask **mask);
/* The slices of one batch row (any row if all share one list), without empty ones and shrunk to the rows and keys that
 * meet, lo and hi finite; *count is set, the pointer lives as long as the mask. NULL if there are none. */
BURST_API const burst_slice *burst_mask_slices(const burst_mask *mask, int64_t batch_row, size_t *count);
BURST_API void burst_mask_free(burst_mask *mask);

/* ---- problem ----------------------------------------------------------------------------------------------------- */

typedef struct burst_problem {
    size_t struct_size;
    burst_dtype dtype;
    int64_t batch;          /* B */
    int64_t q_heads;        /* H, a multiple of kv_heads */
    int64_t kv_heads;       /* G; 0: as q_heads */
    int64_t q_tokens;       /* N_q, may be 0 */
    int64_t k_tokens;       /* N_k, may be 0 */
    int64_t head_dim;       /* d, 1 to 512 */
    int64_t value_dim;      /* dv, 1 to 512; 0: as head_dim */
    double scale;           /* 0: 1 / sqrt(d) */
    double softcap;         /* 0: none */
    const float *alibi;     /* slopes, one per query head, or NULL; copied */
    int sink;               /* 1: every query head has a learnable sink logit, given at each call */
    const burst_mask *mask; /* NULL: full; copied */
    const void *bias;       /* a dense additive bias is not supported: must be NULL */
} burst_problem;
#define BURST_PROBLEM_INIT                                                                                             \
    { sizeof(burst_problem), BURST_F32, 1, 1, 0, 0, 0, 0, 0, 0.0, 0.0, NULL, 0, NULL, NULL }

/* ---- transport --------------------------------------------------------------------------------------------------- */

/* A transport is one rank's end of the lines to all ranks. Plans over it are used by one thread at a time, and all ranks
 * make the same plans and the same calls in the same order. A call that any rank refuses, or that ranks disagree about, fails
 * on all before anything is sent, and nothing is lost. When a rank fails or is cancelled in the midst of a call, every
 * rank's call returns an error and the transport is broken: its plans and itself accept nothing but free. */
typedef struct burst_transport burst_transport;

BURST_API burst_status burst_transport_create_self(burst_transport **transport);
/* Ranks that are threads of this process: fills transports[0 .. size-1], one for each thread. Visitors are read where they
 * lie, nothing is copied. Free each one; the last takes what they share with it. */
#define BURST_THREAD_RANKS_MAX 256
BURST_API burst_status burst_transport_create_threads(int size, burst_transport **transports);
/* Starts `ranks` threads, calls body(transport, user) in each, frees the transports, returns when all have returned: the
 * first status that is not BURST_OK, by rank, that some body returned. */
BURST_API burst_status burst_threads_run(int ranks, burst_status (*body)(burst_transport *transport, void *user),
                                         void *user);
/* Rank `rank` of `size`, all on this node as with threads, with nobody at the other ends: plans can be made, printed and
 * asked, and take no memory for their work; calls are refused. */
BURST_API burst_status burst_transport_create_dry(int rank, int size, burst_transport **transport);

/* Your own. Messages between two ranks on one channel (0 to 4) arrive in the order in which they were posted; channels are
 * independent, and so are directions. Posts do not wait. Calls come from one thread at a time. A function that fails
 * returns BURST_TRANSPORT (or BURST_PEER if the other rank is gone). Messages may have 0 bytes. */
typedef struct burst_carrier {
    size_t struct_size;
    /* Begins to send or to receive; the memory is the transport's until `test` has said done. *ticket names the request. */
    burst_status (*send)(void *self, int peer, int channel, const void *data, size_t bytes, uint64_t *ticket);
    burst_status (*receive)(void *self, int peer, int channel, void *data, size_t bytes, uint64_t *ticket);
    /* *done = 1 if the request is over: the ticket is then void, unless it borrowed. Also lets what is on its way move
     * on. A request whose test fails is not over: it is given up by `cancel`, like any other. */
    burst_status (*test)(void *self, uint64_t ticket, int *done);
    /* Gives a request up if that is still possible: 1, the memory is the caller's again; 0, it may still be touched. */
    int (*cancel)(void *self, uint64_t ticket);
    void (*close)(void *self); /* or NULL */
    /* All four or none: memory that peers can read where it lies. `lends` says whether this peer's can be read here;
     * `borrow` is a receive without a place, after `test` said done `borrowed` shows the sender's bytes, and `give_back`
     * lets the sender's request be done. What was borrowed may be sent on. */
    int (*lends)(void *self, int peer);
    burst_status (*borrow)(void *self, int peer, int channel, size_t bytes, uint64_t *ticket);
    void *(*borrowed)(void *self, uint64_t ticket);
    void (*give_back)(void *self, uint64_t ticket);
    /* Both or none: the memory that messages are sent from. 64-byte aligned. */
    void *(*allocate)(void *self, size_t bytes);
    void (*release)(void *self, void *memory, size_t bytes);
} burst_carrier;
#define BURST_CARRIER_INIT                                                                                             \
    { sizeof(burst_carrier), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }

/* For a carrier's functions: the sentence of a failure. Returns the status. */
BURST_API burst_status burst_carrier_fail(burst_status status, const char *sentence);
/* here: how many of the ranks, this one among them, share the cores that this process may use; 0: 1. If it fails, `close` is
 * not called: self stays the caller's. */
BURST_API burst_status burst_transport_create_custom(const burst_carrier *carrier, void *self, int rank, int size,
                                                     int here, burst_transport **transport);
BURST_API int burst_transport_rank(const burst_transport *transport);
BURST_API int burst_transport_size(const burst_transport *transport);
/* After the plans that use it. What a failed transport may still touch (a carrier's pending messages) is not freed: it
 * is lost on purpose. */
BURST_API void burst_transport_free(burst_transport *transport);

/* ---- plan -------------------------------------------------------------------------------------------------------- */

#define BURST_PASS_FORWARD 1u
#define BURST_PASS_BACKWARD 2u

/* How tokens are dealt out to ranks; queries and keys alike, each side by its own length. Any length, any number of ranks:
 * shares differ by a token or two, and may be empty. */
typedef enum burst_partition {
    BURST_PARTITION_AUTO = 0,       /* the one that balances this mask best; the simplest of equals */
    BURST_PARTITION_CONTIGUOUS = 1, /* rank r has the r-th piece */
    BURST_PARTITION_ZIGZAG = 2,     /* of 2 P pieces, rank r has the r-th from either end */
    BURST_PARTITION_STRIPED = 3     /* rank r has tokens r, r + P, r + 2 P, .. */
} burst_partition;

/* A pass lets one side of the attention travel round the ring of ranks, and keeps the other at home. */
typedef enum burst_side {
    BURST_SIDE_AUTO = 0, /* the one with fewer bytes on the wire */
    BURST_SIDE_Q = 1,    /* Q, dO, .. travel, with o or d_q growing on the way */
    BURST_SIDE_K = 2     /* K, V travel, with d_k and d_v growing on the way */
} burst_side;

/* How ranks share the work. The ring is what Burst is; the others are the ways of other systems, whole and exact. */
typedef enum burst_strategy {
    BURST_STRATEGY_AUTO = 0, /* the ring */
    BURST_STRATEGY_RING = 1, /* one side stays, the other travels from rank to rank */
    BURST_STRATEGY_GATHER =
        2, /* every rank gets K and V of all ranks, a few heads at a time, and sends d_k and d_v back */
    BURST_STRATEGY_ULYSSES =
        3 /* every rank gets all tokens of some heads, and sends the results back; q_heads must be a
                                  multiple of the ranks, and kv_heads a multiple or a divisor of them */
} burst_strategy;

typedef struct burst_options {
    size_t struct_size;
    int threads; /* 0: the cores this process may use, shared out among the ranks that may use the same ones; results have
                    the same bits for any number */
    burst_isa isa;
    unsigned passes;     /* BURST_PASS_*, which calls the plan must serve; 0: both. Backward takes more memory. */
    size_t memory_limit; /* bytes of workspace at most; 0: no limit */
    int64_t q_tile,
        k_tile; /* forward: queries and keys of a tile, rounded up to 48; 0: chosen. May change last bits. */
    /* Called from the thread that called forward or backward, between tiles, at most every few milliseconds, with the
     * share of the work that is done, 0 to 1. It must not call into this plan. */
    void (*progress)(void *user, double done);
    void *progress_user;
    const volatile int *cancel; /* if it becomes non-zero, the call returns BURST_CANCELLED within a few tiles */
    /* With more than one rank; these, and passes, must be the same on all, but for the timeout: */
    burst_partition partition;
    burst_side side_forward, side_backward;
    int no_overlap;       /* 1: wait for every message before computing on; to see what overlap is worth */
    int narrow_gradients; /* 1: gradients travel in 16 bits (for 16-bit problems): fewer bytes, and roundings at every hop */
    burst_strategy strategy; /* sides and narrow gradients are the ring's */
    int send_o; /* 1: with side_backward Q, o travels and D is made from it by every host; to see what sending D saves */
    /* Seconds that a call waits for ranks that show no sign of life; 0: for ever. Longer than a block takes to travel. */
    double timeout;
} burst_options;
#define BURST_OPTIONS_INIT                                                                                             \
    {                                                                                                                  \
        sizeof(burst_options), 0, BURST_ISA_AUTO, 0u, 0, 0, 0, NULL, NULL, NULL, BURST_PARTITION_AUTO,                 \
            BURST_SIDE_AUTO, BURST_SIDE_AUTO, 0, 0, BURST_STRATEGY_AUTO, 0, 300.0                                      \
    }

typedef struct burst_plan burst_plan;

/* transport NULL: one rank, self. options NULL: all chosen. With more than one rank all of them call this with the same
 * problem (the whole one), passes and options over ranks, and all succeed or all fail: BURST_MISMATCH says what differs.
 * Threads, tiles, memory limit, timeout, progress and cancel are each rank's own. */
BURST_API burst_status burst_plan_create(const burst_problem *problem, burst_transport *transport,
                                         const burst_options *options, burst_plan **plan);
BURST_API void burst_plan_free(burst_plan *plan);
/* Prints the plan for people, as snprintf does: returns the length without the terminating zero. */
BURST_API size_t burst_plan_describe(const burst_plan *plan, char *text, size_t size);
BURST_API size_t burst_plan_workspace_bytes(const burst_plan *plan); /* allocated by the plan */
BURST_API size_t burst_plan_stats_bytes(const burst_plan *plan);     /* of the buffer forward fills for backward */
BURST_API int64_t burst_plan_pairs(const burst_plan *plan);          /* allowed pairs of a head, all batch rows */
BURST_API int burst_plan_threads(const burst_plan *plan);
BURST_API burst_isa burst_plan_isa(const burst_plan *plan);

/* ---- tokens of a rank -------------------------------------------------------------------------------------------- */

/* Tokens begin, begin + stride, .., count of them. */
typedef struct burst_span {
    int64_t begin, count, stride;
} burst_span;

enum { BURST_SPANS_MAX = 2 };

/* The tokens that `rank` has of the queries (BURST_SIDE_Q) or keys (BURST_SIDE_K), in the order of its local tensors.
 * Fills up to BURST_SPANS_MAX spans, returns how many; -1 for a rank or side that does not exist. */
BURST_API int burst_plan_spans(const burst_plan *plan, burst_side side, int rank, burst_span spans[BURST_SPANS_MAX]);
/* How many tokens this rank has; its tensors have so many. */
BURST_API int64_t burst_plan_tokens(const burst_plan *plan, burst_side side);
/* The position in the sequence of each local token (for RoPE, and to index anything else). */
BURST_API burst_status burst_plan_positions(const burst_plan *plan, burst_side side, int64_t *positions);
/* Labels of next-token prediction in local order, [batch][local queries]: ids[b][position + 1] of the whole sequence,
 * `ignore` behind its end. ids is [batch][q_tokens]. */
BURST_API burst_status burst_plan_labels(const burst_plan *plan, const int64_t *ids, int64_t ignore, int64_t *labels);
/* Whole tensors [batch][tokens][token_bytes] and this rank's part of them. root -1: every rank has the whole tensor (no
 * message is sent), or every rank gets it; else it is rank root's, and `whole` may be NULL elsewhere. Collective. */
BURST_API burst_status burst_plan_scatter(burst_plan *plan, burst_side side, int root, size_t token_bytes,
                                          const void *whole, void *local);
BURST_API burst_status burst_plan_gather(burst_plan *plan, burst_side side, int root, size_t token_bytes,
                                         const void *local, void *whole);

/* ---- what a call cost -------------------------------------------------------------------------------------------- */

/* Of this rank's last call. */
typedef struct burst_report {
    size_t struct_size;
    double seconds, seconds_computing, seconds_waiting;
    double seconds_transfer; /* with something on its way to this rank */
    double hidden;           /* share of the transfer behind computing: 1 - (what of it was waited for) / transfer */
    int64_t read_bytes, read_messages;       /* sent: visitors */
    int64_t write_bytes, write_messages;     /* sent: what grows on the way */
    int64_t control_bytes, control_messages; /* sent: agreement before and after */
    int64_t pairs;                           /* that this rank computed, over all heads and batch rows */
} burst_report;
#define BURST_REPORT_INIT                                                                                              \
    { sizeof(burst_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
BURST_API burst_status burst_plan_report(const burst_plan *plan, burst_report *report);
/* Bytes that this rank sends in a pass (BURST_PASS_*) if `side` travels (AUTO: the chosen one), without control. Gather
 * and ulysses have no side; theirs are of calls that ask for lse and statistics and overwrite gradients. */
BURST_API int64_t burst_plan_wire_bytes(const burst_plan *plan, unsigned pass, burst_side side);

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Strides in elements. All three 0: the default layout. Otherwise they are taken as they are: negative ones are
 * refused, and 0 lets a batch row, token or head be shared (inputs only). Views may interleave in one buffer and inputs
 * may share elements; an output that shares an element with anything, itself included, is refused. A tensor without
 * elements may be NULL. */
typedef struct burst_input {
    const void *data;
    int64_t batch_stride, token_stride, head_stride;
} burst_input;
typedef struct burst_output {
    void *data;
    int64_t batch_stride, token_stride, head_stride;
} burst_output;

typedef struct burst_forward_args {
    size_t struct_size;
    burst_input q, k, v;
    const void *sink; /* [H], iff the problem has a sink */
    burst_output o;
    void *lse;   /* [B][H][N_q] or NULL */
    void *stats; /* burst_plan_stats_bytes() for backward, aligned to 8 bytes; NULL in inference: a few queries are
                    then faster, and may differ in the last bits */
} burst_forward_args;
#define BURST_FORWARD_ARGS_INIT                                                                                        \
    { sizeof(burst_forward_args), {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, NULL, {NULL, 0, 0, 0}, NULL, NULL }

/* stats (from burst_forward of a plan of the same problem and isa) is more accurate at large scores than lse; with both given,
 * stats is used. A gradient whose data is NULL is skipped. */
typedef struct burst_backward_args {
    size_t struct_size;
    burst_input q, k, v, o, d_o;
    const void *sink;
    const void *lse;   /* [B][H][N_q] or NULL */
    const void *stats; /* or NULL */
    burst_output d_q, d_k, d_v;
    void *d_sink;   /* [H] or NULL */
    int accumulate; /* 0: gradients are overwritten; 1: added to */
} burst_backward_args;
#define BURST_BACKWARD_ARGS_INIT                                                                                       \
    {                                                                                                                  \
        sizeof(burst_backward_args), {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0},               \
            {NULL, 0, 0, 0}, NULL, NULL, NULL, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, {NULL, 0, 0, 0}, NULL, 0              \
    }

BURST_API burst_status burst_forward(burst_plan *plan, const burst_forward_args *args);
BURST_API burst_status burst_backward(burst_plan *plan, const burst_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
