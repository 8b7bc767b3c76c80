/* mpi_carrier.c - the carrier between ranks that are MPI processes; a library of its own, the only file with <mpi.h>.
 * One idea: a channel is a tag on a private communicator. A large message travels in pieces: it starts earlier, and no
 * count passes 2^31. MPI moves large messages only while it is called, so every test is also a push.
 * Between ranks of one node visitors are lent: a note says where the bytes lie in memory that both see, and another, by the
 * loan's number, that they have been read. Nothing is copied then.
 * Uses the public interface only. Calls allocate nothing, but for what MPI does and what it takes to see a segment for the
 * first time. */
#include "burst_mpi.h"
#include "mpi_memory.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PIECES_MAX = 64,
    PIECE = 4 << 20,     /* bytes: 1 to 4 MiB pipeline best over TCP */
    PIECE_MOST = 1 << 30 /* so a message between nodes has 64 GiB at most */
};

/* Tags are channels; notes about loans have tags of their own. */
enum { LOANS_FROM = 2, LOANS_TO = 3, TAG_LOAN = 16, TAG_ACK = 32 }; /* channels 2 and 3 are those of visitors */

typedef struct loan {
    memory_place place;
    uint64_t number; /* of the lender's */
} loan;

typedef enum slot_kind { PLAIN, LEND, TAKE } slot_kind;

typedef struct slot {
    struct slot *next; /* in the pool, or among those who say goodbye */
    slot_kind kind;
    int count;   /* pieces */
    int refused; /* MPI_SUCCESS, or why not all of its pieces were taken: those that were are still on their way */
    bool receives, borrows;
    int peer;
    size_t bytes, piece;
    MPI_Request pieces[PIECES_MAX]; /* of a loan: the note, the ack */
    /* loans */
    loan note;
    void *to, *seen, *bounce; /* where to copy; where it lies; a copy of what lies where others cannot see it */
    bool acked;
} slot;

/* The ack that is expected from a rank of this node. */
typedef struct ack {
    uint64_t number;
    MPI_Request request;
} ack;

typedef struct mpi_end {
    MPI_Comm comm;
    int size;
    bool failed; /* requests may be pending: the communicator cannot be freed */
    size_t slot_count;
    slot *slots, *pool, *leaving;
    memory *memory; /* NULL: no rank of this node sees another's */
    bool *near;     /* [size]: ranks whose memory is seen here, and that see ours */
    ack *acks;      /* [size] */
    uint64_t loans;
} mpi_end;

static burst_status mpi_fail(mpi_end *e, int code, const char *what) {
    char text[MPI_MAX_ERROR_STRING] = "", sentence[MPI_MAX_ERROR_STRING + 64];
    int length = 0;
    e->failed = true;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) snprintf(text, sizeof text, "error %d", code);
    snprintf(sentence, sizeof sentence, "%s: %s", what, text);
    return burst_carrier_fail(BURST_TRANSPORT, sentence);
}

/* ---- slots ------------------------------------------------------------------------------------------------------- */

/* lent: it is not cut, its note is sent */
static slot *slot_take(mpi_end *e, int peer, size_t bytes, bool lent) {
    slot *s = e->pool;
    const size_t piece = bytes / PIECES_MAX < PIECE ? PIECE : (bytes + PIECES_MAX - 1) / PIECES_MAX;
    if (!s || (piece > PIECE_MOST && !lent)) {
        burst_carrier_fail(BURST_TRANSPORT,
                           s ? "a message between nodes has 64 GiB at most" : "too many messages in flight");
        return NULL;
    }
    e->pool = s->next;
    *s = (slot){.peer = peer, .bytes = bytes, .piece = piece, .refused = MPI_SUCCESS};
    s->count = !bytes || lent ? 1 : (int)((bytes + piece - 1) / piece);
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

/* ---- loans ------------------------------------------------------------------------------------------------------- */

static bool is_lent(const mpi_end *e, int peer, int channel) {
    return e->memory && e->near[peer] && channel >= LOANS_FROM && channel <= LOANS_TO;
}

static burst_status expect_ack(mpi_end *e, int peer) {
    ack *a = &e->acks[peer];
    if (a->request != MPI_REQUEST_NULL) return BURST_OK;
    const int code = MPI_Irecv(&a->number, sizeof a->number, MPI_BYTE, peer, TAG_ACK, e->comm, &a->request);
    return code == MPI_SUCCESS ? BURST_OK : mpi_fail(e, code, "MPI_Irecv");
}

static burst_status lend(mpi_end *e, slot *s, int channel, const void *data, uint64_t *ticket) {
    burst_status status = BURST_OK;
    s->kind = LEND;
    if (!memory_find(e->memory, data, s->bytes, &s->note.place)) {
        s->bounce = memory_allocate(e->memory, s->bytes);
        if (s->bounce) {
            memcpy(s->bounce, data, s->bytes);
            memory_find(e->memory, s->bounce, s->bytes, &s->note.place);
        } else {
            status = burst_carrier_fail(BURST_TRANSPORT, "no memory that the other rank could see");
        }
    }
    s->note.number = ++e->loans;
    if (status == BURST_OK) status = expect_ack(e, s->peer);
    if (status == BURST_OK) {
        const int code =
            MPI_Isend(&s->note, sizeof s->note, MPI_BYTE, s->peer, TAG_LOAN + channel, e->comm, &s->pieces[0]);
        if (code != MPI_SUCCESS) status = mpi_fail(e, code, "MPI_Isend");
    }
    if (status != BURST_OK) {
        if (s->bounce) memory_release(e->memory, s->bounce);
        slot_drop(e, s);
    }
    *ticket = ticket_of(s);
    return status;
}

static burst_status take(mpi_end *e, slot *s, int channel, uint64_t *ticket) {
    s->kind = TAKE;
    const int code = MPI_Irecv(&s->note, sizeof s->note, MPI_BYTE, s->peer, TAG_LOAN + channel, e->comm, &s->pieces[0]);
    *ticket = ticket_of(s);
    if (code == MPI_SUCCESS) return BURST_OK;
    slot_drop(e, s);
    return mpi_fail(e, code, "MPI_Irecv");
}

/* The lender is told; the slot leaves when that has gone out. */
static void leave(mpi_end *e, slot *s) {
    if (MPI_Isend(&s->note.number, sizeof s->note.number, MPI_BYTE, s->peer, TAG_ACK, e->comm, &s->pieces[1]) !=
        MPI_SUCCESS)
        e->failed = true;
    s->next = e->leaving;
    e->leaving = s;
}

/* Acks that have come, and those that have gone. */
static burst_status push_acks(mpi_end *e) {
    for (int peer = 0; peer < e->size; peer++) {
        int done = e->acks[peer].request != MPI_REQUEST_NULL;
        while (done) {
            const int code = MPI_Test(&e->acks[peer].request, &done, MPI_STATUS_IGNORE);
            if (code != MPI_SUCCESS) return mpi_fail(e, code, "MPI_Test");
            if (!done) break;
            for (size_t n = 0; n < e->slot_count; n++)
                if (e->slots[n].kind == LEND && e->slots[n].note.number == e->acks[peer].number)
                    e->slots[n].acked = true;
            const burst_status status = expect_ack(e, peer);
            if (status != BURST_OK) return status;
        }
    }
    for (slot **at = &e->leaving; *at;) {
        slot *s = *at;
        int done = 0;
        const int code = MPI_Test(&s->pieces[1], &done, MPI_STATUS_IGNORE);
        if (code != MPI_SUCCESS) return mpi_fail(e, code, "MPI_Test");
        if (done) {
            *at = s->next;
            slot_drop(e, s);
        } else {
            at = &s->next;
        }
    }
    return BURST_OK;
}

static burst_status test_lend(mpi_end *e, slot *s, int *done) {
    int sent = 0;
    const int code = MPI_Test(&s->pieces[0], &sent, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return mpi_fail(e, code, "MPI_Test");
    *done = sent && s->acked;
    if (!*done) return BURST_OK;
    if (s->bounce) memory_release(e->memory, s->bounce);
    slot_drop(e, s);
    return BURST_OK;
}

static burst_status test_take(mpi_end *e, slot *s, int *done) {
    int here = 0;
    const int code = MPI_Test(&s->pieces[0], &here, MPI_STATUS_IGNORE);
    if (code != MPI_SUCCESS) return mpi_fail(e, code, "MPI_Test");
    if (!here) return BURST_OK;
    if (s->note.place.bytes != s->bytes) {
        e->failed = true;
        return burst_carrier_fail(BURST_TRANSPORT, "another number of bytes was lent than was expected");
    }
    s->seen = memory_see(e->memory, &s->note.place);
    if (!s->seen) {
        e->failed = true;
        return burst_carrier_fail(BURST_TRANSPORT, "what was lent cannot be seen");
    }
    *done = 1;
    if (s->borrows) return BURST_OK;
    memcpy(s->to, s->seen, s->bytes);
    leave(e, s);
    return BURST_OK;
}

static burst_status mpi_borrow(void *self, int peer, int channel, size_t bytes, uint64_t *ticket) {
    mpi_end *e = self;
    slot *s = slot_take(e, peer, bytes, true);
    if (!s) return BURST_TRANSPORT;
    s->receives = s->borrows = true;
    return take(e, s, channel, ticket);
}

static void *mpi_borrowed(void *self, uint64_t ticket) {
    (void)self;
    return slot_of(ticket)->seen;
}

static void mpi_give_back(void *self, uint64_t ticket) { leave(self, slot_of(ticket)); }

static int mpi_lends(void *self, int peer) {
    const mpi_end *e = self;
    return e->memory && e->near[peer];
}

/* Plans are made and freed between calls: nothing that was borrowed is in use then. */
static void *mpi_allocate(void *self, size_t bytes) {
    const mpi_end *e = self;
    memory_sweep(e->memory);
    return memory_allocate(e->memory, bytes);
}

static void mpi_release(void *self, void *at, size_t bytes) {
    const mpi_end *e = self;
    (void)bytes;
    memory_release(e->memory, at);
    memory_sweep(e->memory);
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Pieces that MPI has taken are on their way even if it refuses a later one: the message then stands, and fails when it is
 * tested, so that whoever gives it up learns whether its memory is free. */
static burst_status posted(slot *s, int pieces, int code, uint64_t *ticket) {
    if (code != MPI_SUCCESS) s->count = pieces, s->refused = code;
    *ticket = ticket_of(s);
    return BURST_OK;
}

static burst_status mpi_send(void *self, int peer, int channel, const void *data, size_t bytes, uint64_t *ticket) {
    mpi_end *e = self;
    const bool lent = is_lent(e, peer, channel);
    slot *s = slot_take(e, peer, bytes, lent);
    if (!s) return BURST_TRANSPORT;
    if (lent) return lend(e, s, channel, data, ticket);
    int n = 0, code = MPI_SUCCESS;
    for (; n < s->count && code == MPI_SUCCESS; n++)
        code = MPI_Isend((const char *)data + (size_t)n * s->piece, piece_bytes(s, n), MPI_BYTE, peer, channel, e->comm,
                         &s->pieces[n]);
    return posted(s, n - 1, code, ticket);
}

static burst_status mpi_receive(void *self, int peer, int channel, void *data, size_t bytes, uint64_t *ticket) {
    mpi_end *e = self;
    const bool lent = is_lent(e, peer, channel);
    slot *s = slot_take(e, peer, bytes, lent);
    if (!s) return BURST_TRANSPORT;
    s->receives = true;
    s->to = data;
    if (lent) return take(e, s, channel, ticket);
    int n = 0, code = MPI_SUCCESS;
    for (; n < s->count && code == MPI_SUCCESS; n++)
        code = MPI_Irecv((char *)data + (size_t)n * s->piece, piece_bytes(s, n), MPI_BYTE, peer, channel, e->comm,
                         &s->pieces[n]);
    return posted(s, n - 1, code, ticket);
}

static burst_status mpi_test(void *self, uint64_t ticket, int *done) {
    mpi_end *e = self;
    slot *s = slot_of(ticket);
    MPI_Status statuses[PIECES_MAX];
    *done = 0;
    const burst_status status = e->memory ? push_acks(e) : BURST_OK;
    if (status != BURST_OK) return status;
    if (s->kind == LEND) return test_lend(e, s, done);
    if (s->kind == TAKE) return test_take(e, s, done);
    if (s->refused != MPI_SUCCESS) return mpi_fail(e, s->refused, s->receives ? "MPI_Irecv" : "MPI_Isend");
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

/* A loan that is out gets two seconds to come back: whoever reads looks up about every millisecond. */
static bool cancel_lend(mpi_end *e, slot *s) {
    const struct timespec pause = {0, 1000000};
    for (int tries = 0; tries < (e->failed ? 1 : 2000); tries++) {
        int done = 0;
        if (push_acks(e) != BURST_OK || test_lend(e, s, &done) != BURST_OK) return false;
        if (done) return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

/* MPI takes receives back unless their message is on its way; sends it does not: they get a second to leave. */
static int mpi_cancel(void *self, uint64_t ticket) {
    mpi_end *e = self;
    slot *s = slot_of(ticket);
    const struct timespec pause = {0, 1000000};
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized) return 0;
    if (s->kind == LEND) {
        const bool over = cancel_lend(e, s);
        e->failed = e->failed || !over;
        return over;
    }
    for (int n = 0; n < (s->kind == TAKE ? 1 : s->count) && s->receives; n++)
        if (s->pieces[n] != MPI_REQUEST_NULL) MPI_Cancel(&s->pieces[n]);
    for (int tries = 0; tries < 1000; tries++) {
        int done = 0;
        MPI_Status statuses[PIECES_MAX];
        if (MPI_Testall(s->kind == TAKE ? 1 : s->count, s->pieces, &done, statuses) != MPI_SUCCESS) break;
        if (done) {
            int taken_back = 1;
            if (s->kind == TAKE) MPI_Test_cancelled(&statuses[0], &taken_back);
            if (taken_back)
                slot_drop(e, s);
            else
                leave(e, s); /* the note had come: its lender waits for the ack */
            return 1;
        }
        nanosleep(&pause, NULL);
    }
    e->failed = true;
    return 0;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static void end_free(mpi_end *e) {
    if (!e) return;
    memory_free(e->memory);
    free(e->slots);
    free(e->near);
    free(e->acks);
    free(e);
}

/* What MPI may still touch is left to it. */
static void mpi_close(void *self) {
    mpi_end *e = self;
    const struct timespec pause = {0, 1000000};
    int over = 0;
    MPI_Finalized(&over);
    for (int tries = 0; e->leaving && !e->failed && !over && tries < 1000; tries++) {
        if (push_acks(e) != BURST_OK) break;
        nanosleep(&pause, NULL);
    }
    if (e->failed || e->leaving) return;
    for (int peer = 0; peer < e->size && !over; peer++) {
        if (e->acks[peer].request == MPI_REQUEST_NULL) continue;
        MPI_Cancel(&e->acks[peer].request);
        MPI_Wait(&e->acks[peer].request, MPI_STATUS_IGNORE);
    }
    if (!over) MPI_Comm_free(&e->comm);
    end_free(e);
}

/* Does every rank of this node see what every other has put into its memory? */
static bool try_sight(MPI_Comm node, int here, memory *m) {
    uint64_t *word = memory_allocate(m, sizeof *word);
    memory_place mine = {.length = 0}, *all = malloc((size_t)here * sizeof *all);
    int rank = 0, seen = word && all;
    MPI_Comm_rank(node, &rank);
    if (word) *word = 0xb1257 + (uint64_t)rank;
    if (word) memory_find(m, word, sizeof *word, &mine);
    int all_see = 0;
    MPI_Allreduce(&seen, &all_see, 1, MPI_INT, MPI_MIN, node);
    if (all_see) MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, node);
    for (int n = 0; n < here && all_see && seen; n++) {
        const uint64_t *other = all[n].length ? memory_see(m, &all[n]) : NULL;
        seen = other && *other == 0xb1257 + (uint64_t)n;
    }
    seen = seen && all_see;
    MPI_Allreduce(&seen, &all_see, 1, MPI_INT, MPI_MIN, node); /* after it nobody reads the words any more */
    if (word) memory_release(m, word);
    free(all);
    return all_see;
}

/* With how many ranks of this node (itself among them) this one has to share its cores: launchers often give each rank some
 * of its own. */
static int sharers(MPI_Comm node, int here) {
    cpu_set_t mine, both, *all = malloc((size_t)here * sizeof *all);
    int known = all && sched_getaffinity(0, sizeof mine, &mine) == 0, all_know = 0, count = 0;
    MPI_Allreduce(&known, &all_know, 1, MPI_INT, MPI_MIN, node);
    if (all_know) MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all, sizeof mine, MPI_BYTE, node);
    for (int n = 0; n < here && all_know; n++) {
        CPU_AND(&both, &mine, &all[n]);
        count += CPU_COUNT(&both) > 0;
    }
    free(all);
    return all_know ? count : here;
}

/* Which ranks are on this node, and whether their memory can be seen. Returns how many share the cores. */
static int look_around(mpi_end *e, MPI_Comm comm) {
    MPI_Comm node;
    MPI_Group here_group, all_group;
    int here = 1;
    if (MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS) return 1;
    MPI_Comm_size(node, &here);
    memory *m = here > 1 ? memory_create() : NULL;
    int have = m != NULL, all_have = 0;
    MPI_Allreduce(&have, &all_have, 1, MPI_INT, MPI_MIN, node);
    if (all_have && try_sight(node, here, m)) {
        e->memory = m;
        MPI_Comm_group(node, &here_group);
        MPI_Comm_group(comm, &all_group);
        for (int n = 0; n < here; n++) {
            int peer = MPI_UNDEFINED;
            MPI_Group_translate_ranks(here_group, 1, &n, all_group, &peer);
            if (peer != MPI_UNDEFINED) e->near[peer] = true;
        }
        MPI_Group_free(&here_group);
        MPI_Group_free(&all_group);
    } else {
        memory_free(m);
    }
    const int sharing = sharers(node, here);
    MPI_Comm_free(&node);
    return sharing;
}

static mpi_end *end_create(MPI_Comm comm, int size) {
    const size_t ranks = (size_t)size, count = 6 * ranks + 160; /* notes from all, two rings of visitors, and some */
    mpi_end *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    *e = (mpi_end){.comm = comm, .size = size, .slot_count = count};
    e->slots = calloc(count, sizeof *e->slots);
    e->near = calloc(ranks, sizeof *e->near);
    e->acks = calloc(ranks, sizeof *e->acks);
    if (!e->slots || !e->near || !e->acks) {
        end_free(e);
        return NULL;
    }
    for (size_t n = 0; n < count; n++) slot_drop(e, &e->slots[n]);
    for (int n = 0; n < size; n++) e->acks[n].request = MPI_REQUEST_NULL;
    return e;
}

static burst_status check_mpi(MPI_Comm comm, burst_transport **transport) {
    int ready = 0, over = 0, provided = 0, inter = 0;
    if (!transport) return burst_carrier_fail(BURST_INVALID, "transport is NULL: expected where to put the handle");
    MPI_Initialized(&ready);
    MPI_Finalized(&over);
    if (!ready || over)
        return burst_carrier_fail(BURST_INVALID, ready ? "MPI has been finalized" : "MPI is not initialized");
    if (comm == MPI_COMM_NULL) return burst_carrier_fail(BURST_INVALID, "the communicator is MPI_COMM_NULL");
    MPI_Comm_test_inter(comm, &inter);
    if (inter)
        return burst_carrier_fail(BURST_INVALID,
                                  "the communicator is an intercommunicator: expected one group of ranks; "
                                  "MPI_Intercomm_merge makes one of two");
    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_FUNNELED)
        return burst_carrier_fail(BURST_INVALID,
                                  "MPI was initialized without threads: MPI_Init_thread with "
                                  "MPI_THREAD_FUNNELED is needed, because each rank computes with threads");
    return BURST_OK;
}

/* Errors come back as codes, of the duplicate and of making it; the caller's handler is often one that aborts. */
static int duplicate(MPI_Comm comm, MPI_Comm *own) {
    MPI_Errhandler before;
    MPI_Comm_get_errhandler(comm, &before);
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    const int code = MPI_Comm_dup(comm, own);
    if (code == MPI_SUCCESS) MPI_Comm_set_errhandler(*own, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(comm, before);
    MPI_Errhandler_free(&before);
    return code;
}

burst_status burst_transport_create_mpi(MPI_Comm comm, burst_transport **transport) {
    burst_carrier carrier = BURST_CARRIER_INIT;
    burst_status status = check_mpi(comm, transport);
    MPI_Comm own;
    int rank = 0, size = 1;
    if (status != BURST_OK) return status;
    if (duplicate(comm, &own) != MPI_SUCCESS)
        return burst_carrier_fail(BURST_TRANSPORT, "the communicator cannot be duplicated");
    MPI_Comm_rank(own, &rank);
    MPI_Comm_size(own, &size);
    mpi_end *e = end_create(own, size);
    int made = e != NULL, all = 0;
    MPI_Allreduce(&made, &all, 1, MPI_INT, MPI_MIN, own);
    const int here = all ? look_around(e, own) : 1;
    carrier.send = mpi_send, carrier.receive = mpi_receive, carrier.test = mpi_test;
    carrier.cancel = mpi_cancel, carrier.close = mpi_close;
    if (all && e->memory) {
        carrier.lends = mpi_lends, carrier.borrow = mpi_borrow;
        carrier.borrowed = mpi_borrowed, carrier.give_back = mpi_give_back;
        carrier.allocate = mpi_allocate, carrier.release = mpi_release;
    }
    status = all ? burst_transport_create_custom(&carrier, e, rank, size, here, transport)
                 : burst_carrier_fail(BURST_MEMORY, "no memory for the messages of some rank");
    int fine = status == BURST_OK, all_fine = 0;
    MPI_Allreduce(&fine, &all_fine, 1, MPI_INT, MPI_MIN, own);
    if (all_fine) return BURST_OK;
    if (fine) {
        burst_transport_free(*transport);
        *transport = NULL;
        return burst_carrier_fail(BURST_MEMORY, "no memory for the transport of some other rank");
    }
    end_free(e);
    MPI_Comm_free(&own);
    return status;
}
