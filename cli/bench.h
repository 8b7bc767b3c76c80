/* bench.h - what `burst bench` measures and what it tells: teams that take turns in one run. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "command.h"
#include "share.h"

/* One way to compute the word, as one of its ranks sees it: a number of ranks, and perhaps a system. */
typedef struct team {
    const system_kind *system; /* NULL: as the options say */
    int ranks, asked;          /* as many as were asked for, or one that holds all */
    burst_options how;
    burst_transport *transport;
    burst_plan *plan; /* a rival has one too, which deals out its tokens */
    rival *rival;
    share *mine; /* may be another team's, whose tokens are the same */
    int owns_share;
    void *stats;
    double *seconds[2]; /* forward, backward; of the first rank */
    int counts[2];
    double peak, read;
    burst_report reports[2]; /* of the fastest round, first rank's */
    /* systems; over all ranks, the same on each: */
    double bytes[2], messages[2]; /* sent in a pass by all ranks */
    double busiest[2], hidden[2]; /* busiest rank / mean, by pairs; the mean share of hidden communication */
    double memory, memory_stated; /* of the rank that holds most: counted at the allocator, and by formula */
    int refused;                  /* it cannot take the word, or needs too much memory: `why` */
    char why[320];
} team;

enum { TEAMS_MOST = RANKS_LIST_MAX * SYSTEMS };

typedef struct bench {
    const command_options *options;
    word word;
    char *text; /* the word, as it is printed */
    int team_count, pass_count, decode;
    int most; /* ranks, of any team */
    int code; /* the exit code; set by the first member */
} bench;

/* Forward makes the statistics that backward takes. */
static inline int bench_stats(const bench *b) { return !b->decode && b->pass_count > 1; }

void bench_print(const bench *b, const team *teams);

#endif
