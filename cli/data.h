/* data.h - the numbers of a problem word: the same for the same seed, on any number of threads and in any layout.
 *
 * Knows: the generator, the 16-bit formats, and where the element of a tensor lies in each layout.
 */
#ifndef CLI_DATA_H
#define CLI_DATA_H

#include "word.h"

/* One tensor of a problem: [batch][tokens][heads][dim] in any layout, strides in elements. */
typedef struct data_tensor {
    unsigned char *data;
    burst_dtype dtype;
    int64_t batch, tokens, heads, dim;
    int64_t batch_stride, token_stride, head_stride;
    int plain; /* 1: the default layout, so the library is told no strides */
} data_tensor;

typedef struct data {
    data_tensor q, k, v, o, d_o, d_q, d_k, d_v;
    void *sink, *d_sink; /* [heads] in f32, or f64 for f64 problems; NULL without a sink */
    void *lse;           /* [batch][heads][n], the same type */
    void *memory[12];    /* what data_free frees */
    int memory_count;
} data;

/* Allocates everything, and fills q, k, v, d_o and the sink from the seed; outputs get a pattern that is not zero. */
void data_make(const word *word, uint64_t seed, int backward, data *out);
/* Of some tokens only, each with the numbers of its position in the whole problem. */
typedef struct data_places {
    int64_t n, k; /* how many */
    const int64_t *q_positions, *k_positions;
} data_places;
void data_make_at(const word *word, uint64_t seed, int backward, const data_places *places, data *out);
void data_free(data *data);

burst_input data_input(const data_tensor *tensor);
burst_output data_output(const data_tensor *tensor);

float data_slope(const word *word, int64_t head);
/* ceil(n / block) rows of ceil(k / block) bytes: which blocks are on. */
unsigned char *data_bitmap(const word *word, uint64_t seed);

size_t data_size(burst_dtype dtype);
double data_load(burst_dtype dtype, const void *memory, int64_t index);
void data_store(burst_dtype dtype, void *memory, int64_t index, double value);
/* lse, sink and d_sink: f32, or f64 for f64 problems. */
burst_dtype data_wide(burst_dtype dtype);
/* One head of one batch row, contiguous, in double. */
void data_load_head(const data_tensor *tensor, int64_t batch_row, int64_t head, double *out);
unsigned char *data_place(const data_tensor *tensor, int64_t batch_row, int64_t token, int64_t head);
double data_at(const data_tensor *tensor, int64_t batch_row, int64_t token, int64_t head, int64_t i);

/* Round to nearest even to the 16-bit type and back; other types: the number itself. */
float data_round(burst_dtype dtype, float value);
/* The distance from 1 to the next number, and the largest finite one. */
double data_epsilon(burst_dtype dtype);
double data_largest(burst_dtype dtype);

/* count standard normal numbers of a stream, from number `first` on. */
void data_normal(uint64_t seed, uint64_t stream, uint64_t first, size_t count, double *out);
/* The index-th 64 random bits of a stream. */
uint64_t data_bits(uint64_t seed, uint64_t stream, uint64_t index);

#endif
