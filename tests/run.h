/* run.h - a problem word made ready for a test: data, plan and statistics, with every buffer that the library touches
 * ending at a page that may not be touched, so that reading or writing past any end is a crash, not a guess. */
#ifndef TESTS_RUN_H
#define TESTS_RUN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "check.h"

typedef struct run {
    word word;
    word_problem made;
    data data;
    burst_plan *plan;
    void *stats;
    void *guarded[16]; /* mapped areas: start, and the bytes that must still hold the pattern */
    size_t mapped[16], margin[16];
    int areas;
} run;

/* threads and isa as in burst_options; the word must be one that the library takes. */
void run_make(const char *text, int threads, burst_isa isa, run *out);
void run_both(run *r); /* forward with statistics, then backward from them */
void run_free(run *r); /* also checks the bytes in front of every guarded buffer */

/* The strategy for the number-th of a list of words: in turn, as far as the word's heads allow it. */
burst_strategy run_strategy(const word *word, int number, int ranks);

/* Largest |a - b| and largest |a| over all elements; NaN counts as infinitely far. */
double run_distance(const data_tensor *a, const data_tensor *b, double *largest);
/* Same bits in every element (of a tensor in the default layout). */
int run_same(const data_tensor *a, const data_tensor *b);
/* All outputs of two runs of one word. */
void run_assert_same(const run *a, const run *b);

#endif
