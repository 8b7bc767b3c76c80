/* slice.c - knows the geometry of banded slices: trimming, counting, growing a list, finding an overlap.
 * One idea: once trimmed, every row of a slice sees one non-empty interval of keys whose ends move by 0 or 1 from row
 * to row. So disjoint slices keep their order while a sweep goes down the rows, and only neighbours begin to overlap.
 * Does not know what a slice is for. Price of the sweep: n log n steps. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* Products of two sizes up to 2^41 need more than 64 bits. */
__extension__ typedef __int128 wide;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

burst_status slice_append(slice_list *list, const burst_slice *slice) {
    if (list->count == list->capacity) {
        const size_t capacity = list->capacity ? 2 * list->capacity : 16;
        size_t bytes = 0;
        burst_slice *items = base_multiply(capacity, sizeof *items, &bytes) ? base_alloc(bytes) : NULL;
        if (!items) return base_fail(BURST_MEMORY, "no memory for a mask of %zu slices", capacity);
        if (list->count) memcpy(items, list->items, list->count * sizeof *items);
        base_free(list->items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = *slice;
    return BURST_OK;
}

bool slice_trim(burst_slice *slice) {
    burst_slice s = *slice;
    if (s.q_begin >= s.q_end || s.k_begin >= s.k_end) return false;
    s.lo = larger(s.lo, s.k_begin - (s.q_end - 1));
    s.hi = smaller(s.hi, s.k_end - 1 - s.q_begin);
    if (s.lo > s.hi) return false;
    /* From here on no pair is lost and every diagonal of the band has one. */
    s.q_begin = larger(s.q_begin, s.k_begin - s.hi);
    s.q_end = smaller(s.q_end, s.k_end - s.lo);
    s.k_begin = larger(s.k_begin, s.q_begin + s.lo);
    s.k_end = smaller(s.k_end, s.q_end + s.hi);
    *slice = s;
    return true;
}

bool slice_overlaps(const burst_slice *a, const burst_slice *b) {
    const int64_t q_begin = larger(a->q_begin, b->q_begin), q_end = smaller(a->q_end, b->q_end);
    const int64_t k_begin = larger(a->k_begin, b->k_begin), k_end = smaller(a->k_end, b->k_end);
    if (q_begin >= q_end || k_begin >= k_end) return false;
    return larger(larger(a->lo, b->lo), k_begin - q_end + 1) <= smaller(smaller(a->hi, b->hi), k_end - 1 - q_begin);
}

/* Sum of q over from <= q < to. */
static wide sum_of_range(int64_t from, int64_t to) { return from < to ? ((wide)from + to - 1) * (to - from) / 2 : 0; }

/* Sum over the rows of the last key, min(k_end - 1, q + hi). */
static wide sum_of_last(const burst_slice *s) {
    const int64_t turn = larger(s->q_begin, smaller(s->q_end, s->k_end - s->hi)); /* from here on k_end - 1 binds */
    return sum_of_range(s->q_begin, turn) + (wide)(turn - s->q_begin) * s->hi +
           (wide)(s->q_end - turn) * (s->k_end - 1);
}

/* Sum over the rows of the first key, max(k_begin, q + lo). */
static wide sum_of_first(const burst_slice *s) {
    const int64_t turn = larger(s->q_begin, smaller(s->q_end, s->k_begin - s->lo)); /* up to here k_begin binds */
    return (wide)(turn - s->q_begin) * s->k_begin + sum_of_range(turn, s->q_end) + (wide)(s->q_end - turn) * s->lo;
}

bool slice_count_pairs(const burst_slice *slice, int64_t *pairs) {
    const wide total = sum_of_last(slice) - sum_of_first(slice) + (slice->q_end - slice->q_begin) + *pairs;
    if (total > INT64_MAX) return false;
    *pairs = (int64_t)total;
    return true;
}

/* ---- the sweep --------------------------------------------------------------------------------------------------- */

#define NONE SIZE_MAX

typedef struct event {
    int64_t row;
    size_t slice;
} event;

static int compare_events(const void *left, const void *right) {
    const event *a = left, *b = right;
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    return a->slice < b->slice ? -1 : a->slice > b->slice;
}

typedef struct node {
    size_t left, right;
} node;

/* The slices alive at the present row, ordered by key in a treap: node i is slice i, ranks are a hash of it. */
typedef struct sweep {
    const burst_slice *slices;
    node *nodes;
    size_t root;
} sweep;

static uint64_t rank_of(size_t slice) {
    const uint64_t mixed = ((uint64_t)slice + 1) * UINT64_C(0x9E3779B97F4A7C15); /* 2^64 / golden ratio */
    return (mixed ^ mixed >> 29) * UINT64_C(0x9E3779B97F4A7C15);
}

static int64_t first_key(const sweep *s, size_t slice, int64_t row) {
    return larger(s->slices[slice].k_begin, row + s->slices[slice].lo);
}

/* The last slice that begins before `key` in this row, the first that does not. */
static void find_neighbours(const sweep *s, int64_t row, int64_t key, size_t *before, size_t *after) {
    *before = *after = NONE;
    for (size_t at = s->root; at != NONE;) {
        const bool is_before = first_key(s, at, row) < key;
        *(is_before ? before : after) = at;
        at = is_before ? s->nodes[at].right : s->nodes[at].left;
    }
}

static void treap_insert(sweep *s, size_t slice, int64_t row) {
    const int64_t key = first_key(s, slice, row);
    size_t *link = &s->root;
    while (*link != NONE && rank_of(*link) > rank_of(slice))
        link = first_key(s, *link, row) < key ? &s->nodes[*link].right : &s->nodes[*link].left;
    size_t rest = *link; /* what was here is split at the key */
    size_t *low = &s->nodes[slice].left, *high = &s->nodes[slice].right;
    *link = slice;
    while (rest != NONE) {
        if (first_key(s, rest, row) < key) {
            *low = rest;
            low = &s->nodes[rest].right;
            rest = *low;
        } else {
            *high = rest;
            high = &s->nodes[rest].left;
            rest = *high;
        }
    }
    *low = *high = NONE;
}

static void treap_remove(sweep *s, size_t slice, int64_t row) {
    const int64_t key = first_key(s, slice, row);
    size_t *link = &s->root;
    while (*link != slice) link = first_key(s, *link, row) < key ? &s->nodes[*link].right : &s->nodes[*link].left;
    size_t low = s->nodes[slice].left, high = s->nodes[slice].right;
    while (low != NONE && high != NONE) {
        if (rank_of(low) > rank_of(high)) {
            *link = low;
            link = &s->nodes[low].right;
            low = *link;
        } else {
            *link = high;
            link = &s->nodes[high].left;
            high = *link;
        }
    }
    *link = low != NONE ? low : high;
}

static bool do_overlap(const sweep *s, size_t a, size_t b) {
    return a != NONE && b != NONE && slice_overlaps(&s->slices[a], &s->slices[b]);
}

/* Each asks of the slices that become neighbours whether they overlap, in this row or further down. */
static bool sweep_begin(sweep *s, const event *begin, size_t *first, size_t *second) {
    size_t before, after;
    find_neighbours(s, begin->row, first_key(s, begin->slice, begin->row), &before, &after);
    *first = begin->slice;
    *second = do_overlap(s, before, begin->slice) ? before : after;
    if (do_overlap(s, *first, *second)) return true;
    treap_insert(s, begin->slice, begin->row);
    return false;
}

static bool sweep_end(sweep *s, const event *end, size_t *first, size_t *second) {
    const int64_t row = end->row - 1; /* its last: all that are still active are alive there */
    treap_remove(s, end->slice, row);
    find_neighbours(s, row, first_key(s, end->slice, row), first, second);
    return do_overlap(s, *first, *second);
}

static bool sweep_run(sweep *s, const event *begins, const event *ends, size_t count, size_t *first, size_t *second) {
    bool found = false;
    for (size_t b = 0, e = 0; e < count && !found;) { /* to the last end: removals make new neighbours too */
        if (b < count && begins[b].row < ends[e].row)
            found = sweep_begin(s, &begins[b++], first, second);
        else
            found = sweep_end(s, &ends[e++], first, second);
    }
    return found;
}

burst_status slice_find_overlap(const burst_slice *slices, size_t count, bool *found, size_t *first, size_t *second) {
    *found = false;
    if (count < 2) return BURST_OK;
    size_t bytes = 0;
    event *events = base_multiply(count, 2 * sizeof *events, &bytes) ? base_alloc(bytes) : NULL;
    node *nodes = events ? base_alloc(count * sizeof *nodes) : NULL;
    if (!nodes) {
        base_free(events);
        return base_fail(BURST_MEMORY, "no memory to check %zu slices for overlap", count);
    }
    event *begins = events, *ends = events + count;
    for (size_t i = 0; i < count; i++) {
        begins[i] = (event){slices[i].q_begin, i};
        ends[i] = (event){slices[i].q_end, i};
    }
    qsort(begins, count, sizeof *begins, compare_events);
    qsort(ends, count, sizeof *ends, compare_events);
    sweep s = {slices, nodes, NONE};
    *found = sweep_run(&s, begins, ends, count, first, second);
    base_free(nodes);
    base_free(events);
    return BURST_OK;
}
