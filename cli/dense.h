/* dense.h - the two inner loops of the oracle and of the plain computation, wide where the CPU is wide. Results have
 * the same bits either way: no sum changes its order with the width, and nothing is fused. */
#ifndef CLI_DENSE_H
#define CLI_DENSE_H

#include <stdint.h>

/* Sixteen partial sums: fast without reordering by the compiler, and more exact than one sum. */
double dense_dot(const double *a, const double *b, int64_t count);
/* to += factor * from */
void dense_add_double(double *restrict to, const double *restrict from, double factor, int64_t count);
void dense_add_float(float *restrict to, const float *restrict from, float factor, int64_t count);

#endif
