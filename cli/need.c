/* need.c - allocation that does not return without memory. */
#include "need.h"
#include "crew.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *give_up(size_t count, size_t size) {
    char sentence[96];
    snprintf(sentence, sizeof sentence, "out of memory: %zu x %zu bytes", count, size);
    crew_give_up("memory", sentence);
    fprintf(stderr, "burst: %s\n", sentence);
    exit(3);
}

static void *get(size_t count, size_t size, int zero) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes > SIZE_MAX / 2) return give_up(count, size);
    bytes = (bytes + 64) & ~(size_t)63; /* never 0: NULL always means failure */
    void *memory = aligned_alloc(64, bytes);
    if (!memory) return give_up(count, size);
    return zero ? memset(memory, 0, bytes) : memory;
}

void *need_bytes(size_t bytes) { return get(bytes, 1, 1); }
void *need_array(size_t count, size_t size) { return get(count, size, 1); }
void *need_raw(size_t count, size_t size) { return get(count, size, 0); }
