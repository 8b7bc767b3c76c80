/* lao.h - local attention: computes rectangles of (query, key) pairs in cache-sized tiles on this rank's cores.
 * The only header of this folder that other folders see. It knows neither masks nor partitions nor ranks: a rectangle
 * says which local rows meet which local keys, and which global positions they stand for. */
#ifndef BURST_LAO_H
#define BURST_LAO_H

#include "base.h"

/* Local queries i0 .. i0+ni-1 stand at global positions q0 + sq * (i - i0), local keys j0 .. j0+nj-1 at k0 + sk * (j - j0).
 * Query at q sees key at k iff lo <= k - q <= hi. diag: where k - q counts as distance 0 (ALiBi). sq, sk >= 1.
 * lo and hi are finite: clamped so that adding any position cannot overflow. */
typedef struct lao_rect {
    int64_t i0, ni, q0, sq;
    int64_t j0, nj, k0, sk;
    int64_t lo, hi, diag;
} lao_rect;

/* The rectangles of one batch row, pairwise disjoint. */
typedef struct lao_list {
    const lao_rect *rects;
    size_t count;
} lao_list;

/* Sizes are local to this rank. Checked by the caller: everything here is in range. */
typedef struct lao_shape {
    burst_dtype dtype;
    int64_t batch, q_heads, kv_heads, q_tokens, k_tokens, head_dim, value_dim;
    double scale;       /* not 0 */
    double softcap;     /* 0: none */
    const float *alibi; /* [q_heads] or NULL; must outlive the lao */
    bool sink;
    const lao_list *lists; /* must outlive the lao */
    int64_t list_count;    /* 1: one list for all batch rows, else batch */
} lao_shape;

typedef struct lao_options {
    int threads; /* >= 1 */
    burst_isa isa;
    int64_t q_tile, k_tile; /* 0: chosen */
    size_t memory_limit;    /* bytes that memory_used and lao_create's may be together; SIZE_MAX: no limit */
    size_t
        memory_used; /* bytes of the limit that the caller has taken; the sentence about a small limit counts them in */
    bool dry;        /* the memory is measured, not taken: nothing can be computed */
} lao_options;

typedef struct lao lao;

/* One set of rectangles to compute, once or again and again: all of a plan's with one rank, one round of it with more. */
typedef struct lao_round {
    lao_shape shape;
    unsigned passes; /* BURST_PASS_* */
} lao_round;

/* Resolves BURST_ISA_AUTO (environment, then CPU) or checks the forced one. BURST_INVALID for an unknown name or value,
 * BURST_UNSUPPORTED for a set that this CPU or this build lacks. AMX and AVX512BF16 are for bf16; other types have AVX-512 then. */
burst_status lao_choose_isa(burst_isa wanted, burst_dtype dtype, burst_isa *chosen);
bool lao_isa_forced(burst_isa wanted);   /* by the caller or the environment: not to be exchanged for another */
const char *lao_isa_name(burst_isa isa); /* NULL if unknown */
/* How a set sums a score. Backward must find the very scores that the statistics were made from, so ranks have to sum alike:
 * dim by dim with one rounding a step, as all sets with FMA do, or with two, or as tiles do, or pair by pair. */
typedef enum lao_order { LAO_ORDER_FUSED, LAO_ORDER_PLAIN, LAO_ORDER_TILES, LAO_ORDER_PAIRS } lao_order;
lao_order lao_isa_order(burst_isa isa, burst_dtype dtype);
bool lao_isa_runs(burst_isa isa); /* built in, and this CPU has it */

/* A local attention per round, in a row that lao_at numbers; they take turns in one workspace. All memory is taken here.
 * options->isa is a chosen one, never AUTO. BURST_MEMORY, with the bytes needed in the sentence, if the limit is too small
 * or memory runs out. */
burst_status lao_create(const lao_round *rounds, size_t count, const lao_options *options, lao **first);
lao *lao_at(lao *first, size_t n);
void lao_free(lao *first);
size_t lao_bytes(const lao *first); /* allocated by lao_create, for all rounds; if dry: would be */
/* A few lines: kernels, tiles, tasks, memory. As snprintf. */
size_t lao_describe(const lao *local, char *text, size_t size);

/* strides in elements, dim contiguous */
typedef struct lao_tensor {
    void *data;
    int64_t batch, token, head;
} lao_tensor;

/* Called from the calling thread between tiles, about once a millisecond, with the share of work done; non-zero stops the
 * call, which then returns BURST_CANCELLED. call may be NULL. */
typedef struct lao_pulse {
    int (*call)(void *user, double done);
    void *user;
} lao_pulse;

/* A running result: per row the sum of weighted values, the largest raw score and the sum of weights, in reals (f32; f64
 * for f64). A row that has seen nothing: 0, -inf, 0. */
typedef struct lao_state {
    void *acc; /* [batch][q_heads][q_tokens][value_dim] */
    void *ms;  /* [batch][q_heads][q_tokens][2] */
} lao_state;

typedef struct lao_forward_args {
    lao_tensor q, k, v, o;
    const void *sink; /* [q_heads], f32 or f64; NULL without a sink */
    void *lse;        /* [batch][q_heads][q_tokens] or NULL */
    void *stats;      /* or NULL */
    lao_state state; /* acc not NULL: the rows are folded into it, and o, lse, stats and sink are left for lao_finish */
    bool fresh;      /* what is in the state does not count */
    /* Backward will use the statistics: scores come from the same products as there, bit for bit, or large ones would not
     * fit. Else a few rows take a faster way. */
    bool exact;
    lao_pulse pulse;
} lao_forward_args;

typedef struct lao_backward_args {
    lao_tensor q, k, v, o, d_o;
    const void *sink, *lse, *stats;   /* one of lse and stats; stats is preferred */
    const void *dots;                 /* [batch][q_heads][q_tokens] reals from lao_dots, or NULL: D is taken from o */
    lao_tensor d_q, d_k, d_v;         /* data NULL: skipped */
    bool wide;                        /* gradients are reals, whatever the tensors are */
    void *d_sink;                     /* or NULL */
    double *sink_sums;                /* or NULL: [q_heads], d_sink is added here instead, as far as lao_dots has not */
    bool accumulate_q, accumulate_kv; /* _q: d_q and d_sink, _kv: d_k and d_v; else overwritten */
    lao_pulse pulse;
} lao_backward_args;

burst_status lao_forward(lao *local, const lao_forward_args *args);
burst_status lao_backward(lao *local, const lao_backward_args *args);

/* ---- between rounds: all rows of the local's shape, on all its threads ------------------------------------------- */

/* into = into (+) from */
void lao_fold(lao *local, const lao_state *into, const lao_state *from);
/* The result of state (+) other (NULL: of state alone): o, lse, stats, with the sink. */
void lao_finish(lao *local, const lao_state *state, const lao_state *other, const lao_forward_args *args);
/* Before rounds of backward: stats or lse -> ms, [batch][q_heads][q_tokens][2]; rowsum(o * d_o) -> dots; sink_sums (or
 * NULL) += what o tells of d_sink: all of it, but in 16 bits nothing, there the rounds tell. */
void lao_dots(lao *local, const lao_backward_args *args, void *ms, void *dots, double *sink_sums);
/* Reals of one side, [batch][heads][tokens][dim]. */
typedef struct lao_sums {
    int64_t heads, tokens, dim;
    const void *sums, *other; /* their sum is meant; other may be NULL */
} lao_sums;
void lao_store(lao *local, const lao_sums *sums, const lao_tensor *out, bool accumulate);
/* into += from; reals, but from narrow: elements */
void lao_add(lao *local, bool narrow, int64_t count, void *into, const void *from);

#endif
