/* conform.c - see conform.h. Plain checks, no cmocka: every rank must go on to the end, or the others wait for it. */
#include "conform.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const transport_patience patience = {.timeout = 30};

typedef struct conform {
    burst_transport *t;
    int wrong;
} conform;

static void expect(conform *c, bool right, const char *what) {
    if (right) return;
    c->wrong++;
    printf("rank %d of %d: %s: %s\n", c->t->rank, c->t->size, what, burst_last_error());
}

enum { PERIOD = 251 };

/* Bytes that tell whose they are, on which channel and where: in blocks of a prime length. */
static void make_block(unsigned char block[PERIOD], int from, int channel) {
    for (unsigned n = 0; n < PERIOD; n++)
        block[n] = (unsigned char)(31u * (unsigned)from + 7u * (unsigned)channel + 13u * n + 1u);
}

static size_t block_bytes(size_t at, size_t bytes) { return bytes - at < PERIOD ? bytes - at : PERIOD; }

static void fill(unsigned char *data, size_t bytes, int from, int channel) {
    unsigned char block[PERIOD];
    make_block(block, from, channel);
    for (size_t at = 0; at < bytes; at += PERIOD) memcpy(data + at, block, block_bytes(at, bytes));
}

static bool is_filled(const unsigned char *data, size_t bytes, int from, int channel) {
    unsigned char block[PERIOD];
    make_block(block, from, channel);
    for (size_t at = 0; at < bytes; at += PERIOD)
        if (memcmp(data + at, block, block_bytes(at, bytes)) != 0) return false;
    return true;
}

/* Everybody sends to the rank before and receives from the one behind, both posted before either is waited for. */
static void check_shift(conform *c, int channel, size_t out_bytes, size_t in_bytes) {
    burst_transport *t = c->t;
    const int to = (t->rank + t->size - 1) % t->size, from = (t->rank + 1) % t->size;
    unsigned char *out = malloc(out_bytes + 1), *in = malloc(in_bytes + 1);
    transport_request send, receive;
    fill(out, out_bytes, t->rank, channel);
    in[in_bytes] = 0x5a;
    expect(c, transport_receive(t, from, channel, in, in_bytes, &receive) == BURST_OK, "receive");
    expect(c, transport_send(t, to, channel, out, out_bytes, &send) == BURST_OK, "send");
    expect(c, transport_wait(t, &receive, &patience) == BURST_OK, "wait for a receive");
    expect(c, transport_wait(t, &send, &patience) == BURST_OK, "wait for a send");
    expect(c, is_filled(in, in_bytes, from, channel), "the bytes that came");
    expect(c, in[in_bytes] == 0x5a, "the byte behind");
    free(out);
    free(in);
}

static void check_sizes(conform *c, size_t large) {
    /* the channel moves on with the size: the largest goes where nothing is lent */
    const size_t sizes[] = {0, 1, 255, 256, 257, 4096, 65537, ((size_t)9 << 20) + 3, large, ((size_t)4 << 20) - 1};
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        check_shift(c, TRANSPORT_READ + (int)(n % 3), sizes[n], sizes[n]);
    check_shift(c, TRANSPORT_READ, (size_t)(c->t->rank * 100003), (size_t)((c->t->rank + 1) % c->t->size * 100003));
}

/* Many messages on several channels between all ranks; each channel keeps its order, and waits for no other. */
static void check_many(conform *c) {
    enum { EACH = 6, CHANNELS = 3, BYTES = 3000, PEERS = 4 };
    burst_transport *t = c->t;
    const int peers = t->size - 1 < PEERS ? t->size - 1 : PEERS;
    const size_t count = (size_t)(peers * CHANNELS * EACH);
    unsigned char *out = malloc(count * BYTES + 1), *in = malloc(count * BYTES + 1);
    transport_request *sends = calloc(count, sizeof *sends), *receives = calloc(count, sizeof *receives);
    size_t at = 0;
    for (int p = 1; p <= peers; p++)
        for (int ch = 0; ch < CHANNELS; ch++)
            for (int n = 0; n < EACH; n++, at++) {
                const int to = (t->rank + t->size - p) % t->size, from = (t->rank + p) % t->size;
                memset(out + at * BYTES, t->rank * 64 + ch * 16 + n + 1, BYTES);
                expect(c, transport_send(t, to, TRANSPORT_READ + ch, out + at * BYTES, BYTES, &sends[at]) == BURST_OK,
                       "send of many");
                expect(c,
                       transport_receive(t, from, TRANSPORT_READ + ch, in + at * BYTES, BYTES, &receives[at]) ==
                           BURST_OK,
                       "receive of many");
            }
    for (size_t n = count; n-- > 0;) {
        expect(c, transport_wait(t, &receives[n], &patience) == BURST_OK, "wait for one of many");
        expect(c, transport_wait(t, &sends[n], &patience) == BURST_OK, "wait for one of many sends");
    }
    at = 0;
    for (int p = 1; p <= peers; p++)
        for (int ch = 0; ch < CHANNELS; ch++)
            for (int n = 0; n < EACH; n++, at++) {
                const int from = (t->rank + p) % t->size;
                const unsigned char wanted = (unsigned char)(from * 64 + ch * 16 + n + 1);
                expect(c, in[at * BYTES] == wanted && in[at * BYTES + BYTES - 1] == wanted, "order of many");
            }
    free(out);
    free(in);
    free(sends);
    free(receives);
}

static void check_agreement(conform *c) {
    burst_transport *t = c->t;
    for (int n = 0; n < 20; n++) {
        int64_t mine[4] = {t->rank, n, 7 * t->rank + n, -1};
        expect(c, transport_agree(t, mine, sizeof mine, &patience) == BURST_OK, "agree");
        for (int r = 0; r < t->size; r++) {
            const int64_t *other = transport_record(t, r, sizeof mine);
            expect(c, other[0] == r && other[1] == n && other[2] == 7 * r + n, "a record");
        }
    }
}

/* What was borrowed is read where it lies and sent on; the sender hears of it when it comes back. */
static void check_lending(conform *c) {
    enum { BYTES = 50000 };
    burst_transport *t = c->t;
    const int to = (t->rank + t->size - 1) % t->size, from = (t->rank + 1) % t->size;
    if (!transport_lends(t, from)) return;
    unsigned char *mine = transport_alloc(t, BYTES);
    transport_request sends[2], loans[2];
    fill(mine, BYTES, t->rank, TRANSPORT_READ);
    expect(c, transport_send(t, to, TRANSPORT_READ, mine, BYTES, &sends[0]) == BURST_OK, "lend");
    expect(c, transport_receive(t, from, TRANSPORT_READ, NULL, BYTES, &loans[0]) == BURST_OK, "borrow");
    expect(c, transport_wait(t, &loans[0], &patience) == BURST_OK, "wait for a loan");
    expect(c, is_filled(loans[0].data, BYTES, from, TRANSPORT_READ), "what was borrowed");
    expect(c, transport_test(t, &sends[0]) == BURST_OK, "test of a loan");
    expect(c, transport_send(t, to, TRANSPORT_READ, loans[0].data, BYTES, &sends[1]) == BURST_OK, "lend on");
    expect(c, transport_receive(t, from, TRANSPORT_READ, NULL, BYTES, &loans[1]) == BURST_OK, "borrow what is lent on");
    expect(c, transport_wait(t, &loans[1], &patience) == BURST_OK, "wait for what is lent on");
    expect(c, is_filled(loans[1].data, BYTES, (from + 1) % t->size, TRANSPORT_READ), "what was lent on");
    transport_give_back(t, &loans[1]);
    expect(c, transport_wait(t, &sends[1], &patience) == BURST_OK, "wait until it came back");
    transport_give_back(t, &loans[0]);
    expect(c, transport_wait(t, &sends[0], &patience) == BURST_OK, "wait until the own came back");
    transport_release(t, mine, BYTES);
}

int conform_run(burst_transport *transport, size_t large) {
    conform c = {transport, 0};
    if (transport->size == 1) return 0;
    check_agreement(&c);
    check_sizes(&c, large);
    check_many(&c);
    check_lending(&c);
    check_agreement(&c);
    return c.wrong;
}
