/* slice.c - knows the geometry of banded slices: trimming, counting, growing a list, finding an overlap.
 * One idea: once trimmed, every row of a slice sees one non-empty interval of keys whose ends move by 0 or 1 from row to
 * row. So disjoint slices keep their order while a sweep goes down the rows, and only neighbours can begin to overlap.
 * Does not know what a slice is for. Price of the sweep: n log n steps, and moving at most n indices per step. */
#include "plan.h"

#include <stdlib.h>
#include <string.h>

/* Products of two sizes up to 2^41 need more than 64 bits. */
__extension__ typedef __int128 wide;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

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
static wide sum_of_range(int64_t from, int64_t to) {
    return from < to ? ((wide)from + to - 1) * (to - from) / 2 : 0;
}

/* Sum over the rows of the last key, min(k_end - 1, q + hi). */
static wide sum_of_last(const burst_slice *s) {
    const int64_t turn = larger(s->q_begin, smaller(s->q_end, s->k_end - s->hi)); /* from here on k_end - 1 binds */
    return sum_of_range(s->q_begin, turn) + (wide)(turn - s->q_begin) * s->hi + (wide)(s->q_end - turn) * (s->k_end - 1);
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

typedef struct event {
    int64_t row;
    int64_t key; /* orders events of one row so that the active list mostly changes at its end */
    size_t slice;
} event;

static int compare_events(const void *left, const void *right) {
    const event *a = left, *b = right;
    if (a->row != b->row) return a->row < b->row ? -1 : 1;
    if (a->key != b->key) return a->key < b->key ? -1 : 1;
    return 0;
}

/* Slices alive at the present row, ordered by key. */
typedef struct sweep {
    const burst_slice *slices;
    size_t *active, count;
} sweep;

static int64_t first_key(const burst_slice *slice, int64_t row) {
    return larger(slice->k_begin, row + slice->lo);
}

/* How many active slices begin before `key` in this row. */
static size_t sweep_position(const sweep *s, int64_t row, int64_t key) {
    size_t low = 0, high = s->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (first_key(&s->slices[s->active[middle]], row) < key)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool neighbours_overlap(const sweep *s, size_t left) {
    return slice_overlaps(&s->slices[s->active[left]], &s->slices[s->active[left + 1]]);
}

/* Each returns true, with *at the left one of the pair, if two slices that became neighbours overlap. */
static bool sweep_insert(sweep *s, const event *begin, size_t *at) {
    const size_t place = sweep_position(s, begin->row, first_key(&s->slices[begin->slice], begin->row));
    memmove(s->active + place + 1, s->active + place, (s->count - place) * sizeof *s->active);
    s->active[place] = begin->slice;
    s->count++;
    *at = place;
    if (place + 1 < s->count && neighbours_overlap(s, place)) return true;
    if (place == 0) return false;
    *at = place - 1;
    return neighbours_overlap(s, place - 1);
}

static bool sweep_remove(sweep *s, const event *end, size_t *at) {
    /* The last row of the slice: all that are still active are alive there. */
    const int64_t row = end->row - 1;
    const size_t place = sweep_position(s, row, first_key(&s->slices[end->slice], row));
    s->count--;
    memmove(s->active + place, s->active + place + 1, (s->count - place) * sizeof *s->active);
    if (place == 0 || place == s->count) return false;
    *at = place - 1;
    return neighbours_overlap(s, place - 1);
}

static void sweep_run(sweep *s, const event *begins, const event *ends, size_t count, bool *found, size_t *at) {
    *found = false;
    for (size_t b = 0, e = 0; e < count && !*found;) { /* to the last end: removals make new neighbours too */
        if (b < count && begins[b].row < ends[e].row)
            *found = sweep_insert(s, &begins[b++], at);
        else
            *found = sweep_remove(s, &ends[e++], at);
    }
}

burst_status slice_find_overlap(const burst_slice *slices, size_t count, bool *found, size_t *first, size_t *second) {
    *found = false;
    if (count < 2) return BURST_OK;
    size_t bytes = 0;
    event *events = base_multiply(count, 2 * sizeof *events, &bytes) ? base_alloc(bytes) : NULL;
    size_t *active = events ? base_alloc(count * sizeof *active) : NULL;
    if (!active) {
        base_free(events);
        return base_fail(BURST_MEMORY, "no memory to check %zu slices for overlap", count);
    }
    event *begins = events, *ends = events + count;
    for (size_t i = 0; i < count; i++) {
        const burst_slice *s = &slices[i];
        begins[i] = (event){s->q_begin, first_key(s, s->q_begin), i};
        ends[i] = (event){s->q_end, -first_key(s, s->q_end - 1), i};
    }
    qsort(begins, count, sizeof *begins, compare_events);
    qsort(ends, count, sizeof *ends, compare_events);
    sweep s = {slices, active, 0};
    size_t at = 0;
    sweep_run(&s, begins, ends, count, found, &at);
    if (*found) {
        *first = active[at];
        *second = active[at + 1];
    }
    base_free(active);
    base_free(events);
    return BURST_OK;
}
