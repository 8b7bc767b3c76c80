/* dense.c - see dense.h. The body is written once and inlined into a function for AVX2 and one for any CPU. */
#include "dense.h"

#define BODY static inline __attribute__((always_inline))

typedef double quad __attribute__((vector_size(32)));
typedef double loose __attribute__((vector_size(32), aligned(8), may_alias)); /* a quad anywhere in an array */

BODY double dot_body(const double *a, const double *b, int64_t count) {
    quad sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};
    int64_t i = 0;
    for (; i + 16 <= count; i += 16) {
        const loose *x = (const loose *)(a + i), *y = (const loose *)(b + i);
        sum0 += x[0] * y[0];
        sum1 += x[1] * y[1];
        sum2 += x[2] * y[2];
        sum3 += x[3] * y[3];
    }
    sum0 = (sum0 + sum1) + (sum2 + sum3);
    double rest = 0;
    for (; i < count; i++) rest += a[i] * b[i];
    return ((sum0[0] + sum0[1]) + (sum0[2] + sum0[3])) + rest;
}
BODY void add_double_body(double *restrict to, const double *restrict from, double factor, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += factor * from[i];
}
BODY void add_float_body(float *restrict to, const float *restrict from, float factor, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += factor * from[i];
}

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2")))

WIDE static double dot_wide(const double *a, const double *b, int64_t count) { return dot_body(a, b, count); }
WIDE static void add_double_wide(double *restrict to, const double *restrict from, double factor, int64_t count) {
    add_double_body(to, from, factor, count);
}
WIDE static void add_float_wide(float *restrict to, const float *restrict from, float factor, int64_t count) {
    add_float_body(to, from, factor, count);
}
static int wide(void) { return __builtin_cpu_supports("avx2"); }
#else
#define dot_wide dot_body
#define add_double_wide add_double_body
#define add_float_wide add_float_body
static int wide(void) { return 0; }
#endif

double dense_dot(const double *a, const double *b, int64_t count) {
    return wide() ? dot_wide(a, b, count) : dot_body(a, b, count);
}
void dense_add_double(double *restrict to, const double *restrict from, double factor, int64_t count) {
    if (wide())
        add_double_wide(to, from, factor, count);
    else
        add_double_body(to, from, factor, count);
}
void dense_add_float(float *restrict to, const float *restrict from, float factor, int64_t count) {
    if (wide())
        add_float_wide(to, from, factor, count);
    else
        add_float_body(to, from, factor, count);
}
