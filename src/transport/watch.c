/* watch.c - knows how ranks wait for each other, agree, and find out who is gone.
 * One idea: every rank keeps a note posted from every other. A rank that has waited in vain asks all, and follows the
 * answers from one that waits to the one it waits for: a rank that computes is progress, a rank that does not answer is
 * the culprit. Whoever fails tells all, once; so everybody names the same rank.
 * Does not know what the messages are for. Price: two small receives posted per pair of ranks. */
#include "transport.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

typedef enum note_kind { NOTE_ASK = 1, NOTE_ANSWER = 2, NOTE_ALARM = 3 } note_kind;

typedef struct note {
    int32_t kind;
    int32_t waits_for; /* answer: a rank, or -1: computing */
    uint64_t question; /* ask, answer: its number */
    char sentence[224];
} note;

/* What is exchanged with one other rank. */
typedef struct line {
    note in, out, alarm;
    transport_request in_request, out_request, alarm_request;
    uint64_t asked, answered; /* the last of my questions that it was sent, and that it answered */
    uint64_t owed;            /* its question that I have yet to answer, 0: none */
    int32_t waits_for;
} line;

struct transport_watch {
    line *lines;            /* [size], one's own unused */
    unsigned char *records; /* [size][TRANSPORT_RECORD_MAX] of transport_agree, one's own first */
    uint64_t question;      /* of mine, the last */
    int waits_for;          /* -1: computing */
    double attended;        /* when notes were last looked at */
};

/* Between two looks at the notes; a rank that computes is asked for them about as often. */
static const double attend_seconds = 0.001;
/* How long answers are waited for: a share of the timeout, within bounds. */
static const double grace_share = 0.25, grace_least = 0.05, grace_most = 5;
/* For telling all that this rank has failed, at most. */
static const double alarm_seconds = 0.5;
/* For hearing why another has left. */
static const double reason_seconds = 0.25;

enum { YIELDS = 64, NAP_LEAST = 20000, NAP_MOST = 400000 }; /* nanoseconds */

static void nap(int64_t tries) {
    if (tries < YIELDS) {
        sched_yield();
        return;
    }
    const int64_t doublings = (tries - YIELDS) / 16;
    const int64_t length = doublings < 5 ? (int64_t)NAP_LEAST << doublings : NAP_MOST;
    const struct timespec pause = {0, (long)(length < NAP_MOST ? length : NAP_MOST)};
    nanosleep(&pause, NULL);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static burst_status expect_note(burst_transport *t, int peer) {
    line *l = &t->watch->lines[peer];
    return transport_receive(t, peer, TRANSPORT_WATCH, &l->in, sizeof l->in, &l->in_request);
}

burst_status transport_watch_open(burst_transport *t) {
    const size_t size = (size_t)t->size;
    transport_watch *w = base_alloc(sizeof *w);
    line *lines = w ? base_alloc(size * sizeof *lines) : NULL;
    unsigned char *records = lines ? base_alloc(size * TRANSPORT_RECORD_MAX) : NULL;
    if (!records) {
        base_free(lines);
        base_free(w);
        return base_fail(BURST_MEMORY, "no memory for the lines to %d ranks", t->size);
    }
    memset(lines, 0, size * sizeof *lines);
    *w = (transport_watch){.lines = lines, .records = records, .waits_for = -1};
    t->watch = w;
    for (int peer = 0; peer < t->size; peer++) {
        const burst_status status = peer == t->rank ? BURST_OK : expect_note(t, peer);
        if (status == BURST_OK) continue;
        transport_watch_close(t);
        return status;
    }
    return BURST_OK;
}

/* What the carrier may still touch is not freed. */
void transport_watch_close(burst_transport *t) {
    transport_watch *w = t->watch;
    bool over = true;
    if (!w) return;
    for (int peer = 0; peer < t->size; peer++) {
        line *l = &w->lines[peer];
        transport_request *const all[3] = {&l->in_request, &l->out_request, &l->alarm_request};
        for (int n = 0; n < 3; n++) over = transport_cancel(t, all[n]) && over;
    }
    if (over && !t->leak) base_free(w->records);
    if (over) base_free(w->lines);
    base_free(w);
    t->watch = NULL;
}

/* ---- notes ------------------------------------------------------------------------------------------------------- */

static burst_status break_transport(burst_transport *t, burst_status status) {
    if (t->broken != BURST_OK) return t->broken;
    t->broken = status;
    snprintf(t->why, sizeof t->why, "%s", burst_last_error());
    return status;
}

burst_status transport_check(const burst_transport *t) {
    if (!t || t->broken == BURST_OK) return BURST_OK;
    return base_fail(t->broken, "%s", t->why);
}

/* If the last note to this rank has left; a rank that takes none is not sent more. */
static void send_note(burst_transport *t, int peer, note_kind kind, uint64_t question) {
    line *l = &t->watch->lines[peer];
    if (transport_test(t, &l->out_request) != BURST_OK || (l->out_request.posted && !l->out_request.done)) return;
    l->out = (note){.kind = kind, .waits_for = t->watch->waits_for, .question = question};
    if (transport_send(t, peer, TRANSPORT_WATCH, &l->out, sizeof l->out, &l->out_request) != BURST_OK) return;
    if (kind == NOTE_ANSWER) l->owed = 0;
    if (kind == NOTE_ASK) l->asked = question;
}

static burst_status take_note(burst_transport *t, int peer) {
    line *l = &t->watch->lines[peer];
    const note n = l->in;
    if (n.kind == NOTE_ALARM) {
        char sentence[sizeof n.sentence];
        memcpy(sentence, n.sentence, sizeof sentence);
        sentence[sizeof sentence - 1] = '\0';
        return break_transport(t, base_fail(BURST_PEER, "%s", sentence));
    }
    if (n.kind == NOTE_ASK) l->owed = n.question;
    if (n.kind == NOTE_ANSWER) l->answered = n.question, l->waits_for = n.waits_for;
    (void)expect_note(t, peer); /* if the rank is gone, whoever waits for it will hear it there */
    return BURST_OK;
}

/* A note that cannot be received says that its sender is gone: whoever waits for that rank will hear it there. */
static burst_status read_notes(burst_transport *t) {
    t->watch->attended = base_seconds();
    for (int peer = 0; peer < t->size; peer++) {
        line *l = &t->watch->lines[peer];
        while (l->in_request.posted && transport_test(t, &l->in_request) == BURST_OK && l->in_request.done) {
            const burst_status status = take_note(t, peer);
            if (status != BURST_OK) return status;
        }
        if (l->owed) send_note(t, peer, NOTE_ANSWER, l->owed);
    }
    return BURST_OK;
}

burst_status transport_attend(burst_transport *t) {
    if (!t || !t->watch) return BURST_OK;
    if (t->broken != BURST_OK) return transport_check(t);
    if (base_seconds() - t->watch->attended < attend_seconds) return BURST_OK;
    return read_notes(t);
}

/* A rank that could not be reached may itself have told who was the first to fail. Or it has left because it was told, and
 * the same word is still on its way here: he who fails tells one after the other. */
static burst_status heard_before(burst_transport *t, burst_status status) {
    char sentence[sizeof t->why];
    if (status != BURST_TRANSPORT && status != BURST_PEER) return status;
    snprintf(sentence, sizeof sentence, "%s", burst_last_error());
    const double until = base_seconds() + (status == BURST_PEER ? reason_seconds : 0);
    for (int64_t tries = 0;; tries++) {
        if (read_notes(t) != BURST_OK) return t->broken;
        if (base_seconds() >= until) return base_fail(status, "%s", sentence);
        nap(tries);
    }
}

burst_status transport_fail(burst_transport *t, burst_status status) {
    if (!t || !t->watch) return status;
    if (t->broken == BURST_OK) status = heard_before(t, status);
    if (t->broken != BURST_OK) return transport_check(t);
    break_transport(t, status);
    const double until = base_seconds() + alarm_seconds;
    for (int peer = 0; peer < t->size; peer++) {
        line *l = &t->watch->lines[peer];
        if (peer == t->rank) continue;
        l->alarm = (note){.kind = NOTE_ALARM};
        if (status == BURST_TRANSPORT || status == BURST_PEER)
            snprintf(l->alarm.sentence, sizeof l->alarm.sentence, "%.190s (said rank %d)", t->why, t->rank);
        else
            snprintf(l->alarm.sentence, sizeof l->alarm.sentence, "rank %d failed, %s: %.170s", t->rank,
                     burst_status_name(status), t->why);
        (void)transport_send(t, peer, TRANSPORT_WATCH, &l->alarm, sizeof l->alarm, &l->alarm_request);
    }
    for (int64_t tries = 0; base_seconds() < until; tries++) {
        bool left = true;
        for (int peer = 0; peer < t->size; peer++) {
            transport_request *r = &t->watch->lines[peer].alarm_request;
            left = (transport_test(t, r) != BURST_OK || !r->posted || r->done) && left;
        }
        if (left) break;
        nap(tries);
    }
    return base_fail(status, "%s", t->why);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

static void describe_place(char *text, size_t size, const burst_transport *t, const transport_request *r) {
    if (t->round >= 0)
        snprintf(text, size, "round %d, channel %s", t->round, transport_channel_names[r->channel]);
    else
        snprintf(text, size, "channel %s", transport_channel_names[r->channel]);
}

static burst_status accuse(burst_transport *t, const transport_request *r, const transport_patience *p, int culprit,
                           bool silent) {
    char place[64];
    describe_place(place, sizeof place, t, r);
    if (silent)
        return base_fail(BURST_TRANSPORT, "rank %d has stalled: no sign of it for %.3g s (%s)", culprit, p->timeout,
                         place);
    return base_fail(BURST_TRANSPORT, "nothing came %s rank %d for %.3g s, and no rank computes (%s)",
                     r->receiving ? "from" : "through to", t->rank == culprit ? r->peer : culprit, p->timeout, place);
}

/* The wait has lasted too long: OK if some rank that it hangs on is at work. */
static burst_status inquire(burst_transport *t, transport_request *r, const transport_patience *p) {
    transport_watch *w = t->watch;
    double grace = p->timeout * grace_share;
    grace = grace < grace_least ? grace_least : grace > grace_most ? grace_most : grace;
    const double until = base_seconds() + grace;
    w->question++;
    for (int64_t tries = 0; base_seconds() < until; tries++) {
        for (int peer = 0; peer < t->size; peer++) /* who could not be asked at once is asked again */
            if (peer != t->rank && w->lines[peer].asked != w->question) send_note(t, peer, NOTE_ASK, w->question);
        burst_status status = transport_test(t, r);
        if (status == BURST_OK && p->meanwhile) status = p->meanwhile(p->user);
        if (status == BURST_OK) status = read_notes(t);
        if (status != BURST_OK || r->done) return status;
        nap(tries);
    }
    int culprit = r->peer;
    for (int hops = 0; hops < t->size; hops++) {
        const line *l = &w->lines[culprit];
        if (l->answered != w->question) return accuse(t, r, p, culprit, true);
        if (l->waits_for < 0) return BURST_OK;
        if (l->waits_for == t->rank || l->waits_for >= t->size) break;
        culprit = l->waits_for;
    }
    return accuse(t, r, p, culprit, false);
}

static burst_status wait_for(burst_transport *t, transport_request *r, const transport_patience *p) {
    double since = base_seconds();
    int64_t completed = t->completed;
    for (int64_t tries = 0;; tries++) {
        burst_status status = transport_test(t, r);
        if (status != BURST_OK || r->done || !r->posted) return status;
        if (p->meanwhile) status = p->meanwhile(p->user);
        if (status == BURST_OK) status = transport_attend(t);
        if (t->completed != completed) since = base_seconds(), completed = t->completed;
        if (status == BURST_OK && p->timeout > 0 && base_seconds() - since > p->timeout) {
            status = inquire(t, r, p);
            since = base_seconds();
        }
        if (status != BURST_OK) return status;
        nap(tries);
    }
}

burst_status transport_wait(burst_transport *t, transport_request *r, const transport_patience *p) {
    if (!r->posted || r->done) return BURST_OK;
    t->watch->waits_for = r->peer;
    const burst_status status = wait_for(t, r, p);
    t->watch->waits_for = -1;
    return status == BURST_OK ? BURST_OK : transport_fail(t, status);
}

/* ---- agreeing ---------------------------------------------------------------------------------------------------- */

/* In rounds of 1, 2, 4, .. ranks' records at a time: what I have goes to the rank that many before me, and as much comes
 * from behind. records[i] is that of rank + i. */
burst_status transport_agree(burst_transport *t, const void *mine, size_t bytes, const transport_patience *patience) {
    burst_status status = transport_check(t);
    unsigned char *records = t->watch->records;
    memcpy(records, mine, bytes);
    for (int have = 1; have < t->size && status == BURST_OK; have *= 2) {
        const int count = have < t->size - have ? have : t->size - have;
        const int before = (t->rank + t->size - have) % t->size, behind = (t->rank + have) % t->size;
        transport_request in = {.posted = false}, out = {.posted = false};
        status =
            transport_receive(t, behind, TRANSPORT_AGREE, records + (size_t)have * bytes, (size_t)count * bytes, &in);
        if (status == BURST_OK)
            status = transport_send(t, before, TRANSPORT_AGREE, records, (size_t)count * bytes, &out);
        if (status != BURST_OK) status = transport_fail(t, status);
        if (status == BURST_OK) status = transport_wait(t, &in, patience);
        if (status == BURST_OK) status = transport_wait(t, &out, patience);
        if (status == BURST_OK) continue;
        const bool received = transport_cancel(t, &in), sent = transport_cancel(t, &out);
        if (!received || !sent) t->leak = true;
    }
    return status;
}

const void *transport_record(const burst_transport *t, int rank, size_t bytes) {
    return t->watch->records + (size_t)((rank - t->rank + t->size) % t->size) * bytes;
}
