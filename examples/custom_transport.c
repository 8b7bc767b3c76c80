/* custom_transport.c - a transport of one's own: four functions. Here the ranks are threads, and messages are copied
 * through a post office that all share; a network library or a message queue would stand in its place.
 * Build: cc custom_transport.c $(pkg-config --cflags --libs burst) -lm -pthread */
#include <pthread.h>
#include <string.h>

#include "attend.h"

enum { RANKS = 3 };

/* A letter waits in the office until its receiver comes for it. */
typedef struct letter {
    struct letter *next;
    int from, to, channel;
    size_t bytes;
    char *content;
} letter;

static pthread_mutex_t office = PTHREAD_MUTEX_INITIALIZER;
static letter *first_letter;

/* What a receive is waiting for. */
typedef struct wish {
    int from, channel;
    void *place;
    size_t bytes;
} wish;

/* The content is copied, so a send is done as soon as it is posted: ticket 0 stands for that. */
static burst_status office_send(void *self, int peer, int channel, const void *data, size_t bytes, uint64_t *ticket) {
    letter *l = malloc(sizeof *l), **end = &first_letter;
    char *content = malloc(bytes + 1);
    if (!l || !content) {
        free(l);
        free(content);
        return burst_carrier_fail(BURST_TRANSPORT, "the office has no paper left");
    }
    memcpy(content, data, bytes);
    *l = (letter){NULL, *(const int *)self, peer, channel, bytes, content};
    pthread_mutex_lock(&office);
    while (*end) end = &(*end)->next; /* last in line: letters keep their order */
    *end = l;
    pthread_mutex_unlock(&office);
    *ticket = 0;
    return BURST_OK;
}

static burst_status office_receive(void *self, int peer, int channel, void *data, size_t bytes, uint64_t *ticket) {
    wish *w = malloc(sizeof *w);
    (void)self;
    if (!w) return burst_carrier_fail(BURST_TRANSPORT, "no memory for a wish");
    *w = (wish){peer, channel, data, bytes};
    *ticket = (uint64_t)(uintptr_t)w;
    return BURST_OK;
}

static letter *find_letter(int to, const wish *w) {
    for (letter **at = &first_letter; *at; at = &(*at)->next) {
        letter *l = *at;
        if (l->to != to || l->from != w->from || l->channel != w->channel) continue;
        *at = l->next;
        return l;
    }
    return NULL;
}

static burst_status office_test(void *self, uint64_t ticket, int *done) {
    wish *w = (wish *)(uintptr_t)ticket;
    *done = 1;
    if (!w) return BURST_OK;
    pthread_mutex_lock(&office);
    letter *l = find_letter(*(const int *)self, w);
    pthread_mutex_unlock(&office);
    *done = l != NULL;
    if (!l) return BURST_OK;
    const int fits = l->bytes == w->bytes;
    if (fits) memcpy(w->place, l->content, l->bytes);
    free(l->content);
    free(l);
    if (!fits) return burst_carrier_fail(BURST_TRANSPORT, "a letter has another length than expected");
    free(w); /* done: the ticket is void; after a failure it is office_cancel's */
    return BURST_OK;
}

static int office_cancel(void *self, uint64_t ticket) {
    (void)self;
    free((wish *)(uintptr_t)ticket);
    return 1;
}

static void *rank_main(void *user) {
    int *rank = user;
    burst_carrier carrier = BURST_CARRIER_INIT;
    burst_transport *transport = NULL;
    carrier.send = office_send, carrier.receive = office_receive;
    carrier.test = office_test, carrier.cancel = office_cancel;
    burst_status status = burst_transport_create_custom(&carrier, rank, *rank, RANKS, RANKS, &transport);
    if (status == BURST_OK) status = attend(transport);
    burst_transport_free(transport);
    *rank = status == BURST_OK ? 0 : 1;
    return NULL;
}

int main(void) {
    pthread_t threads[RANKS];
    int ranks[RANKS], failed = 0;
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = r;
        pthread_create(&threads[r], NULL, rank_main, &ranks[r]);
    }
    for (int r = 0; r < RANKS; r++) {
        pthread_join(threads[r], NULL);
        failed += ranks[r];
    }
    printf("%d ranks: %s\n", RANKS, failed ? "FAILED" : "ok");
    return failed != 0;
}
