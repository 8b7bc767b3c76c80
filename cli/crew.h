/* crew.h - who computes: this process alone, ranks that are its threads, or the processes that mpirun started.
 * The members of a crew all run the same function; any first few of them can be the ranks of a transport. */
#ifndef CLI_CREW_H
#define CLI_CREW_H

#include "burst.h"

typedef enum crew_kind { CREW_AUTO, CREW_THREADS, CREW_MPI } crew_kind;

/* First of all: of processes that a launcher has started only the first speaks, also where it does not come to opening MPI. */
void crew_hush(void);
/* Once, before any other. Under mpirun, or if MPI is wanted, all processes open MPI, and all but the first fall silent.
 * 0, or an exit code after a sentence on stderr. */
int crew_open(crew_kind wanted);
void crew_close(void);
/* A rank is gone, and the others would wait for it: under MPI says so and ends all processes; else returns. */
void crew_give_up(const char *word, const char *sentence);
int crew_is_mpi(void);
int crew_processes(void); /* under MPI; else 1 */

typedef struct crew_member {
    int rank, size;
    struct crew_room *room; /* what threads share */
} crew_member;

/* body on `size` members: threads of this process, or (under MPI) all processes, however many are asked for. 0, or an exit
 * code after a sentence on stderr. */
int crew_run(int size, void (*body)(crew_member *me, void *user), void *user);
/* All members wait for each other, asleep: those who compute have the cores. */
void crew_barrier(const crew_member *me);
double crew_sum(const crew_member *me, double value);   /* over all members */
double crew_first(const crew_member *me, double value); /* the first member's */
double crew_max(const crew_member *me, double value);   /* the largest */
/* All members call it; the first `ranks` get a transport of so many ranks (NULL for 1). */
burst_status crew_transport(const crew_member *me, int ranks, burst_transport **transport);

/* A step of a ring of the first `ranks` members: `out` goes to the member before, the next one's comes into `in`. For systems
 * that are not the library's. Steps of one lane come in order; `out` and `in` are the crew's until the step is done. */
enum { CREW_LANES = 2, CREW_PIECES = 64 };
typedef struct crew_step {
    const crew_member *me;
    int ranks, lane;
    const void *out;
    void *in;
    size_t out_bytes, in_bytes;
    int active, received;
    long number;
    int requests;
    void *pieces[2 * CREW_PIECES]; /* MPI's requests */
} crew_step;
void crew_step_begin(const crew_member *me, int ranks, int lane, const void *out, size_t out_bytes, void *in,
                     size_t in_bytes, crew_step *step);
int crew_step_test(crew_step *step); /* 1: done, or never begun. Pushes it on */
void crew_step_wait(crew_step *step);

#endif
