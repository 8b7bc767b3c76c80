/* plain.c - textbook attention in the problem's own precision. See oracle.h and plain_body.h.
 *
 * In 16 bits it follows the reference of flash-attention's tests: tensors that a framework would store are rounded,
 * sums inside a product are float. Its error against the oracle is what a good implementation may have a few times.
 */
#include "data.h"
#include "dense.h"
#include "need.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER float
#define NAME(x) single_##x
#define EXP expf
#define LOG logf
#define TANH tanhf
#define ADD dense_add_float
#define ROUND(dtype, x) data_round(dtype, x)
#include "plain_body.h"
#undef NUMBER
#undef NAME
#undef EXP
#undef LOG
#undef TANH
#undef ADD
#undef ROUND

#define NUMBER double
#define NAME(x) double_##x
#define EXP exp
#define LOG log
#define TANH tanh
#define ADD dense_add_double
#define ROUND(dtype, x) (x)
#include "plain_body.h"

void plain_run_rows(const oracle_head *head, const int64_t *rows, int64_t count, oracle_rows *out, oracle_stats *stats,
                    double *d_sink) {
    if (head->dtype == BURST_F64)
        double_rows(head, rows, count, out, stats, d_sink);
    else
        single_rows(head, rows, count, out, stats, d_sink);
}

void plain_run_keys(const oracle_head *head, const int64_t *keys, int64_t count, const oracle_stats *stats, double *d_k,
                    double *d_v) {
    if (head->dtype == BURST_F64)
        double_keys(head, keys, count, stats, d_k, d_v);
    else
        single_keys(head, keys, count, stats, d_k, d_v);
}
