/* crew.c - see crew.h. The only file of the command that knows MPI; without BURST_HAVE_MPI it says that there is none. */
#include "crew.h"
#include "need.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef BURST_HAVE_MPI
#include "burst_mpi.h"
#endif

static struct {
    int mpi, size, rank;
    int messages;    /* where the silent may still say why they end */
    int hushed, out; /* output goes nowhere; where it went before */
} processes = {0, 1, 0, 2, 0, 1};

int crew_is_mpi(void) { return processes.mpi; }

int crew_processes(void) { return processes.size; }

/* ---- threads ----------------------------------------------------------------------------------------------------- */

/* What a member offers to the one before it. */
typedef struct offer {
    const void *data;
    long number, taken; /* steps offered, and copied by the other */
} offer;

typedef struct crew_room {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int size, waiting;
    long turn;
    double *values;              /* [size] */
    offer (*offers)[CREW_LANES]; /* [size] */
    burst_transport **transports;
    burst_status status;
} crew_room;

static void thread_barrier(crew_room *room) {
    pthread_mutex_lock(&room->lock);
    const long turn = room->turn;
    if (++room->waiting == room->size) {
        room->waiting = 0;
        room->turn++;
        pthread_cond_broadcast(&room->turned);
    }
    while (room->turn == turn) pthread_cond_wait(&room->turned, &room->lock);
    pthread_mutex_unlock(&room->lock);
}

typedef struct thread_member {
    pthread_t thread;
    crew_member me;
    void (*body)(crew_member *me, void *user);
    void *user;
} thread_member;

static void *run_thread(void *user) {
    thread_member *m = user;
    m->body(&m->me, m->user);
    return NULL;
}

static int run_threads(int size, void (*body)(crew_member *me, void *user), void *user) {
    crew_room room = {.size = size};
    thread_member *all = need_array((size_t)size, sizeof *all);
    room.values = need_array((size_t)size, sizeof *room.values);
    room.transports = need_array((size_t)size, sizeof(burst_transport *));
    room.offers = need_array((size_t)size, sizeof *room.offers);
    pthread_mutex_init(&room.lock, NULL);
    pthread_cond_init(&room.turned, NULL);
    for (int n = 0; n < size; n++) {
        all[n] = (thread_member){.me = {n, size, &room}, .body = body, .user = user};
        if (n > 0 && pthread_create(&all[n].thread, NULL, run_thread, &all[n]) != 0) {
            fprintf(stderr, "burst: only %d threads of the %d ranks could be started\n", n, size);
            exit(3); /* the others would wait for ever */
        }
    }
    run_thread(&all[0]);
    for (int n = 1; n < size; n++) pthread_join(all[n].thread, NULL);
    pthread_cond_destroy(&room.turned);
    pthread_mutex_destroy(&room.lock);
    free(room.offers);
    free(room.transports);
    free(room.values);
    free(all);
    return 0;
}

static burst_status thread_transport(const crew_member *me, int ranks, burst_transport **transport) {
    crew_room *room = me->room;
    thread_barrier(room);
    if (me->rank == 0) room->status = burst_transport_create_threads(ranks, room->transports);
    thread_barrier(room);
    const burst_status status = me->rank < ranks ? room->status : BURST_OK;
    if (status == BURST_OK && me->rank < ranks) *transport = room->transports[me->rank];
    thread_barrier(room);
    return status;
}

static void thread_step_begin(crew_step *s) {
    crew_room *room = s->me->room;
    offer *mine = &room->offers[s->me->rank][s->lane];
    pthread_mutex_lock(&room->lock);
    mine->data = s->out;
    s->number = ++mine->number;
    pthread_mutex_unlock(&room->lock);
}

static int thread_step_test(crew_step *s) {
    crew_room *room = s->me->room;
    offer *next = &room->offers[(s->me->rank + 1) % s->ranks][s->lane], *mine = &room->offers[s->me->rank][s->lane];
    pthread_mutex_lock(&room->lock);
    const void *data = !s->received && next->number > next->taken ? next->data : NULL;
    int left = mine->taken >= s->number;
    pthread_mutex_unlock(&room->lock);
    if (data) { /* it stays where it is until it is marked as taken */
        memcpy(s->in, data, s->in_bytes);
        s->received = 1;
        pthread_mutex_lock(&room->lock);
        next->taken = next->number; /* it makes no other step before this one is taken */
        left = mine->taken >= s->number;
        pthread_mutex_unlock(&room->lock);
    }
    return s->received && left;
}

/* ---- MPI --------------------------------------------------------------------------------------------------------- */

/* The first of these variables that is there, as a number; -1: none. */
static int launcher_says(const char *const *names) {
    for (; *names; names++)
        if (getenv(*names)) return atoi(getenv(*names));
    return -1;
}

/* Processes that a launcher says it started: Open MPI, then MPICH and others that speak PMI. Those that speak PMIx alone do
 * not say how many: 1. */
static int launched(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
    const int size = launcher_says(names);
    return size > 0 ? size : getenv("PMIX_RANK") != NULL;
}

static int silence(int fd) {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC), before = dup(fd);
    if (nowhere < 0 || before < 0 || dup2(nowhere, fd) < 0) return -1;
    close(nowhere);
    return before;
}

static int hush(void) {
    if (processes.hushed) return 0;
    processes.hushed = 1;
    processes.messages = silence(2);
    processes.out = silence(1);
    return processes.messages < 0 || processes.out < 0;
}

void crew_hush(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
    if (launcher_says(names) > 0) hush();
}

/* These processes have nothing to do with each other. */
static void unhush(void) {
    if (!processes.hushed) return;
    dup2(processes.out, 1);
    dup2(processes.messages, 2);
    processes.hushed = 0;
}

#ifdef BURST_HAVE_MPI
static int open_mpi(int started) {
    int provided = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return 3;
    MPI_Comm_size(MPI_COMM_WORLD, &processes.size);
    MPI_Comm_rank(MPI_COMM_WORLD, &processes.rank);
    processes.mpi = 1;
    if (started > 1 && processes.size == 1) {
        fprintf(stderr, "burst: %d processes were started by an MPI that this burst was not built for\n", started);
        return 2;
    }
    if (processes.rank > 0) return hush() ? 3 : 0;
    unhush(); /* what the launcher's variables said was not MPI's rank */
    return 0;
}

void crew_close(void) {
    if (processes.mpi) MPI_Finalize();
}

void crew_give_up(const char *word, const char *sentence) {
    const struct timespec turn = {0, 50000000L * (processes.rank < 10 ? processes.rank : 10)};
    if (!processes.mpi) return;
    nanosleep(&turn, NULL); /* the first rank that is left speaks, and ends the others before they repeat it */
    dprintf(processes.messages, "burst: \"%s\": rank %d: %s\n", word, processes.rank, sentence);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void mpi_barrier(void) {
    MPI_Request request;
    int done = 0;
    const struct timespec pause = {0, 200000};
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (;;) {
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done) return;
        nanosleep(&pause, NULL);
    }
}

static double mpi_sum(double value) {
    double sum = 0;
    mpi_barrier();
    MPI_Allreduce(&value, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

static double mpi_first(double value) {
    mpi_barrier();
    MPI_Bcast(&value, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return value;
}

static double mpi_max(double value) {
    double most = 0;
    mpi_barrier();
    MPI_Allreduce(&value, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return most;
}

/* In pieces: they start earlier, and counts are ints. */
static void mpi_step_begin(crew_step *s) {
    MPI_Request *requests = (MPI_Request *)(void *)s->pieces;
    const int before = (s->me->rank + s->ranks - 1) % s->ranks, next = (s->me->rank + 1) % s->ranks;
    _Static_assert(sizeof(MPI_Request) <= sizeof(void *), "a request fits where a pointer does");
    s->requests = 0;
    for (int sending = 0; sending < 2; sending++) {
        const size_t bytes = sending ? s->out_bytes : s->in_bytes, even = (bytes + CREW_PIECES - 1) / CREW_PIECES;
        const size_t piece = even > (size_t)4 << 20 ? even : (size_t)4 << 20;
        for (size_t at = 0; at < bytes; at += piece) {
            const int count = (int)(bytes - at < piece ? bytes - at : piece);
            MPI_Request *r = &requests[s->requests++];
            if (sending)
                MPI_Isend((const char *)s->out + at, count, MPI_BYTE, before, 1000 + s->lane, MPI_COMM_WORLD, r);
            else
                MPI_Irecv((char *)s->in + at, count, MPI_BYTE, next, 1000 + s->lane, MPI_COMM_WORLD, r);
        }
    }
}

static int mpi_step_test(crew_step *s) {
    int done = 0;
    MPI_Testall(s->requests, (MPI_Request *)(void *)s->pieces, &done, MPI_STATUSES_IGNORE);
    return done;
}

static burst_status mpi_transport(const crew_member *me, int ranks, burst_transport **transport) {
    MPI_Comm some = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, me->rank < ranks ? 0 : MPI_UNDEFINED, me->rank, &some);
    if (some == MPI_COMM_NULL) return BURST_OK;
    const burst_status status = burst_transport_create_mpi(some, transport);
    MPI_Comm_free(&some);
    return status;
}
#else
static int open_mpi(int started) {
    (void)started;
    fputs("burst: this burst was built without MPI: build it where libopenmpi-dev or libmpich-dev is installed\n",
          stderr);
    return 2;
}

void crew_close(void) {}

void crew_give_up(const char *word, const char *sentence) { (void)word, (void)sentence; }

static void mpi_barrier(void) {}

static double mpi_sum(double value) { return value; }

static double mpi_first(double value) { return value; }

static double mpi_max(double value) { return value; }

static void mpi_step_begin(crew_step *s) { (void)s; }

static int mpi_step_test(crew_step *s) { return (void)s, 1; }

static burst_status mpi_transport(const crew_member *me, int ranks, burst_transport **transport) {
    (void)me, (void)ranks, (void)transport;
    return BURST_UNSUPPORTED;
}
#endif

int crew_open(crew_kind wanted) {
    const int started = launched();
    if (wanted == CREW_MPI || (wanted == CREW_AUTO && started > 0)) return open_mpi(started);
    unhush();
    return 0;
}

/* ---- either ------------------------------------------------------------------------------------------------------ */

int crew_run(int size, void (*body)(crew_member *me, void *user), void *user) {
    if (!processes.mpi) return run_threads(size, body, user);
    crew_member me = {processes.rank, processes.size, NULL};
    body(&me, user);
    return 0;
}

void crew_barrier(const crew_member *me) {
    if (me->room)
        thread_barrier(me->room);
    else
        mpi_barrier();
}

static double *post_value(const crew_member *me, double value) {
    me->room->values[me->rank] = value;
    thread_barrier(me->room);
    return me->room->values;
}

double crew_sum(const crew_member *me, double value) {
    double sum = 0;
    if (!me->room) return mpi_sum(value);
    const double *values = post_value(me, value);
    for (int n = 0; n < me->size; n++) sum += values[n];
    thread_barrier(me->room);
    return sum;
}

double crew_first(const crew_member *me, double value) {
    if (!me->room) return mpi_first(value);
    const double first = post_value(me, value)[0];
    thread_barrier(me->room);
    return first;
}

double crew_max(const crew_member *me, double value) {
    if (!me->room) return mpi_max(value);
    const double *values = post_value(me, value);
    double most = values[0];
    for (int n = 1; n < me->size; n++) most = values[n] > most ? values[n] : most;
    thread_barrier(me->room);
    return most;
}

void crew_step_begin(const crew_member *me, int ranks, int lane, const void *out, size_t out_bytes, void *in,
                     size_t in_bytes, crew_step *step) {
    *step = (crew_step){.me = me, .ranks = ranks, .lane = lane, .out = out, .in = in};
    step->out_bytes = out_bytes, step->in_bytes = in_bytes;
    step->active = 1;
    (me->room ? thread_step_begin : mpi_step_begin)(step);
}

int crew_step_test(crew_step *step) {
    if (step->active && (step->me->room ? thread_step_test : mpi_step_test)(step)) step->active = 0;
    return !step->active;
}

void crew_step_wait(crew_step *step) {
    const struct timespec pause = {0, 50000};
    while (!crew_step_test(step)) nanosleep(&pause, NULL);
}

burst_status crew_transport(const crew_member *me, int ranks, burst_transport **transport) {
    *transport = NULL;
    if (ranks == 1) return BURST_OK;
    return me->room ? thread_transport(me, ranks, transport) : mpi_transport(me, ranks, transport);
}
