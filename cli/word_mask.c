/* word_mask.c - the predicate of a word's mask. See word_mask.h. */
#include "word_mask.h"
#include "data.h"
#include "need.h"

#include <stdlib.h>
#include <string.h>

static int64_t *starts(const word_list *lengths) {
    int64_t *start = need_array(lengths->count + 1, sizeof *start);
    for (size_t i = 0; i < lengths->count; i++) start[i + 1] = start[i] + lengths->at[i];
    return start;
}

static int32_t *documents(const word_list *lengths, int64_t tokens) {
    int32_t *document = need_array((size_t)tokens, sizeof *document);
    int64_t at = 0;
    for (size_t i = 0; i < lengths->count; i++)
        for (int64_t j = 0; j < lengths->at[i]; j++) document[at++] = (int32_t)i;
    return document;
}

void word_mask_make(const word *w, uint64_t seed, word_mask *out) {
    memset(out, 0, sizeof *out);
    out->word = w;
    if (w->parts & WORD_DOCS) {
        out->q_document = documents(word_documents(w, 0), w->n);
        out->k_document = documents(word_documents(w, 1), w->k);
        out->q_start = starts(word_documents(w, 0));
        out->k_start = starts(word_documents(w, 1));
    }
    if (w->parts & WORD_BLOCKS) {
        out->bitmap = data_bitmap(w, seed);
        out->bitmap_columns = w->k / w->block + (w->k % w->block != 0);
    }
}

void word_mask_free(word_mask *mask) {
    free(mask->q_document);
    free(mask->k_document);
    free(mask->q_start);
    free(mask->k_start);
    free(mask->bitmap);
    memset(mask, 0, sizeof *mask);
}

/* Where k - q counts as 0: for the whole problem, for a padded row, or for the document of q. */
static int64_t shift(const word_mask *m, int64_t batch_row, int64_t q) {
    const word *w = m->word;
    int start = w->align == BURST_ALIGN_START;
    if (w->parts & WORD_DOCS) {
        int32_t i = m->q_document[q];
        return start ? m->k_start[i] - m->q_start[i] : m->k_start[i + 1] - m->q_start[i + 1];
    }
    if (start) return 0;
    if (w->parts & WORD_LENGTHS) return word_lengths(w, 1)->at[batch_row] - w->lengths.at[batch_row];
    return w->k - w->n;
}

static int slices_allow(const word *w, int64_t q, int64_t k) {
    for (size_t i = 0; i < w->slice_count; i++) {
        const burst_slice *s = &w->slices[i];
        if (q >= s->q_begin && q < s->q_end && k >= s->k_begin && k < s->k_end && k - q >= s->lo && k - q <= s->hi)
            return 1;
    }
    return 0;
}

/* The question is causal; an answer sees the question and itself, causally. */
static int shared_allows(const word *w, int64_t q, int64_t k) {
    if (k > q) return 0;
    if (k < w->shared.at[0]) return 1;
    int64_t end = 0;
    for (size_t i = 0; i < w->shared.count; i++) {
        int64_t begin = end;
        end += w->shared.at[i];
        if (k < end) return q >= begin && q < end;
    }
    return 0;
}

int word_mask_allows(const word_mask *m, int64_t batch_row, int64_t q, int64_t k) {
    const word *w = m->word;
    if (w->parts & WORD_SLICES) return slices_allow(w, q, k);
    if (w->parts & WORD_SHARED) return shared_allows(w, q, k);
    if ((w->parts & WORD_LENGTHS) && (q >= w->lengths.at[batch_row] || k >= word_lengths(w, 1)->at[batch_row]))
        return 0;
    if ((w->parts & WORD_DOCS) && m->q_document[q] != m->k_document[k]) return 0;
    if (m->bitmap && !m->bitmap[(q / w->block) * m->bitmap_columns + k / w->block]) return 0;
    int64_t t = k - q - shift(m, batch_row, q);
    int64_t place = (w->parts & WORD_DOCS) ? k - m->k_start[m->k_document[k]] : k;
    if ((w->parts & WORD_CAUSAL) && t > 0) return 0;
    if ((w->parts & WORD_PREFIX) && place >= w->prefix && t > 0) return 0;
    if (w->parts & WORD_WINDOW) {
        if (w->window_right >= 0 && t > w->window_right) return 0;
        if (w->window_left >= 0 && t < -w->window_left && place >= w->sink_tokens) return 0;
    }
    return 1;
}

int64_t word_mask_distance(const word_mask *m, int64_t batch_row, int64_t q, int64_t k) {
    int64_t t = k - q - shift(m, batch_row, q);
    return t < 0 ? -t : t;
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Keys outside [*begin, *end) cannot be seen by q; inside, the predicate decides. */
static void key_range(const word_mask *m, int64_t batch_row, int64_t q, int64_t *begin, int64_t *end) {
    const word *w = m->word;
    *begin = 0, *end = w->k;
    if (w->parts & (WORD_SLICES | WORD_SHARED)) return;
    if (w->parts & WORD_DOCS) *begin = m->k_start[m->q_document[q]], *end = m->k_start[m->q_document[q] + 1];
    int64_t centre = q + shift(m, batch_row, q);
    if (w->parts & WORD_CAUSAL) *end = smaller(*end, centre + 1);
    if (!(w->parts & WORD_WINDOW)) return;
    if (w->window_right >= 0 && w->window_right < w->k) *end = smaller(*end, centre + w->window_right + 1);
    if (w->window_left >= 0 && w->window_left < w->n + w->k && w->sink_tokens == 0)
        *begin = larger(*begin, centre - w->window_left);
}

/* The documents' and alignment's shift of a key, for the range of its queries. */
static void query_range(const word_mask *m, int64_t batch_row, int64_t k, int64_t *begin, int64_t *end) {
    const word *w = m->word;
    *begin = 0, *end = w->n;
    if (w->parts & (WORD_SLICES | WORD_SHARED)) return;
    if (w->parts & WORD_DOCS) *begin = m->q_start[m->k_document[k]], *end = m->q_start[m->k_document[k] + 1];
    if (*begin >= *end) return;
    int64_t centre = k - shift(m, batch_row, *begin);
    if (w->parts & WORD_CAUSAL) *begin = larger(*begin, centre);
    if (!(w->parts & WORD_WINDOW)) return;
    if (w->window_right >= 0 && w->window_right < w->n + w->k) *begin = larger(*begin, centre - w->window_right);
    if (w->window_left >= 0 && w->window_left < w->n && w->sink_tokens == 0)
        *end = smaller(*end, centre + w->window_left + 1);
}

int64_t word_mask_keys(const word_mask *m, int64_t batch_row, int64_t q, int64_t *keys) {
    int64_t begin, end, count = 0;
    key_range(m, batch_row, q, &begin, &end);
    for (int64_t k = begin; k < end; k++)
        if (word_mask_allows(m, batch_row, q, k)) keys[count++] = k;
    return count;
}

int64_t word_mask_queries(const word_mask *m, int64_t batch_row, int64_t k, int64_t *queries) {
    int64_t begin, end, count = 0;
    query_range(m, batch_row, k, &begin, &end);
    for (int64_t q = begin; q < end; q++)
        if (word_mask_allows(m, batch_row, q, k)) queries[count++] = q;
    return count;
}
