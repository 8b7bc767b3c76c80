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
    unsigned passes;        /* BURST_PASS_* */
    int64_t q_tile, k_tile; /* 0: chosen */
    size_t memory_limit;    /* bytes that memory_used and lao_create's may be together; SIZE_MAX: no limit */
    size_t
        memory_used; /* bytes of the limit that the caller has taken; the sentence about a small limit counts them in */
} lao_options;

typedef struct lao lao;

/* Resolves BURST_ISA_AUTO (environment, then CPU) or checks the forced one. BURST_INVALID for an unknown name or value,
 * BURST_UNSUPPORTED for a set that this CPU or this build lacks. */
burst_status lao_choose_isa(burst_isa wanted, burst_isa *chosen);
const char *lao_isa_name(burst_isa isa); /* NULL if unknown */
bool lao_isa_built(burst_isa isa);

/* All memory is taken here. options->isa is a chosen one, never AUTO. BURST_MEMORY, with the bytes needed in the sentence,
 * if the limit is too small or memory runs out. */
burst_status lao_create(const lao_shape *shape, const lao_options *options, lao **result);
void lao_free(lao *local);
size_t lao_bytes(const lao *local); /* allocated by lao_create */
size_t lao_stats_bytes(const lao *local);
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

typedef struct lao_forward_args {
    lao_tensor q, k, v, o;
    const void *sink; /* [q_heads], f32 or f64; NULL without a sink */
    void *lse;        /* [batch][q_heads][q_tokens] or NULL */
    void *stats;      /* or NULL */
    lao_pulse pulse;
} lao_forward_args;

typedef struct lao_backward_args {
    lao_tensor q, k, v, o, d_o;
    const void *sink, *lse, *stats; /* one of lse and stats; stats is preferred */
    lao_tensor d_q, d_k, d_v;       /* data NULL: skipped */
    void *d_sink;                   /* or NULL */
    bool accumulate;
    lao_pulse pulse;
} lao_backward_args;

burst_status lao_forward(lao *local, const lao_forward_args *args);
burst_status lao_backward(lao *local, const lao_backward_args *args);

#endif
