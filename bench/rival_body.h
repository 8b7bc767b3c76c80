/* rival_body.h - what rsa.c and gao_only.c have from rival.c, and what they have to say. */
#ifndef BENCH_RIVAL_BODY_H
#define BENCH_RIVAL_BODY_H

#include "rival.h"

/* What travels: floats a token. */
typedef struct rival_set {
    int64_t row;
} rival_set;

typedef struct rival_body {
    burst_side side[2]; /* that travels: forward, backward */
    rival_set (*read)(const word *w, int backward);
    rival_set (*write)(const word *w, int backward);
    /* Floats at home. */
    double (*floats)(const word *w, int ranks, int threads, int64_t n, int64_t m, int backward);
    void (*forward)(rival *r);
    void (*backward)(rival *r);
} rival_body;

extern const rival_body rival_rsa, rival_gao;

struct rival {
    const rival_body *body;
    const word *word;
    const crew_member *me;
    int rank, ranks, threads;
    const burst_plan *plan;
    const data *mine;
    float scale;
    int64_t n, m; /* queries and keys of the largest block */
    float *read[2], *write[2], *arrived;
    float *room; /* the body's */
    crew_step reads, writes;
    double since; /* when something began to be on its way; 0: nothing is */
    burst_report report;
};

typedef struct rival_block {
    int count;
    burst_span spans[BURST_SPANS_MAX];
    int64_t tokens;
} rival_block;
rival_block rival_block_of(const rival *r, burst_side side, int rank);

typedef struct rival_interval {
    int64_t begin, end;
} rival_interval;
rival_interval rival_row(const word *w, int64_t q); /* key positions that the query at q sees */
/* Of row i of a span of queries: which keys of a span, counted from its first. */
rival_interval rival_seen(const word *w, const burst_span *q, int64_t i, const burst_span *k);
int rival_meets(const word *w, const burst_span *q, const burst_span *k);

void rival_multiply(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc);
float rival_max(const float *s, int64_t count);
float rival_exp(float *s, int64_t count, float top); /* s = e^(s - top); returns the sum */
void rival_scores_gradient(const float *p, float *dp, int64_t count, float dot, float scale);
void rival_scale(float *x, int64_t count, float by);
float *rival_pack(const data_tensor *t, float *to);
void rival_dots(const rival *r, float *dots); /* D of the own rows, [batch][heads][tokens] */
void rival_unpack(const float *from, const data_tensor *t);

void rival_walk(rival *r, burst_side side, const rival_set *read, const rival_set *write,
                void (*meet)(rival *r, int visitor, const float *block, float *sums));
/* Between products: messages move on. */
void rival_push(rival *r);

#endif
