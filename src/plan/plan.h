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

/* ---- plans ------------------------------------------------------------------------------------------------------- */

/* What a plan is made from; checked by the caller. */
typedef struct plan_request {
    lao_shape shape;        /* defaults resolved; lists are made here; alibi is copied */
    const burst_mask *mask; /* NULL: full */
    const burst_transport *transport;
    lao_options local; /* isa is chosen; the memory limit is that of the whole plan */
    void (*progress)(void *user, double done);
    void *progress_user;
    const volatile int *cancel;
} plan_request;

struct burst_plan {
    lao_shape shape;
    lao_options options;
    float *alibi;
    lao_rect *rects;
    size_t rect_count;
    lao_list *lists;
    int64_t pairs;
    size_t own_bytes; /* allocated here, without the local attention's */
    lao *local;
    int rank, ranks;
    void (*progress)(void *user, double done);
    void *progress_user;
    const volatile int *cancel;
    atomic_bool busy; /* a call is running */
};

burst_status plan_create(const plan_request *request, burst_plan **plan);
void plan_free(burst_plan *plan);
size_t plan_bytes(const burst_plan *plan);
size_t plan_describe(const burst_plan *plan, char *text, size_t size);

#endif
