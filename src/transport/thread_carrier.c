/* thread_carrier.c - the carrier between ranks that are threads of one process, and a helper that starts them.
 * One idea: a message is a record that meets its counterpart in a hub under one lock; a borrower reads the sender's memory
 * where it lies, otherwise whoever comes second copies it, outside the lock. Small messages wait in the record itself, so
 * that their sender may leave.
 * Nothing is allocated after the hub. Price: one lock, which is held for a few instructions, a few times a message. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "transport.h"

enum { SMALL = 256 };

typedef struct record {
    struct record *next; /* in its box, or in the pool */
    struct record *pair; /* the other end, once it is there */
    bool receives, borrows, over;
    bool orphan; /* a small message whose sender has been told that it is done */
    int from, to, channel;
    void *data;
    size_t bytes;
    unsigned char small[SMALL];
} record;

/* Posts of one direction that still wait for their counterparts, oldest first: all sends, or all receives. */
typedef struct box {
    record *head, **tail;
} box;

typedef struct hub {
    pthread_mutex_t lock;
    int size, open; /* open: ends that are not freed */
    bool *closed;   /* [size] */
    box *boxes;     /* [from][to][channel] */
    record *records, *pool;
} hub;

typedef struct end {
    hub *hub;
    int rank;
    bool hopeless; /* a reader did not give back in time: the next are not waited for */
} end;

static void lock(hub *h) { pthread_mutex_lock(&h->lock); }

static void unlock(hub *h) { pthread_mutex_unlock(&h->lock); }

/* ---- the hub ----------------------------------------------------------------------------------------------------- */

static void hub_free(hub *h) {
    if (!h) return;
    pthread_mutex_destroy(&h->lock);
    base_free(h->closed);
    base_free(h->boxes);
    base_free(h->records);
    base_free(h);
}

static hub *hub_create(int size) {
    const size_t ranks = (size_t)size, boxes = ranks * ranks * TRANSPORT_CHANNELS;
    const size_t records = ranks * (6 * ranks + 160); /* notes from all, two rings of borrowed visitors, and some */
    hub *h = base_alloc(sizeof *h);
    if (!h) return NULL;
    *h = (hub){.size = size, .open = size};
    pthread_mutex_init(&h->lock, NULL);
    h->closed = base_alloc(ranks * sizeof *h->closed);
    h->boxes = h->closed ? base_alloc(boxes * sizeof *h->boxes) : NULL;
    h->records = h->boxes ? base_alloc(records * sizeof *h->records) : NULL;
    if (!h->records) {
        hub_free(h);
        return NULL;
    }
    memset(h->closed, 0, ranks * sizeof *h->closed);
    for (size_t n = 0; n < boxes; n++) h->boxes[n] = (box){NULL, &h->boxes[n].head};
    for (size_t n = 0; n < records; n++) {
        h->records[n].next = h->pool;
        h->pool = &h->records[n];
    }
    return h;
}

static box *box_of(hub *h, const record *r) {
    return &h->boxes[((size_t)r->from * (size_t)h->size + (size_t)r->to) * TRANSPORT_CHANNELS + (size_t)r->channel];
}

static void drop(hub *h, record *r) {
    r->next = h->pool;
    h->pool = r;
}

/* Takes r out of its box, if it waits there. */
static bool withdraw(hub *h, record *r) {
    box *b = box_of(h, r);
    for (record **at = &b->head; *at; at = &(*at)->next) {
        if (*at != r) continue;
        *at = r->next;
        if (b->tail == &r->next) b->tail = at;
        return true;
    }
    return false;
}

/* The send is over: its sender will be told, or has been. */
static void settle(hub *h, record *send) {
    if (send->orphan)
        drop(h, send);
    else
        send->over = true;
}

/* ---- carrier ----------------------------------------------------------------------------------------------------- */

static uint64_t ticket_of(record *r) { return (uint64_t)(uintptr_t)r; }

static record *record_of(uint64_t ticket) { return (record *)(uintptr_t)ticket; }

/* Under the lock: the oldest post that waits in the box, if it is of the other kind. */
static record *counterpart(box *b, const record *r) {
    record *other = b->head;
    if (!other || other->receives == r->receives) return NULL;
    b->head = other->next;
    if (!b->head) b->tail = &b->head;
    return other;
}

static void wait_in(box *b, record *r) {
    r->next = NULL;
    *b->tail = r;
    b->tail = &r->next;
}

/* Under the lock, which is let go meanwhile: both ends stay as they are until the copy is made. */
static void copy(hub *h, record *send, record *receive) {
    unlock(h);
    if (send->bytes) memcpy(receive->data, send->data, send->bytes);
    lock(h);
    receive->over = true;
    settle(h, send);
}

/* Puts a post where it meets its counterpart. */
static burst_status post(hub *h, const record *like, uint64_t *ticket) {
    lock(h);
    record *r = h->pool;
    if (!r) {
        unlock(h);
        return base_fail(BURST_TRANSPORT, "too many messages in flight");
    }
    h->pool = r->next;
    memcpy(r, like, offsetof(record, small));
    if (!r->receives && r->bytes <= SMALL) {
        if (r->bytes) memcpy(r->small, r->data, r->bytes);
        r->data = r->small;
        r->orphan = true;
    }
    *ticket = r->orphan ? 0 : ticket_of(r);
    box *b = box_of(h, r);
    record *other = counterpart(b, r);
    if (other) {
        record *send = r->receives ? other : r, *receive = r->receives ? r : other;
        r->pair = other, other->pair = r;
        if (!receive->borrows && send->bytes == receive->bytes) copy(h, send, receive);
    } else {
        wait_in(b, r);
    }
    unlock(h);
    return BURST_OK;
}

static burst_status threads_send(void *self, int peer, int channel, const void *data, size_t bytes, uint64_t *ticket) {
    const end *e = self;
    const record r = {.from = e->rank,
                      .to = peer,
                      .channel = channel,
                      .data = (void *)(uintptr_t)data, /* only read */
                      .bytes = bytes};
    return post(e->hub, &r, ticket);
}

static burst_status threads_receive(void *self, int peer, int channel, void *data, size_t bytes, uint64_t *ticket) {
    const end *e = self;
    const record r = {.receives = true, .from = peer, .to = e->rank, .channel = channel, .data = data, .bytes = bytes};
    return post(e->hub, &r, ticket);
}

static burst_status threads_borrow(void *self, int peer, int channel, size_t bytes, uint64_t *ticket) {
    const end *e = self;
    const record r = {
        .receives = true, .borrows = true, .from = peer, .to = e->rank, .channel = channel, .bytes = bytes};
    return post(e->hub, &r, ticket);
}

static burst_status test_receive(const hub *h, const record *r, int *done) {
    const record *send = r->pair;
    if (!send && h->closed[r->from]) return base_fail(BURST_PEER, "rank %d has left", r->from);
    if (send && send->bytes != r->bytes)
        return base_fail(BURST_TRANSPORT, "rank %d sent %zu bytes, %zu were expected", r->from, send->bytes, r->bytes);
    *done = send && r->borrows;
    return BURST_OK;
}

static burst_status test_record(hub *h, record *r, int *done) {
    if (r->over) {
        *done = 1;
        drop(h, r);
        return BURST_OK;
    }
    if (r->receives) return test_receive(h, r, done);
    if (!r->pair && h->closed[r->to]) return base_fail(BURST_PEER, "rank %d has left", r->to);
    return BURST_OK;
}

static burst_status threads_test(void *self, uint64_t ticket, int *done) {
    const end *e = self;
    record *r = record_of(ticket);
    *done = !r;
    if (!r) return BURST_OK;
    lock(e->hub);
    const burst_status status = test_record(e->hub, r, done);
    unlock(e->hub);
    return status;
}

static void *threads_borrowed(void *self, uint64_t ticket) {
    const end *e = self;
    lock(e->hub);
    void *data = record_of(ticket)->pair->data;
    unlock(e->hub);
    return data;
}

static void threads_give_back(void *self, uint64_t ticket) {
    const end *e = self;
    record *r = record_of(ticket);
    lock(e->hub);
    settle(e->hub, r->pair);
    drop(e->hub, r);
    unlock(e->hub);
}

/* Under the lock: true if r is over. */
static bool try_cancel(hub *h, record *r) {
    if (r->over) {
        drop(h, r);
        return true;
    }
    if (!r->pair) {
        if (withdraw(h, r)) drop(h, r);
        return true;
    }
    if (!r->receives) return false;                              /* its reader may be reading */
    if (!r->borrows && r->bytes == r->pair->bytes) return false; /* it is being copied */
    settle(h, r->pair);
    drop(h, r);
    return true;
}

/* A reader looks up from its work about every millisecond and hears of failures: it is worth a wait. */
static int threads_cancel(void *self, uint64_t ticket) {
    end *e = self;
    const struct timespec pause = {0, 1000000};
    record *r = record_of(ticket);
    bool over = !r;
    for (int tries = 0; !over && tries < (e->hopeless ? 1 : 2000); tries++) {
        lock(e->hub);
        over = try_cancel(e->hub, r);
        unlock(e->hub);
        if (!over) nanosleep(&pause, NULL);
    }
    if (!over) e->hopeless = true;
    return over;
}

static int threads_lends(void *self, int peer) {
    (void)self, (void)peer;
    return 1;
}

static void threads_close(void *self) {
    end *e = self;
    hub *h = e->hub;
    lock(h);
    h->closed[e->rank] = true;
    const bool last = --h->open == 0;
    unlock(h);
    if (last) hub_free(h);
    base_free(e);
}

/* ---- making them ------------------------------------------------------------------------------------------------- */

static burst_status make_ends(hub *h, burst_transport **transports, int *made) {
    const burst_carrier carrier = {.struct_size = sizeof carrier,
                                   .send = threads_send,
                                   .receive = threads_receive,
                                   .test = threads_test,
                                   .cancel = threads_cancel,
                                   .close = threads_close,
                                   .lends = threads_lends,
                                   .borrow = threads_borrow,
                                   .borrowed = threads_borrowed,
                                   .give_back = threads_give_back};
    for (*made = 0; *made < h->size; ++*made) {
        end *e = base_alloc(sizeof *e);
        if (!e) return base_fail(BURST_MEMORY, "no memory for the transport of rank %d", *made);
        *e = (end){.hub = h, .rank = *made};
        const burst_status status = transport_create(&carrier, e, *made, h->size, h->size, &transports[*made]);
        if (status != BURST_OK) {
            base_free(e);
            return status;
        }
    }
    return BURST_OK;
}

burst_status burst_transport_create_threads(int size, burst_transport **transports) {
    if (!transports) return base_fail(BURST_INVALID, "transports is NULL: expected where to put the handles");
    if (size < 1 || size > BURST_THREAD_RANKS_MAX)
        return base_fail(BURST_INVALID, "%d ranks: expected 1 to %d", size, BURST_THREAD_RANKS_MAX);
    hub *h = hub_create(size);
    int made = 0;
    if (!h) return base_fail(BURST_MEMORY, "no memory for the messages of %d ranks", size);
    const burst_status status = make_ends(h, transports, &made);
    if (status == BURST_OK) return BURST_OK;
    lock(h);
    h->open = made; /* the last of those that were made takes the hub with it */
    unlock(h);
    if (made == 0) hub_free(h);
    for (int n = 0; n < made; n++) burst_transport_free(transports[n]);
    return status;
}

typedef struct rank_thread {
    pthread_t thread;
    burst_transport *transport;
    burst_status (*body)(burst_transport *transport, void *user);
    void *user;
    burst_status status;
    char sentence[256];
} rank_thread;

static void *run_rank(void *user) {
    rank_thread *r = user;
    r->status = r->body(r->transport, r->user);
    if (r->status != BURST_OK) snprintf(r->sentence, sizeof r->sentence, "%s", burst_last_error());
    burst_transport_free(r->transport);
    return NULL;
}

static burst_status run_all(rank_thread *all, int ranks) {
    int started = 0;
    while (started < ranks && pthread_create(&all[started].thread, NULL, run_rank, &all[started]) == 0) started++;
    for (int n = started; n < ranks; n++) burst_transport_free(all[n].transport); /* the others hear that it left */
    for (int n = 0; n < started; n++) pthread_join(all[n].thread, NULL);
    if (started < ranks)
        return base_fail(BURST_MEMORY, "only %d threads of the %d ranks could be started", started, ranks);
    for (int n = 0; n < ranks; n++)
        if (all[n].status != BURST_OK) return base_fail(all[n].status, "rank %d: %s", n, all[n].sentence);
    return BURST_OK;
}

burst_status burst_threads_run(int ranks, burst_status (*body)(burst_transport *transport, void *user), void *user) {
    if (!body) return base_fail(BURST_INVALID, "body is NULL: expected what each rank does");
    if (ranks < 1 || ranks > BURST_THREAD_RANKS_MAX)
        return base_fail(BURST_INVALID, "%d ranks: expected 1 to %d", ranks, BURST_THREAD_RANKS_MAX);
    rank_thread *all = base_alloc((size_t)ranks * sizeof *all);
    burst_transport **transports = all ? base_alloc((size_t)ranks * sizeof(burst_transport *)) : NULL;
    burst_status status = transports ? burst_transport_create_threads(ranks, transports)
                                     : base_fail(BURST_MEMORY, "no memory for the threads of %d ranks", ranks);
    if (status == BURST_OK) {
        for (int n = 0; n < ranks; n++) all[n] = (rank_thread){.transport = transports[n], .body = body, .user = user};
        status = run_all(all, ranks);
    }
    base_free(transports);
    base_free(all);
    return status;
}
