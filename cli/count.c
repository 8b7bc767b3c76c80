/* count.c - see count.h. Sizes are what the allocator really gives, so a few per mille more than was asked for. Memory that
 * another thread frees is counted as that thread's. Shared libraries (OpenBLAS, MPI) have their own, which is not seen. */
#include "count.h"

#include <malloc.h>
#include <stddef.h>
#include <sys/types.h>

static _Thread_local double live, peak, marked;

static void add(double bytes) {
    live += bytes;
    if (live > peak) peak = live;
}

void count_mark(void) { peak = marked = live; }

double count_peak(void) { return peak - marked; }

/* The linker's names: __wrap_X is called for X, __real_X is X. */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t bytes);
int __real_posix_memalign(void **memory, size_t alignment, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
int __real_posix_fallocate(int file, off_t offset, off_t bytes);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t bytes);
int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);
int __wrap_posix_fallocate(int file, off_t offset, off_t bytes);

static void *counted(void *memory) {
    if (memory) add((double)malloc_usable_size(memory));
    return memory;
}

void *__wrap_malloc(size_t bytes) { return counted(__real_malloc(bytes)); }

void *__wrap_calloc(size_t count, size_t size) { return counted(__real_calloc(count, size)); }

void *__wrap_realloc(void *memory, size_t bytes) {
    const double before = memory ? (double)malloc_usable_size(memory) : 0;
    void *now = __real_realloc(memory, bytes);
    if (now || bytes == 0) add(-before);
    return counted(now);
}

int __wrap_posix_memalign(void **memory, size_t alignment, size_t bytes) {
    const int failed = __real_posix_memalign(memory, alignment, bytes);
    if (!failed) counted(*memory);
    return failed;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) { return counted(__real_aligned_alloc(alignment, bytes)); }

void __wrap_free(void *memory) {
    if (memory) add(-(double)malloc_usable_size(memory));
    __real_free(memory);
}

/* Memory that ranks of a node lend each other is a file without a name; it is only ever given back whole, with its plan, and
 * marks come later, so its end is not counted. */
int __wrap_posix_fallocate(int file, off_t offset, off_t bytes) {
    const int failed = __real_posix_fallocate(file, offset, bytes);
    if (!failed) add((double)bytes);
    return failed;
}
