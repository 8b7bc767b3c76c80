/* mask.c - knows how masks are spoken of (causal, windows, prefixes, documents, blocks, lengths) and turns each into a
 * list of disjoint banded slices; after that, nobody knows what a mask was called.
 * One idea: every part of a mask bounds t = k - q - off within a frame (a document, or everything), and its bounds
 * change at two keys at most, so a frame is at most three slices; all builders are frames clipped by rectangles.
 * Does not know heads or batches beyond "one list per row", nor how slices are computed. */
#include "plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- checks ------------------------------------------------------------------------------------------------------ */

static burst_status check_tokens(const char *name, int64_t tokens) {
    if (tokens < 0) return base_fail(BURST_INVALID, "%s is %" PRId64 ": expected 0 or more", name, tokens);
    if (tokens > PLAN_TOKENS_MAX)
        return base_fail(BURST_UNSUPPORTED, "%s is %" PRId64 ": at most %" PRId64 " are supported", name, tokens,
                         PLAN_TOKENS_MAX);
    return BURST_OK;
}

static burst_status check_sizes(int64_t q_tokens, int64_t k_tokens) {
    const burst_status status = check_tokens("q_tokens", q_tokens);
    return status != BURST_OK ? status : check_tokens("k_tokens", k_tokens);
}

static burst_status check_offsets(const char *name, const int64_t *offsets, int64_t documents, int64_t tokens) {
    if (!offsets) return base_fail(BURST_INVALID, "%s is NULL, but there are %" PRId64 " documents", name, documents);
    if (offsets[0] != 0) return base_fail(BURST_INVALID, "%s[0] is %" PRId64 ": must be 0", name, offsets[0]);
    for (int64_t i = 0; i < documents; i++)
        if (offsets[i + 1] < offsets[i])
            return base_fail(BURST_INVALID, "%s[%" PRId64 "] is %" PRId64 ", less than the %" PRId64 " before it", name,
                             i + 1, offsets[i + 1], offsets[i]);
    if (offsets[documents] != tokens)
        return base_fail(BURST_INVALID, "%s ends at %" PRId64 ": the documents must sum up to %" PRId64 " tokens", name,
                         offsets[documents], tokens);
    return BURST_OK;
}

static burst_status check_documents(const burst_mask_spec *spec) {
    if (spec->documents < 0)
        return base_fail(BURST_INVALID, "documents is %" PRId64 ": expected 0 (not packed) or more", spec->documents);
    if (spec->documents == 0) {
        if (spec->q_offsets || spec->k_offsets)
            return base_fail(BURST_INVALID, "document offsets are given, but documents is 0");
        return BURST_OK;
    }
    const burst_status status = check_offsets("q_offsets", spec->q_offsets, spec->documents, spec->q_tokens);
    return status != BURST_OK ? status : check_offsets("k_offsets", spec->k_offsets, spec->documents, spec->k_tokens);
}

static burst_status check_spec(const burst_mask_spec *spec, burst_mask **mask) {
    if (!spec) return base_fail(BURST_INVALID, "spec is NULL");
    if (!mask) return base_fail(BURST_INVALID, "mask is NULL: expected where to put the handle");
    burst_status status = base_check_struct("burst_mask_spec", spec->struct_size, sizeof *spec);
    if (status == BURST_OK) status = check_sizes(spec->q_tokens, spec->k_tokens);
    if (status != BURST_OK) return status;
    if (spec->align != BURST_ALIGN_END && spec->align != BURST_ALIGN_START)
        return base_fail(BURST_INVALID, "align is %d: expected BURST_ALIGN_END or BURST_ALIGN_START", (int)spec->align);
    if (spec->causal != 0 && spec->causal != 1)
        return base_fail(BURST_INVALID, "causal is %d: expected 0 or 1", spec->causal);
    if (spec->window_left < -1 || spec->window_right < -1)
        return base_fail(BURST_INVALID, "window is %" PRId64 "/%" PRId64 ": expected 0 or more, or -1 for unbounded",
                         spec->window_left, spec->window_right);
    if (spec->sink_tokens < 0)
        return base_fail(BURST_INVALID, "sink_tokens is %" PRId64 ": expected 0 or more", spec->sink_tokens);
    if (spec->prefix < -1)
        return base_fail(BURST_INVALID, "prefix is %" PRId64 ": expected 0 or more, or -1 for none", spec->prefix);
    return check_documents(spec);
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

/* A rectangle of queries and keys; as a frame, the one in which the parts of a spec are counted. */
typedef struct area {
    int64_t q_begin, q_end, k_begin, k_end;
} area;

static area document_area(const burst_mask_spec *spec, int64_t document) {
    if (spec->documents == 0) return (area){0, spec->q_tokens, 0, spec->k_tokens};
    return (area){spec->q_offsets[document], spec->q_offsets[document + 1], spec->k_offsets[document],
                  spec->k_offsets[document + 1]};
}

static burst_status append_trimmed(slice_list *list, burst_slice slice) {
    return slice_trim(&slice) ? slice_append(list, &slice) : BURST_OK;
}

/* The slices of one frame, as far as they lie in `clip`. */
static burst_status append_frame(slice_list *list, const burst_mask_spec *spec, area frame, area clip) {
    const int64_t far = 4 * PLAN_TOKENS_MAX; /* further than any distance */
    const int64_t length = frame.k_end - frame.k_begin;
    const int64_t off = spec->align == BURST_ALIGN_END ? frame.k_end - frame.q_end : frame.k_begin - frame.q_begin;
    const int64_t left = spec->window_left < 0 ? far : smaller(spec->window_left, far);
    const int64_t right = spec->causal ? 0 : far;
    const int64_t high = spec->window_right < 0 ? right : smaller(spec->window_right, right);
    const int64_t sinks = smaller(spec->sink_tokens, length);                         /* keys before it: no left edge */
    const int64_t prefix = spec->prefix < 0 ? length : smaller(spec->prefix, length); /* keys from it on: causal */
    const int64_t cuts[4] = {0, smaller(sinks, prefix), larger(sinks, prefix), length};
    burst_slice run = {0, 0, 0, 0, 1, 0, 0}; /* segments whose bounds agree become one slice */
    for (int i = 0; i < 3; i++) {
        if (cuts[i] == cuts[i + 1]) continue;
        const int64_t lo = off - (cuts[i] < sinks ? far : left);
        const int64_t hi = off + (cuts[i] < prefix ? high : smaller(high, 0));
        if (run.lo != lo || run.hi != hi) {
            const burst_status status = append_trimmed(list, run);
            if (status != BURST_OK) return status;
            run = (burst_slice){larger(frame.q_begin, clip.q_begin),
                                smaller(frame.q_end, clip.q_end),
                                larger(frame.k_begin + cuts[i], clip.k_begin),
                                0,
                                lo,
                                hi,
                                off};
        }
        run.k_end = smaller(frame.k_begin + cuts[i + 1], clip.k_end);
    }
    return append_trimmed(list, run);
}

/* The slices of a whole spec, as far as they lie in `clip`. */
static burst_status append_spec(slice_list *list, const burst_mask_spec *spec, area clip) {
    const int64_t documents = larger(spec->documents, 1);
    int64_t low = 0, high = documents; /* find the first document that reaches into the clip */
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (document_area(spec, middle).q_end <= clip.q_begin)
            low = middle + 1;
        else
            high = middle;
    }
    burst_status status = BURST_OK;
    for (; status == BURST_OK && low < documents; low++) {
        const area frame = document_area(spec, low);
        if (frame.q_begin >= clip.q_end) break;
        status = append_frame(list, spec, frame, clip);
    }
    return status;
}

/* ---- the handle -------------------------------------------------------------------------------------------------- */

/* Takes the list over, whatever happens. `starts` of the rows is filled for one list, else by the caller. */
static burst_status mask_make(int64_t q_tokens, int64_t k_tokens, int64_t batch, slice_list *list,
                              burst_mask **result) {
    const size_t rows = batch > 0 ? (size_t)batch : 1;
    size_t bytes = 0;
    burst_mask *mask = base_alloc(sizeof *mask);
    size_t *starts = mask && base_multiply(rows + 1, sizeof *starts, &bytes) ? base_alloc(bytes) : NULL;
    if (!starts) {
        base_free(mask);
        base_free(list->items);
        return base_fail(BURST_MEMORY, "no memory for a mask of %zu rows", rows);
    }
    starts[0] = 0;
    starts[rows] = list->count;
    *mask = (burst_mask){q_tokens, k_tokens, batch, starts, list->items};
    *result = mask;
    return BURST_OK;
}

static burst_status mask_finish(burst_status status, int64_t q_tokens, int64_t k_tokens, slice_list *list,
                                burst_mask **mask) {
    if (status == BURST_OK) return mask_make(q_tokens, k_tokens, 0, list, mask);
    base_free(list->items);
    return status;
}

void burst_mask_free(burst_mask *mask) {
    if (!mask) return;
    base_free(mask->slices);
    base_free(mask->starts);
    base_free(mask);
}

const burst_slice *burst_mask_slices(const burst_mask *mask, int64_t batch_row, size_t *count) {
    if (count) *count = 0;
    if (!mask || (mask->batch > 0 && (batch_row < 0 || batch_row >= mask->batch))) return NULL;
    const size_t row = mask->batch > 0 ? (size_t)batch_row : 0;
    if (count) *count = mask->starts[row + 1] - mask->starts[row];
    return mask->slices ? mask->slices + mask->starts[row] : NULL;
}

bool mask_pairs(const burst_mask *mask, int64_t batch, int64_t *pairs) {
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    int64_t total = 0;
    for (size_t i = 0; i < mask->starts[rows]; i++)
        if (!slice_count_pairs(&mask->slices[i], &total)) return false;
    return !__builtin_mul_overflow(total, mask->batch > 0 ? 1 : batch, pairs);
}

/* In the order of their keys: so rows meet them from the first to the last, and with ALiBi small weights are not added to large
 * sums out of turn. */
static int compare_slices(const void *left, const void *right) {
    const burst_slice *a = left, *b = right;
    if (a->k_begin != b->k_begin) return a->k_begin < b->k_begin ? -1 : 1;
    if (a->q_begin != b->q_begin) return a->q_begin < b->q_begin ? -1 : 1;
    return 0;
}
static void sort_slices(slice_list *list) {
    if (list->count > 1) qsort(list->items, list->count, sizeof *list->items, compare_slices);
}

/* ---- builders ---------------------------------------------------------------------------------------------------- */

burst_status burst_mask_create(const burst_mask_spec *spec, burst_mask **mask) {
    burst_status status = check_spec(spec, mask);
    if (status != BURST_OK) return status;
    slice_list list = {0};
    status = append_spec(&list, spec, (area){0, spec->q_tokens, 0, spec->k_tokens});
    return mask_finish(status, spec->q_tokens, spec->k_tokens, &list, mask);
}

static burst_status check_slice(int64_t q_tokens, int64_t k_tokens, const burst_slice *s, size_t index) {
    if (s->q_begin < 0 || s->q_begin > s->q_end || s->q_end > q_tokens)
        return base_fail(BURST_INVALID, "slice %zu has queries %" PRId64 " to %" PRId64 ": must lie in 0 to %" PRId64,
                         index, s->q_begin, s->q_end, q_tokens);
    if (s->k_begin < 0 || s->k_begin > s->k_end || s->k_end > k_tokens)
        return base_fail(BURST_INVALID, "slice %zu has keys %" PRId64 " to %" PRId64 ": must lie in 0 to %" PRId64,
                         index, s->k_begin, s->k_end, k_tokens);
    if (s->diag < -PLAN_TOKENS_MAX || s->diag > PLAN_TOKENS_MAX)
        return base_fail(BURST_INVALID, "slice %zu has diag %" PRId64 ": further than any distance (%" PRId64 ")",
                         index, s->diag, PLAN_TOKENS_MAX);
    return BURST_OK;
}

/* The index, in the caller's list, of the n-th slice that is not empty. */
static size_t index_of_slice(const burst_slice *slices, size_t n) {
    for (size_t i = 0;; i++) {
        burst_slice s = slices[i];
        if (slice_trim(&s) && n-- == 0) return i;
    }
}

static burst_status append_slices(slice_list *list, int64_t q_tokens, int64_t k_tokens, const burst_slice *slices,
                                  size_t count) {
    burst_status status = BURST_OK;
    for (size_t i = 0; i < count && status == BURST_OK; i++) {
        status = check_slice(q_tokens, k_tokens, &slices[i], i);
        if (status == BURST_OK) status = append_trimmed(list, slices[i]);
    }
    bool found = false;
    size_t a = 0, b = 0;
    if (status == BURST_OK) status = slice_find_overlap(list->items, list->count, &found, &a, &b);
    if (status == BURST_OK && !found) sort_slices(list);
    if (status != BURST_OK || !found) return status;
    a = index_of_slice(slices, a);
    b = index_of_slice(slices, b);
    return base_fail(BURST_INVALID, "slices %zu and %zu overlap: a pair may be in one slice only", a < b ? a : b,
                     a < b ? b : a);
}

burst_status burst_mask_create_slices(int64_t q_tokens, int64_t k_tokens, const burst_slice *slices, size_t count,
                                      burst_mask **mask) {
    if (!mask) return base_fail(BURST_INVALID, "mask is NULL: expected where to put the handle");
    if (!slices && count > 0) return base_fail(BURST_INVALID, "slices is NULL, but count is %zu", count);
    burst_status status = check_sizes(q_tokens, k_tokens);
    if (status != BURST_OK) return status;
    slice_list list = {0};
    status = append_slices(&list, q_tokens, k_tokens, slices, count);
    return mask_finish(status, q_tokens, k_tokens, &list, mask);
}

burst_status burst_mask_create_shared_question(int64_t question, const int64_t *answers, size_t count,
                                               burst_mask **mask) {
    if (!mask) return base_fail(BURST_INVALID, "mask is NULL: expected where to put the handle");
    if (!answers && count > 0) return base_fail(BURST_INVALID, "answers is NULL, but count is %zu", count);
    burst_status status = check_tokens("question", question);
    int64_t tokens = question;
    for (size_t i = 0; i < count && status == BURST_OK; i++) {
        status = check_tokens("an answer", answers[i]);
        if (status == BURST_OK) status = check_tokens("question and answers", tokens += answers[i]);
    }
    if (status != BURST_OK) return status;
    slice_list list = {0};
    /* Behind the question the diagonal no longer binds: one slice is causal for it and full for the answers. */
    status = append_trimmed(&list, (burst_slice){0, tokens, 0, question, INT64_MIN, 0, 0});
    int64_t begin = question;
    for (size_t i = 0; i < count && status == BURST_OK; begin += answers[i++])
        status =
            append_trimmed(&list, (burst_slice){begin, begin + answers[i], begin, begin + answers[i], INT64_MIN, 0, 0});
    return mask_finish(status, tokens, tokens, &list, mask);
}

static burst_status check_lengths(const burst_mask_spec *spec, int64_t batch, const int64_t *q_lengths,
                                  const int64_t *k_lengths) {
    if (batch < 1) return base_fail(BURST_INVALID, "batch is %" PRId64 ": expected 1 or more", batch);
    if (!q_lengths || !k_lengths) return base_fail(BURST_INVALID, "%s is NULL", q_lengths ? "k_lengths" : "q_lengths");
    if (spec->documents > 0) return base_fail(BURST_INVALID, "documents cannot be combined with lengths per batch row");
    for (int64_t b = 0; b < batch; b++) {
        if (q_lengths[b] < 0 || q_lengths[b] > spec->q_tokens)
            return base_fail(BURST_INVALID, "q_lengths[%" PRId64 "] is %" PRId64 ": must be 0 to q_tokens %" PRId64, b,
                             q_lengths[b], spec->q_tokens);
        if (k_lengths[b] < 0 || k_lengths[b] > spec->k_tokens)
            return base_fail(BURST_INVALID, "k_lengths[%" PRId64 "] is %" PRId64 ": must be 0 to k_tokens %" PRId64, b,
                             k_lengths[b], spec->k_tokens);
    }
    return BURST_OK;
}

burst_status burst_mask_create_lengths(const burst_mask_spec *spec, int64_t batch, const int64_t *q_lengths,
                                       const int64_t *k_lengths, burst_mask **mask) {
    burst_status status = check_spec(spec, mask);
    if (status == BURST_OK) status = check_lengths(spec, batch, q_lengths, k_lengths);
    if (status != BURST_OK) return status;
    slice_list list = {0};
    burst_mask *made = NULL;
    status = mask_make(spec->q_tokens, spec->k_tokens, batch, &list, &made);
    for (int64_t b = 0; b < batch && status == BURST_OK; b++) {
        const area row = {0, q_lengths[b], 0, k_lengths[b]};
        status = append_frame(&list, spec, row, row);
        made->slices = list.items; /* it moves as it grows */
        made->starts[b + 1] = list.count;
    }
    if (status != BURST_OK)
        burst_mask_free(made);
    else
        *mask = made;
    return status;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* Key blocks begin .. end-1, allowed since block row `top`. */
typedef struct block_run {
    int64_t begin, end, top;
} block_run;

typedef struct block_map {
    const burst_mask_spec *spec;
    const unsigned char *bits;
    int64_t block, rows, columns;
} block_map;

static size_t block_row_runs(const block_map *map, int64_t row, block_run *runs) {
    const unsigned char *bits = map->bits + row * map->columns;
    size_t count = 0;
    for (int64_t j = 0; j < map->columns; j++) {
        if (!bits[j]) continue;
        if (count > 0 && runs[count - 1].end == j)
            runs[count - 1].end++;
        else
            runs[count++] = (block_run){j, j + 1, row};
    }
    return count;
}

/* Appends the runs of the rows before `row` that `row` does not continue; those that it does keep their top. */
static burst_status close_runs(slice_list *list, const block_map *map, const block_run *open, size_t open_count,
                               block_run *runs, size_t count, int64_t row) {
    burst_status status = BURST_OK;
    size_t j = 0;
    for (size_t i = 0; i < open_count && status == BURST_OK; i++) {
        while (j < count && runs[j].begin < open[i].begin) j++;
        if (j < count && runs[j].begin == open[i].begin && runs[j].end == open[i].end) {
            runs[j].top = open[i].top;
            continue;
        }
        status =
            append_spec(list, map->spec,
                        (area){open[i].top * map->block, smaller(row * map->block, map->spec->q_tokens),
                               open[i].begin * map->block, smaller(open[i].end * map->block, map->spec->k_tokens)});
    }
    return status;
}

static burst_status append_blocks(slice_list *list, const block_map *map) {
    const size_t most = (size_t)map->columns / 2 + 1; /* runs of a row */
    size_t bytes = 0;
    block_run *runs = base_multiply(2 * most, sizeof *runs, &bytes) ? base_alloc(bytes) : NULL;
    if (!runs) return base_fail(BURST_MEMORY, "no memory for the %zu runs of a row of blocks", most);
    burst_status status = BURST_OK;
    size_t open_count = 0;
    for (int64_t row = 0; row <= map->rows && status == BURST_OK; row++) { /* one past the last closes all */
        block_run *open = runs + (row % 2 ? 0 : most), *next = runs + (row % 2 ? most : 0);
        const size_t count = row < map->rows ? block_row_runs(map, row, next) : 0;
        status = close_runs(list, map, open, open_count, next, count, row);
        open_count = count;
    }
    base_free(runs);
    sort_slices(list);
    return status;
}

burst_status burst_mask_create_blocks(const burst_mask_spec *spec, int64_t block, const unsigned char *bitmap,
                                      burst_mask **mask) {
    burst_status status = check_spec(spec, mask);
    if (status != BURST_OK) return status;
    if (block < 1) return base_fail(BURST_INVALID, "block is %" PRId64 ": expected 1 or more", block);
    const int64_t size = smaller(block, PLAN_TOKENS_MAX); /* one block anyway */
    const block_map map = {spec, bitmap, size, (spec->q_tokens + size - 1) / size, (spec->k_tokens + size - 1) / size};
    ptrdiff_t bits;
    if (__builtin_mul_overflow(map.rows, map.columns, &bits))
        return base_fail(BURST_INVALID, "a bitmap of %" PRId64 " x %" PRId64 " blocks overflows", map.rows,
                         map.columns);
    if (!bitmap && bits > 0)
        return base_fail(BURST_INVALID, "bitmap is NULL: expected %" PRId64 " x %" PRId64 " blocks", map.rows,
                         map.columns);
    slice_list list = {0};
    if (bits > 0) status = append_blocks(&list, &map);
    return mask_finish(status, spec->q_tokens, spec->k_tokens, &list, mask);
}
