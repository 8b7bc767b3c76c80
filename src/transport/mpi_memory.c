/* mpi_memory.c - knows segments of memory without a name: anonymous files, which other processes of the same user open
 * through /proc. One idea: nothing has to be deleted, so a killed process leaves nothing behind. A segment ends with a word
 * that is not 0 while it is in use; its owner gives all pages back at once when it is not (a hole reads as 0), and others
 * then drop what they have seen of it at their next sweep.
 * Price: small pages; a file a segment. Uses neither MPI nor the library. */
#include "mpi_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct segment {
    struct segment *next;
    memory_place place; /* of its first byte */
    char *base;
    volatile uint64_t *alive; /* behind the caller's bytes */
} segment;

struct memory {
    segment *own, *seen;
    uint64_t made;
};

memory *memory_create(void) { return calloc(1, sizeof(memory)); }

static void drop_first(segment **list, bool own) {
    segment *s = *list;
    *list = s->next;
    if (own) {
        *s->alive = 0; /* where holes are not to be had */
        (void)fallocate((int)s->place.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)s->place.length);
        close((int)s->place.file);
    }
    munmap(s->base, s->place.length);
    free(s);
}

static void settle(segment *s, char *base) {
    s->base = base;
    s->alive = (volatile uint64_t *)(void *)(base + s->place.length - sizeof *s->alive);
}

void memory_free(memory *m) {
    if (!m) return;
    while (m->own) drop_first(&m->own, true);
    while (m->seen) drop_first(&m->seen, false);
    free(m);
}

void *memory_allocate(memory *m, size_t bytes) {
    const size_t length = (bytes + 7) / 8 * 8 + sizeof(uint64_t);
    const int file = memfd_create("burst", MFD_CLOEXEC);
    segment *s = malloc(sizeof *s);
    int taken = 0;
    /* what cannot be had fails here, not at the first touch */
    if (file >= 0 && s) do
            taken = posix_fallocate(file, 0, (off_t)length);
        while (taken == EINTR);
    if (file < 0 || !s || taken != 0) goto fail;
    char *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) goto fail;
    s->place = (memory_place){.process = getpid(), .file = file, .number = ++m->made, .length = length};
    settle(s, base);
    *s->alive = 1;
    s->next = m->own;
    m->own = s;
    return base;
fail:
    if (file >= 0) close(file);
    free(s);
    return NULL;
}

void memory_release(memory *m, void *at) {
    for (segment **list = &m->own; *list; list = &(*list)->next)
        if ((*list)->base == at) {
            drop_first(list, true);
            return;
        }
}

static const segment *holder(const segment *list, const char *at, size_t bytes) {
    for (; list; list = list->next)
        if (at >= list->base && at + bytes <= list->base + list->place.length) return list;
    return NULL;
}

bool memory_find(const memory *m, const void *at, size_t bytes, memory_place *place) {
    const segment *s = holder(m->own, at, bytes);
    if (!s) s = holder(m->seen, at, bytes);
    if (!s) return false;
    *place = s->place;
    place->offset = (uint64_t)((const char *)at - s->base);
    place->bytes = bytes;
    return true;
}

void memory_sweep(memory *m) {
    for (segment **list = &m->seen; *list;) {
        if (*(*list)->alive == 0)
            drop_first(list, false);
        else
            list = &(*list)->next;
    }
}

static segment *open_segment(const memory_place *place) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)place->process, (long long)place->file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    segment *s = malloc(sizeof *s);
    char *base = MAP_FAILED;
    if (file >= 0 && s) base = mmap(NULL, place->length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (base == MAP_FAILED) {
        free(s);
        return NULL;
    }
    *s = (segment){.place = *place};
    settle(s, base);
    return s;
}

void *memory_see(memory *m, const memory_place *place) {
    segment *s = place->process == getpid() ? m->own : m->seen; /* own: lent on, and come back */
    while (s && (s->place.process != place->process || s->place.number != place->number)) s = s->next;
    if (!s && place->process != getpid()) {
        s = open_segment(place);
        if (!s) return NULL;
        s->next = m->seen;
        m->seen = s;
    }
    return s ? s->base + place->offset : NULL;
}
