/* memory.c - knows every byte the library holds, and how to multiply sizes without overflow.
 * One idea: each block is preceded by one cache line that remembers its size, so that freeing can count; tests read the
 * counters and make the k-th allocation fail. Blocks end exactly at their last byte: a sanitizer sees the next one.
 * Price: 64 bytes per block. Does not clear, resize or pool. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L
#endif
#include "base.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { LINE = 64 }; /* a cache line, and the widest vector */

static atomic_llong live_allocations;
static atomic_llong live_bytes;
static atomic_llong until_failure; /* 0: never */

/* Counts an allocation down; true for the one that has to fail. */
static bool is_chosen_to_fail(void) {
    long long left = atomic_load(&until_failure);
    while (left > 0)
        if (atomic_compare_exchange_weak(&until_failure, &left, left - 1)) return left == 1;
    return false;
}

void *base_alloc(size_t bytes) {
    void *block = NULL;
    if (is_chosen_to_fail() || bytes > (size_t)PTRDIFF_MAX - LINE) return NULL;
    if (posix_memalign(&block, LINE, bytes + LINE) != 0) return NULL;
    memcpy(block, &bytes, sizeof bytes);
    atomic_fetch_add(&live_allocations, 1);
    atomic_fetch_add(&live_bytes, (long long)bytes);
    return (char *)block + LINE;
}

void base_free(void *memory) {
    if (!memory) return;
    char *block = (char *)memory - LINE;
    size_t bytes;
    memcpy(&bytes, block, sizeof bytes);
    atomic_fetch_sub(&live_allocations, 1);
    atomic_fetch_sub(&live_bytes, (long long)bytes);
    free(block);
}

void base_fail_allocation(int64_t k) { atomic_store(&until_failure, k); }

int64_t base_live_allocations(void) { return atomic_load(&live_allocations); }

int64_t base_live_bytes(void) { return atomic_load(&live_bytes); }

bool base_multiply(size_t a, size_t b, size_t *result) {
    size_t product;
    if (__builtin_mul_overflow(a, b, &product)) return false;
    *result = product;
    return true;
}

bool base_add(size_t a, size_t b, size_t *result) {
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum)) return false;
    *result = sum;
    return true;
}
