/* transport.h - carries bytes between ranks, waits for them, notices who is gone. The only header of this folder that
 * other folders see. Knows ranks, channels and time; knows nothing of attention.
 * With one rank there is nothing to carry: every function here then returns at once. */
#ifndef BURST_TRANSPORT_H
#define BURST_TRANSPORT_H

#include "base.h"

/* Each in its own order. */
enum {
    TRANSPORT_AGREE, /* small records that every rank gets from every rank */
    TRANSPORT_WATCH, /* are you there? I have failed */
    TRANSPORT_READ,  /* what a visitor brings to be read */
    TRANSPORT_WRITE, /* what is added to it on its way */
    TRANSPORT_MOVE,  /* tensors scattered and gathered */
    TRANSPORT_CHANNELS
};
extern const char *const transport_channel_names[TRANSPORT_CHANNELS];

enum { TRANSPORT_RECORD_MAX = 512 }; /* bytes of a record in transport_agree */

/* One message on its way. */
typedef struct transport_request {
    bool posted, done, receiving, borrowed;
    int peer, channel;
    uint64_t ticket; /* the carrier's */
    void *data;      /* a receive that is done: where the bytes are */
    size_t bytes;
} transport_request;

typedef struct transport_traffic {
    int64_t bytes[TRANSPORT_CHANNELS], messages[TRANSPORT_CHANNELS]; /* sent */
} transport_traffic;

typedef struct transport_watch transport_watch;

struct burst_transport {
    int rank, size; /* 0 <= rank < size */
    int here;       /* ranks that share this one's cores, itself among them */
    bool dry;       /* nobody there: plans can be made, not run */
    bool leak;      /* the carrier may still touch the records of transport_agree */
    int round;      /* of the pass that is under way, for sentences; -1: none */
    burst_carrier carrier;
    void *self;             /* the carrier's */
    transport_watch *watch; /* NULL with one rank */
    transport_traffic traffic;
    int64_t completed;   /* messages; notes apart */
    int64_t plans;       /* made so far: ranks make the same in the same order, so the number names one */
    burst_status broken; /* not OK: it failed, and carries no more */
    char why[256];
};

/* Takes `carrier` as it is; checked by the caller. */
burst_status transport_create(const burst_carrier *carrier, void *self, int rank, int size, int here,
                              burst_transport **transport);
/* watch.c, for transport.c */
burst_status transport_watch_open(burst_transport *t);
void transport_watch_close(burst_transport *t);

bool transport_lends(const burst_transport *t, int peer);
/* Memory that messages are sent from; on a carrier that lends, peers can read it. As base_alloc. */
void *transport_alloc(burst_transport *t, size_t bytes);
void transport_release(burst_transport *t, void *memory, size_t bytes);

/* ---- messages ---------------------------------------------------------------------------------------------------- */

burst_status transport_send(burst_transport *t, int peer, int channel, const void *data, size_t bytes,
                            transport_request *r);
/* data NULL: borrowed, if the carrier lends; r->data then shows the sender's bytes until transport_give_back. */
burst_status transport_receive(burst_transport *t, int peer, int channel, void *data, size_t bytes,
                               transport_request *r);
/* Sets r->done. A request that was never posted is done. */
burst_status transport_test(burst_transport *t, transport_request *r);
void transport_give_back(burst_transport *t, transport_request *r);
/* Gives it up, or gives it back; false: the carrier may still touch its memory. */
bool transport_cancel(burst_transport *t, transport_request *r);

/* ---- waiting and failing ----------------------------------------------------------------------------------------- */

/* What a wait is for, so that its end can be explained; and what is to be done meanwhile. */
typedef struct transport_patience {
    double timeout;                        /* seconds without any progress of the ranks waited for; 0: for ever */
    burst_status (*meanwhile)(void *user); /* or NULL: called again and again; not OK ends the wait */
    void *user;
} transport_patience;

/* Tests, then sleeps briefly. Not OK: the transport is broken, every rank has been told, the sentence names the rank. */
burst_status transport_wait(burst_transport *t, transport_request *r, const transport_patience *patience);
/* Every rank gives `bytes` (the same number everywhere, at most TRANSPORT_RECORD_MAX) and gets those of all ranks, which
 * transport_record then shows until the next time. More than one rank only. */
burst_status transport_agree(burst_transport *t, const void *mine, size_t bytes, const transport_patience *patience);
const void *transport_record(const burst_transport *t, int rank, size_t bytes);
/* Between tiles: answers whoever asks whether this rank is alive; not OK if another rank has failed. */
burst_status transport_attend(burst_transport *t);
/* This rank has failed (its sentence is set): tells every rank, and the transport is broken. Returns `status`;
 * or, if another rank was heard to have failed before, what that one said. */
burst_status transport_fail(burst_transport *t, burst_status status);
/* OK, or what broke it. */
burst_status transport_check(const burst_transport *t);

#endif
