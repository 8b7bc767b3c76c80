/* base.h - what every folder may use: the last error, counted memory, checked sizes, the CPU, the clock.
 * Knows nothing of attention. */
#ifndef BURST_BASE_H
#define BURST_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "burst.h"

/* Records the sentence for burst_last_error() of this thread and returns `status`. The function that decides that
 * something is an error calls it; callers only forward the status. */
burst_status base_fail(burst_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The struct_size of a struct that the caller filled, against the size this library knows. */
burst_status base_check_struct(const char *name, size_t given, size_t known);

/* 64-byte aligned, not cleared; NULL on failure (no sentence set). bytes may be 0. Counted, so that tests can ask what
 * is still allocated and make the k-th allocation fail. */
void *base_alloc(size_t bytes);
void base_free(void *memory);
/* Tests only: the k-th allocation from now on fails (1 = the next), all others succeed; 0 switches it off. */
void base_fail_allocation(int64_t k);
int64_t base_live_allocations(void);
int64_t base_live_bytes(void);

/* Bytes of an element of tensors (0: no such type); of lse, sinks, running results and sums. */
static inline size_t dtype_bytes(burst_dtype dtype) {
    if (dtype == BURST_F64) return sizeof(double);
    if (dtype == BURST_F32) return sizeof(float);
    return dtype == BURST_BF16 || dtype == BURST_F16 ? sizeof(uint16_t) : 0;
}
static inline size_t dtype_sum_bytes(burst_dtype dtype) { return dtype == BURST_F64 ? sizeof(double) : sizeof(float); }

/* false if the product or the sum overflows a size_t; *result is then untouched */
bool base_multiply(size_t a, size_t b, size_t *result);
bool base_add(size_t a, size_t b, size_t *result);

bool base_cpu_runs(burst_isa isa); /* the CPU (and the system) can run it, whether or not it is built in */
int base_cores(void);              /* cores this process may use, at least 1 */
double base_seconds(void);         /* monotonic clock */

#endif
