/* ranks.h - a problem word over ranks that are threads, for tests: what all ranks found, put together, and what each said. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "run.h"
#include "share.h"

enum { RANKS_MOST = 64 };

/* Everything takes ten times as long: tests do less. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { RANKS_SANITIZED = 1 };
#else
enum { RANKS_SANITIZED = 0 };
#endif

typedef struct ranks_result {
    word word;
    data data; /* the whole problem; outputs gathered from all ranks */
    burst_status status[RANKS_MOST];
    char sentence[RANKS_MOST][256];
    burst_report reports[RANKS_MOST][2]; /* forward, backward */
    int64_t wire[RANKS_MOST][2];         /* what the plan said would be sent */
    size_t stated;                       /* bytes that all plans stated */
    double d_sink[RANKS_MOST];           /* of head 0, as bits */
} ranks_result;

/* One thread a rank, and not for ever. */
burst_options ranks_options(burst_partition partition, burst_side forward, burst_side backward);

/* Called in each rank between plan and calls, to change the inputs; NULL: nothing. */
typedef void (*ranks_change)(const word *word, share *mine, void *user);

void ranks_run(const char *text, int ranks, const burst_options *options, ranks_change change, void *user,
               ranks_result *out);
void ranks_free(ranks_result *r);
/* All ranks OK, else the test fails with the first sentence. */
void ranks_assert_ok(const char *text, const ranks_result *r, int ranks);
/* The library holds no memory. */
void ranks_assert_nothing_left(void);

#endif
