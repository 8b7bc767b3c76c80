/* mpi_memory.c - knows segments of memory without a name: anonymous files, which other processes of the same user open
 * through /proc. One idea: nothing has to be deleted, so a killed process leaves nothing behind.
 * Price: small pages; and what another process has seen of a segment stays mapped there until the owner's next place says
 * that the segment is gone, or the transport is freed. Uses neither MPI nor the library. */
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
} segment;

struct memory {
    segment *own, *seen;
    uint64_t made;
};

memory *memory_create(void) { return calloc(1, sizeof(memory)); }

static void drop_first(segment **list, bool own) {
    segment *s = *list;
    *list = s->next;
    munmap(s->base, s->place.length);
    if (own) close((int)s->place.file);
    free(s);
}

void memory_free(memory *m) {
    if (!m) return;
    while (m->own) drop_first(&m->own, true);
    while (m->seen) drop_first(&m->seen, false);
    free(m);
}

void *memory_allocate(memory *m, size_t bytes) {
    const size_t length = bytes ? bytes : 1;
    const int file = memfd_create("burst", MFD_CLOEXEC);
    segment *s = malloc(sizeof *s);
    int taken = 0;
    /* what cannot be had fails here, not at the first touch */
    if (file >= 0 && s) do
            taken = posix_fallocate(file, 0, (off_t)length);
        while (taken == EINTR);
    if (file < 0 || !s || taken != 0) goto fail;
    s->base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (s->base == MAP_FAILED) goto fail;
    s->place = (memory_place){.process = getpid(), .file = file, .number = ++m->made, .length = length};
    s->next = m->own;
    m->own = s;
    return s->base;
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

static uint64_t oldest_number(const memory *m) {
    uint64_t oldest = m->made + 1;
    for (const segment *s = m->own; s; s = s->next) oldest = s->place.number < oldest ? s->place.number : oldest;
    return oldest;
}

bool memory_find(const memory *m, const void *at, size_t bytes, memory_place *place) {
    const segment *s = holder(m->own, at, bytes);
    const bool own = s != NULL;
    if (!s) s = holder(m->seen, at, bytes);
    if (!s) return false;
    *place = s->place;
    place->oldest = own ? oldest_number(m) : 0;
    place->offset = (uint64_t)((const char *)at - s->base);
    place->bytes = bytes;
    return true;
}

/* Segments that their owner has given up since. */
static void forget(memory *m, const memory_place *place) {
    for (segment **list = &m->seen; *list;) {
        const memory_place *p = &(*list)->place;
        if (p->process == place->process && p->number < place->oldest)
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
    *s = (segment){.place = *place, .base = base};
    return s;
}

void *memory_see(memory *m, const memory_place *place) {
    segment *s = NULL;
    if (place->process == getpid()) s = m->own; /* lent on, and come back to its owner */
    if (!s) {
        forget(m, place);
        s = m->seen;
    }
    while (s && (s->place.process != place->process || s->place.number != place->number)) s = s->next;
    if (!s && place->process != getpid()) {
        s = open_segment(place);
        if (!s) return NULL;
        s->next = m->seen;
        m->seen = s;
    }
    return s ? s->base + place->offset : NULL;
}
