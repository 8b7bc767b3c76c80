/* word_mask.h - who sees whom, straight from the parts of the word.
 *
 * One idea: the oracle must not share a single line with the library's slices, so the predicate is evaluated pair by
 * pair as the documentation words it. Price: nanoseconds per pair; ranges that cannot hold an allowed pair are skipped.
 */
#ifndef CLI_WORD_MASK_H
#define CLI_WORD_MASK_H

#include "word.h"

typedef struct word_mask {
    const word *word;
    int32_t *q_document, *k_document; /* of each token; NULL when not packed */
    int64_t *q_start, *k_start;       /* first token of each document, one more at the end */
    unsigned char *bitmap;            /* NULL: not block-sparse */
    int64_t bitmap_columns;
} word_mask;

void word_mask_make(const word *word, uint64_t seed, word_mask *out);
void word_mask_free(word_mask *mask);

int word_mask_allows(const word_mask *mask, int64_t batch_row, int64_t q, int64_t k);
/* |k - q - off|: what ALiBi multiplies, for an allowed pair. */
int64_t word_mask_distance(const word_mask *mask, int64_t batch_row, int64_t q, int64_t k);
/* The keys that q sees, ascending, into `keys` (room for all); returns how many. Queries of a key likewise. */
int64_t word_mask_keys(const word_mask *mask, int64_t batch_row, int64_t q, int64_t *keys);
int64_t word_mask_queries(const word_mask *mask, int64_t batch_row, int64_t k, int64_t *queries);

#endif
