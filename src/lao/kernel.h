/* kernel.h - what the drivers (lao.c, forward.c, backward.c) and the kernel bodies of this folder share.
 * One idea: a task is a block of rows against a range of keys; a body compiled per instruction set runs whole tasks. */
#ifndef BURST_KERNEL_H
#define BURST_KERNEL_H

#include "lao.h"

/* Which rectangles touch which tile of queries: ids[start[t]] .. ids[start[t + 1] - 1], one table per list. */
typedef struct lao_index {
    uint32_t *start; /* [list][tiles + 1] */
    uint32_t *ids;
    int64_t tiles, most; /* most: the longest id list */
} lao_index;

/* How one pass is cut. Chosen from the problem alone, never from the number of threads: results keep their bits. */
typedef struct lao_cut {
    int64_t q_tile, k_tile; /* queries a task, keys a tile */
    int64_t tiles;          /* of queries */
    int64_t heads;          /* query heads of one kv head that share a task (few queries: more rows for a loaded key) */
    int64_t head_tasks;     /* tasks side by side in one kv head's group: ceil(group / heads) */
    int64_t rows;           /* q_tile * heads, at most */
    int64_t chunks, chunk;  /* key ranges a task is split into, and their length */
    int64_t together;       /* few rows: kv heads a task goes through side by side, because their keys lie so */
    lao_index index;
} lao_cut;

/* The rows of one task: row r is query i0 + r % ni of head h0 + r / ni. Keys j0 .. j1-1. */
typedef struct lao_block {
    int64_t b, g, h0, heads, i0, ni, j0, j1;
    const lao_rect *rects;
    const uint32_t *ids;
    size_t count;
    int64_t together; /* few rows: kv heads g .. g + together - 1, the others' rows like these */
} lao_block;

/* What running tasks share: the stop flag and the caller's pulse. */
typedef struct lao_run {
    lao_pulse pulse;
    double total, done; /* pairs; done under atomic update */
    double last;        /* when the pulse was last called */
    int finished;       /* threads other than the calling one that have no more tasks */
    int stop;
} lao_run;

/* Called between tiles by every thread, with the (query, key) pairs it has just met; only the calling thread pulses. */
void lao_tick(lao_run *run, double pairs);
/* In a wait for another thread: gives the core away, and pulses if this is the calling thread. */
void lao_rest(lao_run *run);
/* A thread has no more tasks; the calling one goes on pulsing until none has any. */
void lao_done(lao_run *run);
static inline int lao_stopped(const lao_run *run) { return __atomic_load_n(&run->stop, __ATOMIC_RELAXED); }
/* Until *flag is `value`; false: stopped. */
bool lao_await(const int32_t *flag, int32_t value, lao_run *run);

/* Up to so many rows a forward task without statistics reads keys where they lie (body_few.h): packing them costs more. */
enum { LAO_FEW_ROWS = 24 };

/* Key tiles of one kv head, packed once for all its tasks by whoever comes first: rows of a [tokens][heads][dim] tensor
 * lie so far apart that packing them again for every block of queries costs up to a fifth of the time. */
enum { LAO_UNPACKED = 0, LAO_PACKING = 1, LAO_PACKED = 2 };
typedef struct lao_shelf {
    int32_t *ready; /* per tile, one of the above; NULL: no shelf but one tile, packed anew each time */
    char *tiles;    /* [tile][packed_stride] */
} lao_shelf;

/* Backward: where a task may add into d_k and d_v. Tasks of one kv head add to a key tile in a fixed order, whoever runs
 * them: `turn[t]` is this task's place in line at tile t, `passed[t]` how many have been there. */
typedef struct lao_line {
    const int32_t *turn; /* -1: no business there */
    int32_t *passed;
    char *sums; /* of the kv head */
    lao_shelf shelf;
} lao_line;

typedef struct lao_kernels {
    const char *name;
    int lanes;
    /* bytes of one thread's workspace, of one chunk's partial result, of the gradient sums of one kv head */
    size_t (*forward_bytes)(const lao *local);
    size_t (*backward_bytes)(const lao *local);
    size_t (*forward_partial)(const lao *local);
    size_t (*backward_partial)(const lao *local);
    size_t (*sums_bytes)(const lao *local);
    size_t (*packed_bytes)(const lao *local, const lao_cut *cut); /* of one key tile, packed */
    /* partial: NULL, or where the task leaves (sums, max, sum) instead of the result; shelf NULL: few rows, the partials
     * of kv heads that go together are `chunks` apart */
    void (*forward)(const lao *local, const lao_forward_args *args, const lao_block *block, void *work, void *partial,
                    const lao_shelf *shelf, lao_run *run);
    /* of the chunks that the block meets: others' were not computed */
    void (*forward_merge)(const lao *local, const lao_forward_args *args, const lao_block *block, void *work,
                          const void *partials, size_t stride);
    /* d_sink: NULL, or [block->heads] of this task */
    void (*backward)(const lao *local, const lao_backward_args *args, const lao_block *block, void *work, void *partial,
                     const lao_line *line, double *d_sink, lao_run *run);
    void (*backward_merge)(const lao *local, const lao_backward_args *args, const lao_block *block, void *work,
                           const void *partials, size_t stride);
    /* the two approximations on n numbers, for tests of their bounds */
    void (*exp_of)(int64_t n, const void *x, void *y);
    void (*tanh_of)(int64_t n, const void *x, void *y);
    /* writes d_k and d_v of keys of one tile; touched: the sums hold something */
    void (*backward_keys)(const lao *local, const lao_backward_args *args, int64_t b, int64_t g, int64_t tile,
                          bool touched, void *work, const void *sums);
    /* between rounds; rows are numbered through [batch][heads][tokens] */
    void (*state_fold)(const lao *local, const lao_state *into, const lao_state *from, int64_t first, int64_t last);
    void (*state_finish)(const lao *local, const lao_forward_args *args, const lao_state *state, const lao_state *other,
                         int64_t first, int64_t last, void *work);
    /* as lao_dots, of one block; d_sink: NULL, or [block->heads] */
    void (*backward_dots)(const lao *local, const lao_backward_args *args, const lao_block *block, void *work, void *ms,
                          void *dots, double *d_sink);
    void (*rows_store)(const lao *local, const lao_sums *sums, const lao_tensor *out, bool accumulate, int64_t first,
                       int64_t last, void *work);
    void (*rows_add)(burst_dtype from_dtype, int64_t count, void *into, const void *from);
} lao_kernels;

struct lao {
    lao_shape shape;
    lao_options options;
    unsigned passes;
    const lao_kernels *kernels;
    lao_cut forward, backward;
    int64_t key_tiles; /* of the backward pass */
    int64_t slots;     /* kv heads in work at a time, backward */
    int64_t forward_key_tiles, forward_slots;
    int64_t *order; /* forward: the tiles of each list, longest first */
    double pairs;   /* of one head, all batch rows */
    /* one allocation for the index and order, one for the rest */
    size_t work_stride, partial_stride, sums_stride, packed_stride;
    void *tables;
    /* of the first round only: how many there are, bytes of all, and the memory that all take turns in */
    size_t count, bytes;
    void *memory;
    /* carved from memory */
    char *work;               /* [threads][work_stride] */
    char *partials;           /* [block][chunk][partial_stride] */
    char *sums;               /* [slots][sums_stride] */
    char *packed;             /* [slots][key tiles][packed_stride], either pass */
    int32_t *issued, *passed; /* [slots][key_tiles]: tasks sent to a tile, tasks that have been there */
    int32_t *ready;           /* [slots][key tiles], either pass */
    int64_t *owner;           /* [forward_slots]: the kv head that has the slot, or -1 */
    int32_t *turn;            /* [threads][key_tiles] */
    int64_t *left;            /* [slots]: tasks of the slot's kv head not yet finished */
    double *d_sink;           /* [block][chunk][heads] */
};

/* pass-independent helpers of lao.c */
int64_t lao_blocks(const lao_shape *shape, const lao_cut *cut);
lao_block lao_block_of(const lao *local, const lao_cut *cut, int64_t b, int64_t g, int64_t head_task, int64_t tile,
                       int64_t chunk);
/* The keys from the first to the last that the block's rows see through its n-th rectangle; false: none. */
bool lao_block_keys(const lao_block *block, size_t n, int64_t *first, int64_t *last);
/* does the block meet any key first .. last-1? */
bool lao_block_meets(const lao_block *block, int64_t first, int64_t last);

/* the kernel sets that are built in; NULL otherwise */
const lao_kernels *lao_kernels_of(burst_isa isa, burst_dtype dtype);

/* A row at global position q sees keys first .. last-1 of the rectangle, as local indices in [j0, j0 + nj]. */
static inline int64_t lao_floor(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline void lao_interval(const lao_rect *r, int64_t i, int64_t *first, int64_t *last) {
    const int64_t q = r->q0 + r->sq * (i - r->i0) - r->k0;
    int64_t a = q + r->lo, b = q + r->hi;
    if (r->sk != 1) {
        a = -lao_floor(-a, r->sk); /* ceil */
        b = lao_floor(b, r->sk);
    }
    b += 1;
    if (a < 0) a = 0;
    if (b > r->nj) b = r->nj;
    *first = r->j0 + a;
    *last = r->j0 + (b > a ? b : a);
}

static inline int64_t lao_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t lao_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t lao_round_up(int64_t a, int64_t b) { return (a + b - 1) / b * b; }

#endif
