/* mpi_carrier.c - the carrier between ranks that are MPI processes; a library of its own, the only file with <mpi.h>.
 * One idea: a channel is a tag on a private communicator. A large message travels in pieces: it starts earlier, and no
 * count passes 2^31. MPI moves large messages only while it is called, so every test is also a push.
 * Uses the public interface only. Nothing is allocated after the carrier, except by MPI. */
#include "burst_mpi.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PIECES_MAX = 64,
    PIECE = 4 << 20,     /* bytes: 1 to 4 MiB pipeline best over TCP */
    PIECE_MOST = 1 << 30 /* so a message has 64 GiB at most */
};

typedef struct slot {
    struct slot *next; /* in the pool */
    int count;         /* pieces */
    bool receives;
    int peer;
    size_t bytes, piece;
    MPI_Request pieces[PIECES_MAX];
} slot;

typedef struct mpi_end {
    MPI_Comm comm;
    bool failed; /* requests may be pending: the communicator cannot be freed */
    slot *slots, *pool;
} mpi_end;

static burst_status mpi_fail(mpi_end *e, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "", sentence[MPI_MAX_ERROR_STRING + 64];
    int length = 0;
    e->failed = true;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) snprintf(text, sizeof text, "error %d", code);
    snprintf(sentence, sizeof sentence, "%s: %s", what, text);
    return burst_carrier_fail(BURST_TRANSPORT, sentence);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static slot *slot_take(mpi_end *e, size_t bytes) {
    slot *s = e->pool;
    const size_t piece = bytes / PIECES_MAX < PIECE ? PIECE : (bytes + PIECES_MAX - 1) / PIECES_MAX;
    if (!s || piece > PIECE_MOST) {
        burst_carrier_fail(BURST_TRANSPORT, s ? "a message has 64 GiB at most" : "too many messages in flight");
        return NULL;
    }
    e->pool = s->next;
    s->bytes = bytes;
    s->piece = piece;
    s->count = bytes ? (int)((bytes + piece - 1) / piece) : 1;
    for (int n = 0; n < PIECES_MAX; n++) s->pieces[n] = MPI_REQUEST_NULL;
    return s;
}

static void slot_drop(mpi_end *e, slot *s) {
    s->next = e->pool;
    e->pool = s;
}

static int piece_bytes(const slot *s, int n) {
    const size_t first = (size_t)n * s->piece, left = s->bytes - first;
    return (int)(left < s->piece ? left : s->piece);
}

static uint64_t ticket_of(slot *s) { return (uint64_t)(uintptr_t)s; }

static slot *slot_of(uint64_t ticket) { return (slot *)(uintptr_t)ticket; }

static burst_status mpi_send(void *self, int peer, int channel, const void *data, size_t bytes, uint64_t *ticket) {
    mpi_end *e = self;
    slot *s = slot_take(e, bytes);
    if (!s) return BURST_TRANSPORT;
    s->receives = false;
    s->peer = peer;
    for (int n = 0; n < s->count; n++) {
        const int code = MPI_Isend((const char *)data + (size_t)n * s->piece, piece_bytes(s, n), MPI_BYTE, peer,
                                   channel, e->comm, &s->pieces[n]);
        if (code != MPI_SUCCESS) return mpi_fail(e, code, "MPI_Isend");
    }
    *ticket = ticket_of(s);
    return BURST_OK;
}

static burst_status mpi_receive(void *self, int peer, int channel, void *data, size_t bytes, uint64_t *ticket) {
    mpi_end *e = self;
    slot *s = slot_take(e, bytes);
    if (!s) return BURST_TRANSPORT;
    s->receives = true;
    s->peer = peer;
    for (int n = 0; n < s->count; n++) {
        const int code = MPI_Irecv((char *)data + (size_t)n * s->piece, piece_bytes(s, n), MPI_BYTE, peer, channel,
                                   e->comm, &s->pieces[n]);
        if (code != MPI_SUCCESS) return mpi_fail(e, code, "MPI_Irecv");
    }
    *ticket = ticket_of(s);
    return BURST_OK;
}

static burst_status mpi_test(void *self, uint64_t ticket, int *done) {
    mpi_end *e = self;
    slot *s = slot_of(ticket);
    MPI_Status statuses[PIECES_MAX];
    *done = 0;
    const int code = MPI_Testall(s->count, s->pieces, done, statuses);
    if (code != MPI_SUCCESS) return mpi_fail(e, code, "MPI_Testall");
    if (!*done) return BURST_OK;
    for (int n = 0; n < s->count && s->receives; n++) {
        int bytes = 0;
        MPI_Get_count(&statuses[n], MPI_BYTE, &bytes);
        if (bytes == piece_bytes(s, n)) continue;
        e->failed = true;
        return burst_carrier_fail(BURST_TRANSPORT, "fewer bytes came than were expected");
    }
    slot_drop(e, s);
    return BURST_OK;
}

/* MPI takes receives back unless their message is on its way; sends it does not: they get a second to leave. */
static int mpi_cancel(void *self, uint64_t ticket) {
    mpi_end *e = self;
    slot *s = slot_of(ticket);
    const struct timespec pause = {0, 1000000};
    for (int n = 0; n < s->count && s->receives; n++)
        if (s->pieces[n] != MPI_REQUEST_NULL) MPI_Cancel(&s->pieces[n]);
    for (int tries = 0; tries < 1000; tries++) {
        int done = 0;
        MPI_Status statuses[PIECES_MAX];
        if (MPI_Testall(s->count, s->pieces, &done, statuses) != MPI_SUCCESS) break;
        if (done) {
            slot_drop(e, s);
            return 1;
        }
        nanosleep(&pause, NULL);
    }
    e->failed = true;
    return 0;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

/* What MPI may still touch is left to it. */
static void mpi_close(void *self) {
    mpi_end *e = self;
    int over = 0;
    MPI_Finalized(&over);
    if (e->failed) return;
    if (!over) MPI_Comm_free(&e->comm);
    free(e->slots);
    free(e);
}

static int ranks_here(MPI_Comm comm) {
    MPI_Comm node;
    int here = 1;
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS) return 1;
    MPI_Comm_size(node, &here);
    MPI_Comm_free(&node);
    return here;
}

static mpi_end *end_create(MPI_Comm comm, int size) {
    const size_t count = 6 * (size_t)size + 160; /* notes from all, two rings of visitors, and some */
    mpi_end *e = malloc(sizeof *e);
    slot *slots = e ? calloc(count, sizeof *slots) : NULL;
    if (!slots) {
        free(e);
        return NULL;
    }
    *e = (mpi_end){.comm = comm, .slots = slots};
    for (size_t n = 0; n < count; n++) slot_drop(e, &slots[n]);
    return e;
}

static burst_status check_mpi(MPI_Comm comm, burst_transport **transport) {
    int ready = 0, over = 0, provided = 0;
    if (!transport) return burst_carrier_fail(BURST_INVALID, "transport is NULL: expected where to put the handle");
    MPI_Initialized(&ready);
    MPI_Finalized(&over);
    if (!ready || over)
        return burst_carrier_fail(BURST_INVALID, ready ? "MPI has been finalized" : "MPI is not initialized");
    if (comm == MPI_COMM_NULL) return burst_carrier_fail(BURST_INVALID, "the communicator is MPI_COMM_NULL");
    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_FUNNELED)
        return burst_carrier_fail(BURST_INVALID,
                                  "MPI was initialized without threads: MPI_Init_thread with "
                                  "MPI_THREAD_FUNNELED is needed, because each rank computes with threads");
    return BURST_OK;
}

burst_status burst_transport_create_mpi(MPI_Comm comm, burst_transport **transport) {
    burst_carrier carrier = BURST_CARRIER_INIT;
    burst_status status = check_mpi(comm, transport);
    MPI_Comm own;
    int rank = 0, size = 1;
    if (status != BURST_OK) return status;
    if (MPI_Comm_dup(comm, &own) != MPI_SUCCESS)
        return burst_carrier_fail(BURST_TRANSPORT, "the communicator cannot be duplicated");
    MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
    MPI_Comm_rank(own, &rank);
    MPI_Comm_size(own, &size);
    const int here = ranks_here(own);
    mpi_end *e = end_create(own, size);
    int made = e != NULL, all = 0;
    MPI_Allreduce(&made, &all, 1, MPI_INT, MPI_MIN, own);
    carrier.send = mpi_send, carrier.receive = mpi_receive, carrier.test = mpi_test;
    carrier.cancel = mpi_cancel, carrier.close = mpi_close;
    status = all ? burst_transport_create_custom(&carrier, e, rank, size, here, transport)
                 : burst_carrier_fail(BURST_MEMORY, "no memory for the messages of some rank");
    if (status == BURST_OK) return BURST_OK;
    if (e) free(e->slots);
    free(e);
    MPI_Comm_free(&own);
    return status;
}
