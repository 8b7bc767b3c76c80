/* sample.c - a sample where mistakes hide: first and last token, edges of tiles and of documents, and a few by chance.
 *
 * Tile edges are multiples of what kernels like: 24 and 48 queries a panel, 96 to 384 keys, 768 and 1536 queries a tile. */
#include "sample.h"
#include "data.h"

#include <stdlib.h>

#define STREAM_SAMPLE 77u
#define SAMPLE_LEAST 64 /* rows, and keys, over all heads looked at */
#define SAMPLE_MOST 128 /* of one head */
#define SAMPLE_HEADS 4
#define SAMPLE_PAIRS 2e7 /* wanted cost of a sampled pass */

/* As many tokens of each head as the cost allows, within the bounds. */
static int64_t tokens_each(int64_t tokens, int64_t others, int64_t heads, int64_t lists) {
    double wish = SAMPLE_PAIRS / ((double)(others ? others : 1) * (double)heads);
    int64_t least = (SAMPLE_LEAST + lists - 1) / lists;
    int64_t count = wish > SAMPLE_MOST ? SAMPLE_MOST : (int64_t)wish;
    if (count < least) count = least;
    return count < tokens ? count : tokens;
}

/* The whole comparison costs a quarter of a minute on two cores at 5e7 pairs and d + dv = 256, several times as much for
 * each pair in f64 (long double): beyond that, too, a sample. */
static int is_whole(const word *w, double pairs) {
    double weight = (double)(w->d + w->v) / 256 * (w->dtype == BURST_F64 ? 4 : 1);
    return pairs * (weight > 1 ? weight : 1) <= SAMPLE_ABOVE;
}

void sample_choose(const word *w, int64_t pairs, sample *out) {
    int64_t all = w->batch * w->groups, per_group = w->heads / w->groups;
    out->whole = is_whole(w, (double)pairs * (double)w->heads);
    out->groups = all;
    out->rows = w->n, out->keys = w->k;
    if (out->whole) return;
    out->groups = SAMPLE_HEADS / per_group > 1 ? SAMPLE_HEADS / per_group : 2;
    /* a few tokens a head: more heads */
    const int64_t rows = per_group * (w->n > 0 ? w->n : 1), keys = w->k > 0 ? w->k : 1,
                  least = rows < keys ? rows : keys;
    if (out->groups < (SAMPLE_LEAST + least - 1) / least) out->groups = (SAMPLE_LEAST + least - 1) / least;
    if (out->groups > all) out->groups = all;
    int64_t heads = out->groups * per_group;
    out->rows = tokens_each(w->n, w->k, heads, heads);
    out->keys = tokens_each(w->k, w->n, heads, out->groups);
}

void sample_group(const word *w, const sample *s, int64_t i, int64_t *batch_row, int64_t *group) {
    int64_t all = w->batch * w->groups;
    int64_t at = s->groups > 1 ? (int64_t)((double)i * (double)(all - 1) / (double)(s->groups - 1) + 0.5) : 0;
    if (s->whole) at = i;
    *batch_row = at / w->groups;
    *group = at % w->groups;
}

typedef struct drawer {
    int64_t *tokens, count, room, limit;
    uint64_t which, draws;
} drawer;

static void take(drawer *d, int64_t token) {
    if (d->count == d->room || token < 0 || token >= d->limit) return;
    for (int64_t i = 0; i < d->count; i++)
        if (d->tokens[i] == token) return;
    d->tokens[d->count++] = token;
}

static int64_t draw(drawer *d, int64_t below) {
    return (int64_t)(data_bits(d->which, STREAM_SAMPLE, d->draws++) % (uint64_t)below);
}

static void take_edges(drawer *d, const word_list *documents) {
    static const int64_t tiles[] = {24, 48, 96, 192, 288, 384, 768, 1536};
    for (size_t i = 0; i < 4 && documents->count; i++) {
        int64_t last = draw(d, (int64_t)documents->count), start = 0;
        for (int64_t j = 0; j < last; j++) start += documents->at[j];
        take(d, start);
        take(d, start + documents->at[last] - 1);
    }
    for (size_t i = 0; i < 8; i++) {
        int64_t tile = tiles[i], edge = tile * (1 + draw(d, d->limit / tile + 1));
        take(d, edge - 1);
        take(d, edge);
        take(d, edge + 1);
    }
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int64_t sample_tokens(const word *w, const sample *s, int key_side, uint64_t which, int64_t *tokens) {
    drawer d = {tokens, 0, key_side ? s->keys : s->rows, key_side ? w->k : w->n, 2 * which + (uint64_t)key_side, 0};
    if (d.room >= d.limit) {
        for (int64_t i = 0; i < d.limit; i++) tokens[i] = i;
        return d.limit;
    }
    take(&d, 0);
    take(&d, d.limit - 1);
    take_edges(&d, word_documents(w, key_side));
    while (d.count < d.room) take(&d, draw(&d, d.limit));
    qsort(tokens, (size_t)d.count, sizeof *tokens, by_value);
    return d.count;
}
