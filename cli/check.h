/* check.h - one word through the library and the oracle, and how far apart they are. */
#ifndef CLI_CHECK_H
#define CLI_CHECK_H

#include "data.h"
#include "rival.h"

typedef struct check_options {
    burst_options plan;
    uint64_t seed;
    int forward_only;
    int from_lse;                                     /* backward from the plain lse, not from the statistics */
    void (*made)(const burst_plan *plan, void *user); /* or NULL: shown the first rank's plan before it runs */
    void *made_user;
    /* not the library but a rival runs, on the crew's member `me`; the plan deals out tokens and gathers results */
    rival_kind rival;
    const crew_member *me;
} check_options;

/* error: largest |ours - oracle|. threshold: 2 (o, lse) or 3 (gradients) times the plain error, + 4 eps max|oracle|. */
typedef struct check_error {
    const char *name;
    double error, plain, largest, threshold;
    double squares, count; /* of the finite errors */
    int finite, nan;       /* the reference had such elements */
    int ok;
} check_error;

enum check_name { CHECK_O, CHECK_LSE, CHECK_D_Q, CHECK_D_K, CHECK_D_V, CHECK_D_SINK, CHECK_NAMES };

typedef struct check_result {
    int code; /* the command's exit code: 0 fine, 1 too far apart, 2 refused, 3 failed while running */
    burst_status status;
    char message[512]; /* the library's sentence if code is 2 or 3 */
    check_error errors[CHECK_NAMES];
    int checked[CHECK_NAMES];
    int whole;          /* 0: sampled */
    int sink_left;      /* d_sink is wanted, but a sample of this word does not tell it */
    int64_t rows, keys; /* looked at, over all heads */
    int threads;
    burst_isa isa;
    size_t workspace;
    double seconds_forward, seconds_backward;
    double flops_forward, flops_backward;
    int ranks;
    burst_report reports[2]; /* of rank 0: forward, backward */
} check_result;

/* Collective if the transport has several ranks (NULL: one); only rank 0 compares, the others know whether they ran. */
void check_run(const word *word, const check_options *options, burst_transport *transport, check_result *out);

/* The same over ranks that are threads of this process. */
void check_run_threads(const word *word, const check_options *options, int ranks, check_result *out);

/* FLOP of a pass: 2 * pairs * (d + v) forward, 2 * pairs * (3 d + 2 v) backward, all heads. */
double check_flops(const word *word, int64_t pairs, int backward);

/* Runs both passes on data (backward if it has d_o). `stats` has burst_plan_stats_bytes() bytes, or is NULL. */
burst_status check_forward(burst_plan *plan, const data *tensors, void *stats);
burst_status check_backward(burst_plan *plan, const data *tensors, const void *stats);

double check_now(void); /* seconds of a steady clock */

#endif
