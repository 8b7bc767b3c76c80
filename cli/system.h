/* system.h - the ways to distribute attention that Burst is compared with, by name: what each is on our plan or beside it, and
 * what it sends by formula. */
#ifndef CLI_SYSTEM_H
#define CLI_SYSTEM_H

#include "rival.h"

typedef struct system_kind {
    const char *name;
    int alone;        /* one rank holds all, the others idle */
    rival_kind rival; /* not the library's */
    burst_partition partition;
    burst_side side_forward, side_backward;
    burst_strategy strategy;
    int no_overlap, send_o;
} system_kind;

enum { SYSTEMS = 12 };
extern const system_kind systems[SYSTEMS];

const system_kind *system_find(const char *name, size_t length); /* NULL: no such */
/* The plan options of a system; what is not about ranks stays as it is. */
void system_apply(const system_kind *system, burst_options *options);
/* Why it cannot take the word, as far as only the command knows; NULL: it can, or the library will say. */
const char *system_refuses(const system_kind *system, const word *word);

/* Sent by all ranks together in a pass, from the published formulas (docs/experiments.md). stats: forward makes statistics for
 * a backward, which ulysses has to send home. */
double system_bytes(const system_kind *system, const word *word, int ranks, int backward, int stats);
double system_messages(const system_kind *system, const word *word, int ranks, int backward);
/* "1.5 GiB": as many of the three units as are needed. Returns text. */
const char *system_amount(double bytes, char text[32]);
/* Bytes of the tensors of a rank that has n queries and m keys: inputs, outputs, lse; for backward gradients and statistics. */
double system_tensor_bytes(const word *word, int64_t n, int64_t m, int backward);

#endif
