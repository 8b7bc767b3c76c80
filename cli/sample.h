/* sample.h - which heads, rows and keys a check looks at: all of them, or a sample when that would take too long. */
#ifndef CLI_SAMPLE_H
#define CLI_SAMPLE_H

#include "word.h"

/* Beyond this many pairs x heads (fewer for large d and f64) a check samples; up to it, it ends within half a minute. */
#define SAMPLE_ABOVE 5e7

typedef struct sample {
    int whole;
    int64_t groups;     /* how many (batch row, kv head) are looked at, with all their query heads */
    int64_t rows, keys; /* of each head and of each kv head */
} sample;

void sample_choose(const word *word, int64_t pairs, sample *out);
/* The i-th (batch row, kv head). */
void sample_group(const word *word, const sample *sample, int64_t i, int64_t *batch_row, int64_t *group);
/* The rows of a head or the keys of a kv head, ascending, no one twice; tile and document edges and both ends are among
 * them. `which` varies the draw. Returns how many; room for sample->rows or ->keys. */
int64_t sample_tokens(const word *word, const sample *sample, int key_side, uint64_t which, int64_t *tokens);

#endif
