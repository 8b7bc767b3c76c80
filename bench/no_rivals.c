/* no_rivals.c - in the place of the rivals where OpenBLAS is not there: every word is refused. */
#include "rival.h"

#include <stddef.h>

const char *rival_refuses(rival_kind kind, const word *w) {
    (void)w;
    return kind == RIVAL_NONE ? NULL
                              : "this burst was built without OpenBLAS: build it where libopenblas-dev is installed";
}

burst_partition rival_partition(rival_kind kind) { return (void)kind, BURST_PARTITION_AUTO; }

double rival_memory(rival_kind kind, const word *w, int ranks, int threads, int64_t n, int64_t m, int backward) {
    return (void)kind, (void)w, (void)ranks, (void)threads, (void)n, (void)m, (void)backward, 0;
}

rival *rival_open(rival_kind kind, const word *w, const crew_member *me, int ranks, int threads, const burst_plan *plan,
                  const data *mine, int backward) {
    return (void)kind, (void)w, (void)me, (void)ranks, (void)threads, (void)plan, (void)mine, (void)backward, NULL;
}

void rival_close(rival *r) { (void)r; }

void rival_forward(rival *r) { (void)r; }

void rival_backward(rival *r) { (void)r; }

burst_report rival_report(const rival *r) { return (void)r, (burst_report)BURST_REPORT_INIT; }
