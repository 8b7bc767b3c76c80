/* word.h - one word says a whole attention problem: sizes, element type, mask, score modifiers, layout.
 *
 * Knows: the grammar of the word, the struct it becomes, and the way back to the canonical word. The same word names a
 * problem for the command, the tests, the benchmarks and in bug reports.
 * Does not: touch data, or judge what only the library can judge (h a multiple of g, d within the limit).
 *
 *   b1h8g2n4096k8192d64v128:part:part...   sizes in this order; g, k and v default to h, n and d
 *   f32 bf16 f16 f64                       element type (f32)
 *   causal  window=L/R  prefix=P  sinktokens=S  align=start     mask parts; -1 as L or R is unbounded
 *   docs=A/B/...  kdocs=A/B/...            packed documents: lengths that sum to n (k side: to k; as docs if left out)
 *   blocks=SIZE/P                          block-sparse: each block on with probability P, from the seed
 *   lengths=A/B/...  klengths=A/B/...      padded batch: one length per batch row (k side: as lengths if left out)
 *   shared=Q/A/B/...                       one question, several answers; sums to n
 *   slices=q0-q1xk0-k1@lo..hi,...          raw slices; lo, hi or all from @ on may be left out: unbounded
 *   softcap=C  alibi  sink  scale=X  amp=X score modifiers; amp multiplies q
 *   layout=bhnd  layout=qkv                strides other than [batch][tokens][heads][dim]
 */
#ifndef CLI_WORD_H
#define CLI_WORD_H

#include <burst.h>

enum word_part {
    WORD_DTYPE = 1 << 0,
    WORD_CAUSAL = 1 << 1,
    WORD_WINDOW = 1 << 2,
    WORD_PREFIX = 1 << 3,
    WORD_SINKTOKENS = 1 << 4,
    WORD_ALIGN = 1 << 5,
    WORD_DOCS = 1 << 6,
    WORD_KDOCS = 1 << 7,
    WORD_BLOCKS = 1 << 8,
    WORD_LENGTHS = 1 << 9,
    WORD_KLENGTHS = 1 << 10,
    WORD_SHARED = 1 << 11,
    WORD_SLICES = 1 << 12,
    WORD_SOFTCAP = 1 << 13,
    WORD_ALIBI = 1 << 14,
    WORD_SINK = 1 << 15,
    WORD_SCALE = 1 << 16,
    WORD_AMP = 1 << 17,
    WORD_LAYOUT = 1 << 18
};

typedef enum word_layout { WORD_BNHD, WORD_BHND, WORD_QKV } word_layout;

typedef struct word_list {
    int64_t *at;
    size_t count;
} word_list;

typedef struct word {
    unsigned parts; /* which of word_part were given */
    int64_t batch, heads, groups, n, k, d, v;
    burst_dtype dtype;
    burst_align align;
    int64_t window_left, window_right; /* -1: unbounded */
    int64_t prefix, sink_tokens;
    word_list docs, kdocs, lengths, klengths, shared;
    int64_t block;
    double block_probability;
    burst_slice *slices; /* diag is left 0: see word_problem_make */
    size_t slice_count;
    double softcap, scale, amp;
    word_layout layout;
} word;

#define WORD_ERROR_SIZE 320

/* 0, or -1 and a sentence that says where the word is wrong and what was expected there. */
int word_parse(const char *text, word *out, char error[WORD_ERROR_SIZE]);
void word_free(word *word);
/* The canonical word, as snprintf prints: returns the length without the terminating zero. */
size_t word_print(const word *word, char *text, size_t size);
/* The same in memory of its own. */
char *word_text(const word *word);

const char *word_dtype_name(burst_dtype dtype);
/* 0, or -1 if no type has this name. */
int word_dtype_parse(const char *name, burst_dtype *dtype);

/* The document lengths of either side (side 0: queries, 1: keys), and the same for padded rows. */
const word_list *word_documents(const word *word, int key_side);
const word_list *word_lengths(const word *word, int key_side);

/* What the library is asked for this word. The struct keeps the arrays that the problem points to. */
typedef struct word_problem {
    burst_problem problem;
    burst_mask *mask;
    float *slopes;
} word_problem;
/* BURST_OK or what the library says; free it either way. */
burst_status word_problem_make(const word *word, uint64_t seed, word_problem *out);
void word_problem_free(word_problem *problem);

#endif
