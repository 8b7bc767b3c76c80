/* oracle.h - attention as the textbook has it, in double (long double for f64): what everything else is compared with.
 * And beside it the plain computation: the same textbook in the problem's own precision, whose error is the yardstick.
 *
 * One idea: a pass over rows (o, lse, d_q) and a pass over keys (d_k, d_v), each for any list of rows or keys of one
 * head. The whole check and the sampled check are the same code with different lists.
 * Readable and slow, kept for ever; memory is a few rows, never a score matrix.
 */
#ifndef CLI_ORACLE_H
#define CLI_ORACLE_H

#include "word_mask.h"

/* One query head of one batch row against its kv head. Tensors are contiguous: [n][d], [k][d], [k][v], [n][v]. */
typedef struct oracle_head {
    const word_mask *mask;
    burst_dtype dtype; /* of the plain computation */
    int64_t batch_row, n, k, d, v;
    double scale, softcap, slope; /* softcap 0: none; slope 0: no ALiBi */
    int has_sink;
    double sink;
    const double *q, *key, *value, *d_o; /* d_o NULL: no gradients */
} oracle_head;

/* What a row's softmax came to: p = e^(s - max) / sum, and D = sum of p * dP. [n] each. */
typedef struct oracle_stats {
    long double *max, *sum, *dot;
} oracle_stats;

/* Rows in the order of the list. d_q may be NULL. */
typedef struct oracle_rows {
    double *o, *lse, *d_q;
} oracle_rows;

/* Fills the stats of the listed rows too. d_sink, if not NULL, is this head's -sum of e^(sink - lse) * D over them. */
void oracle_run_rows(const oracle_head *head, const int64_t *rows, int64_t count, oracle_rows *out, oracle_stats *stats,
                     double *d_sink);
/* Adds the head's share to d_k [count][d] and d_v [count][v]; the stats of all rows that see the keys must be there. */
void oracle_run_keys(const oracle_head *head, const int64_t *keys, int64_t count, const oracle_stats *stats,
                     double *d_k, double *d_v);

/* The same in the precision of head->dtype. f32: everything in float. bf16, f16: every tensor that a plain framework
 * would store (scaled q, scores, probabilities, o, dP, dS, gradients) is rounded, sums are float. f64: double, summed
 * one after the other. Results come as double, already rounded to the type (lse: to float, f64's to double). */
void plain_run_rows(const oracle_head *head, const int64_t *rows, int64_t count, oracle_rows *out, oracle_stats *stats,
                    double *d_sink);
void plain_run_keys(const oracle_head *head, const int64_t *keys, int64_t count, const oracle_stats *stats, double *d_k,
                    double *d_v);

/* The head from the tensors of a word, converted; oracle_head_free frees it. */
struct data;
void oracle_head_load(const word_mask *mask, const struct data *tensors, int64_t batch_row, int64_t head,
                      oracle_head *out);
void oracle_head_free(oracle_head *head);

#endif
