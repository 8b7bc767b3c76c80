/* mpi_memory.h - memory that processes of one node can read of each other, for mpi_carrier.c. */
#ifndef BURST_MPI_MEMORY_H
#define BURST_MPI_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where some bytes lie, in words that every process of the node understands. */
typedef struct memory_place {
    int64_t process, file;          /* of the owner */
    uint64_t number;                /* of the segment, in the order in which the owner made them */
    uint64_t offset, bytes, length; /* within the segment, of length bytes */
} memory_place;

typedef struct memory memory; /* of this process: its own segments, and those of others that it has seen */

memory *memory_create(void); /* NULL: no memory */
void memory_free(memory *m);
/* 64-byte aligned, NULL on failure. */
void *memory_allocate(memory *m, size_t bytes);
/* Its pages are free at once, whoever has seen them. */
void memory_release(memory *m, void *at);
/* Drops what was seen of segments that their owners have released. Not while anything that was seen is in use. */
void memory_sweep(memory *m);
/* false: the bytes are in no segment. */
bool memory_find(const memory *m, const void *at, size_t bytes, memory_place *place);
/* The bytes of a place, here; NULL if they cannot be seen. */
void *memory_see(memory *m, const memory_place *place);

#endif
