/* rival.c - what both rivals share: who has which tokens, which keys a row sees, the ring, and the products.
 * One idea: a pass is a walk round the ring with a read set and, one hop behind, a write set, as in the library; only that a
 * visitor meets what stays in whole blocks of scores. No strawman: messages overlap with products, blocks that a mask leaves
 * empty are skipped, heads run side by side on all threads of the rank. */
#include "rival_body.h"

#include <cblas.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "need.h"

const char *rival_refuses(rival_kind kind, const word *w) {
    const unsigned simple = WORD_DTYPE | WORD_CAUSAL | WORD_WINDOW | WORD_ALIGN | WORD_SCALE | WORD_AMP | WORD_LAYOUT;
    if (kind == RIVAL_NONE) return NULL;
    if (w->dtype != BURST_F32) return "its products are OpenBLAS's: f32 words only";
    if (w->parts & (WORD_SOFTCAP | WORD_ALIBI | WORD_SINK)) return "it has no softcap, ALiBi or sinks";
    if (w->parts & ~simple) return "its masks are full, causal and windows only";
    if (w->n == 0 || w->k == 0) return "it has no rows or no keys to store scores of";
    return NULL;
}

burst_partition rival_partition(rival_kind kind) {
    return kind == RIVAL_RSA ? BURST_PARTITION_CONTIGUOUS : BURST_PARTITION_ZIGZAG;
}

/* ---- who has what ------------------------------------------------------------------------------------------------ */

rival_block rival_block_of(const rival *r, burst_side side, int rank) {
    rival_block block = {.count = 0};
    block.count = burst_plan_spans(r->plan, side, rank, block.spans);
    for (int n = 0; n < block.count; n++) block.tokens += block.spans[n].count;
    return block;
}

static int64_t largest(const rival *r, burst_side side) {
    int64_t most = 0;
    for (int rank = 0; rank < r->ranks; rank++) {
        const int64_t n = rival_block_of(r, side, rank).tokens;
        most = n > most ? n : most;
    }
    return most;
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

rival_interval rival_row(const word *w, int64_t q) {
    const int64_t off = w->align == BURST_ALIGN_START ? 0 : w->k - w->n;
    rival_interval see = {0, w->k};
    if (w->parts & WORD_CAUSAL) see.end = q + off + 1;
    if (w->parts & WORD_WINDOW) {
        if (w->window_right >= 0 && q + off + w->window_right + 1 < see.end) see.end = q + off + w->window_right + 1;
        if (w->window_left >= 0) see.begin = q + off - w->window_left;
    }
    if (see.begin < 0) see.begin = 0;
    if (see.end > w->k) see.end = w->k;
    return see;
}

rival_interval rival_seen(const word *w, const burst_span *q, int64_t i, const burst_span *k) {
    rival_interval see = rival_row(w, q->begin + i);
    see.begin = see.begin > k->begin ? see.begin - k->begin : 0;
    if (see.begin > k->count) see.begin = k->count;
    see.end = see.end - k->begin < k->count ? see.end - k->begin : k->count;
    if (see.end < see.begin) see.end = see.begin;
    return see;
}

/* Both ends of an interval move up with the row, so the first and the last row tell. */
int rival_meets(const word *w, const burst_span *q, const burst_span *k) {
    const rival_interval first = rival_row(w, q->begin), last = rival_row(w, q->begin + q->count - 1);
    return q->count > 0 && k->count > 0 && first.begin < k->begin + k->count && last.end > k->begin;
}

/* ---- products and rows ------------------------------------------------------------------------------------------- */

void rival_multiply(int trans_a, int trans_b, int64_t m, int64_t n, int64_t k, float alpha, const float *a, int64_t lda,
                    const float *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    if (m > 0 && n > 0)
        cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans, trans_b ? CblasTrans : CblasNoTrans, (int)m,
                    (int)n, (int)k, alpha, a, (int)lda, b, (int)ldb, beta, c, (int)ldc);
}

/* e^x for x <= 0, to 2e-7: 2^n times a polynomial of degree 6 on [-0.5, 0.5] ln 2 (Taylor's: the next term is 1.2e-7 of 1). */
static inline float exp_of(float x) {
    const float y = x < -87.0f ? -87.0f : x, shifted = y * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
    const float f = (y - n * 0.693359375f) - n * -2.12194440e-4f;
    const float p =
        1.0f +
        f * (1.0f +
             f * (0.5f + f * (1.0f / 6 + f * (1.0f / 24 + f * (1.0f / 120 + f * (1.0f / 720 + f * (1.0f / 5040)))))));
    union {
        float value;
        int32_t bits;
    } u = {shifted}, power;
    power.bits = (u.bits - 0x4b400000 + 127) << 23;
    return x < -87.0f ? 0.0f : p * power.value;
}

/* One body for each instruction set, chosen when the program is loaded: before the sanitizers are ready for it. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define FOR_EVERY_CPU __attribute__((target_clones("avx512f", "arch=haswell", "default")))
#else
#define FOR_EVERY_CPU
#endif

FOR_EVERY_CPU float rival_max(const float *s, int64_t count) {
    float most = -INFINITY;
#pragma omp simd reduction(max : most)
    for (int64_t n = 0; n < count; n++) most = s[n] > most ? s[n] : most;
    return most;
}

FOR_EVERY_CPU float rival_exp(float *s, int64_t count, float top) {
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < count; n++) {
        s[n] = exp_of(s[n] - top);
        sum += s[n];
    }
    return sum;
}

/* dS = P (dP - D) scale, into dP. */
FOR_EVERY_CPU void rival_scores_gradient(const float *p, float *dp, int64_t count, float dot, float scale) {
#pragma omp simd
    for (int64_t n = 0; n < count; n++) dp[n] = p[n] * (dp[n] - dot) * scale;
}

FOR_EVERY_CPU void rival_scale(float *x, int64_t count, float by) {
#pragma omp simd
    for (int64_t n = 0; n < count; n++) x[n] *= by;
}

FOR_EVERY_CPU static void add(float *into, const float *from, int64_t count) {
#pragma omp simd
    for (int64_t n = 0; n < count; n++) into[n] += from[n];
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

/* Between a tensor and [batch][heads][tokens][dim]; returns the end of what is packed. */
static float *copy(const data_tensor *t, float *packed, int in) {
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t n = 0; n < t->tokens; n++, packed += t->dim) {
                void *at = data_place(t, b, n, h);
                memcpy(in ? (void *)packed : at, in ? at : (void *)packed, (size_t)t->dim * sizeof(float));
            }
    return packed;
}

float *rival_pack(const data_tensor *t, float *to) { return copy(t, to, 1); }

void rival_unpack(const float *from, const data_tensor *t) { copy(t, (float *)(uintptr_t)from, 0); }

void rival_dots(const rival *r, float *dots) {
    const word *w = r->word;
    const int64_t n = rival_block_of(r, BURST_SIDE_Q, r->rank).tokens;
    for (int64_t row = 0; row < w->batch * w->heads * n; row++) {
        const int64_t b = row / n / w->heads, h = row / n % w->heads;
        const float *o = (const float *)data_place(&r->mine->o, b, row % n, h);
        const float *d_o = (const float *)data_place(&r->mine->d_o, b, row % n, h);
        float dot = 0;
        for (int64_t x = 0; x < w->v; x++) dot += o[x] * d_o[x];
        dots[row] = dot;
    }
}

/* ---- the ring ---------------------------------------------------------------------------------------------------- */

/* Keeps the time in which something is on its way. */
static void note(rival *r) {
    const int active = r->reads.active || r->writes.active;
    if (active && r->since == 0) r->since = check_now();
    if (!active && r->since > 0) r->report.seconds_transfer += check_now() - r->since, r->since = 0;
}

void rival_push(rival *r) {
    if (omp_get_thread_num() != 0) return;
    crew_step_test(&r->reads);
    crew_step_test(&r->writes);
    note(r);
}

static void wait_for(rival *r, crew_step *step) {
    const double since = check_now();
    crew_step_wait(step);
    r->report.seconds_waiting += check_now() - since;
    note(r);
}

static size_t set_bytes(const rival *r, const rival_set *set, burst_side side, int rank) {
    return (size_t)(set->row * rival_block_of(r, side, rank).tokens) * sizeof(float);
}

static void count_sent(int64_t *bytes, int64_t *messages, size_t more) {
    *bytes += (int64_t)more;
    ++*messages;
}

/* read[0] holds the own block; what others add to it has come to `arrived` in the end. */
void rival_walk(rival *r, burst_side side, const rival_set *read, const rival_set *write,
                void (*meet)(rival *r, int visitor, const float *block, float *sums)) {
    for (int t = 0; t < r->ranks; t++) {
        const int visitor = (r->rank + t) % r->ranks, next = (r->rank + t + 1) % r->ranks;
        if (t < r->ranks - 1) {
            const size_t bytes = set_bytes(r, read, side, visitor);
            crew_step_begin(r->me, r->ranks, 0, r->read[t % 2], bytes, r->read[(t + 1) % 2],
                            set_bytes(r, read, side, next), &r->reads);
            count_sent(&r->report.read_bytes, &r->report.read_messages, bytes);
            note(r);
        }
        float *sums = t == 0 ? NULL : r->write[t % 2];
        const double computing = check_now();
        if (write && sums) memset(sums, 0, set_bytes(r, write, side, visitor));
        meet(r, visitor, r->read[t % 2], sums);
        r->report.seconds_computing += check_now() - computing;
        if (write && t > 0) {
            const size_t bytes = set_bytes(r, write, side, visitor);
            wait_for(r, &r->writes);
            if (t > 1) add(sums, r->arrived, (int64_t)(bytes / sizeof(float)));
            crew_step_begin(r->me, r->ranks, 1, sums, bytes, r->arrived, set_bytes(r, write, side, next), &r->writes);
            count_sent(&r->report.write_bytes, &r->report.write_messages, bytes);
        }
        wait_for(r, &r->reads);
    }
    wait_for(r, &r->writes);
    const double transfer = r->report.seconds_transfer;
    r->report.hidden = transfer > 0 ? 1 - r->report.seconds_waiting / transfer : 1;
    if (r->report.hidden < 0) r->report.hidden = 0;
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static const rival_body *body_of(rival_kind kind) { return kind == RIVAL_RSA ? &rival_rsa : &rival_gao; }

/* Floats of the messages of a pass, for blocks of n tokens of the side that travels. */
static int64_t message_floats(const rival_body *body, const word *w, int ranks, int64_t n, int64_t m, int backward) {
    int64_t read = 0, write = 0;
    for (int pass = 0; pass <= backward; pass++) {
        const int64_t tokens = body->side[pass] == BURST_SIDE_Q ? n : m;
        const int64_t a = tokens * body->read(w, pass).row, b = tokens * body->write(w, pass).row;
        read = a > read ? a : read, write = b > write ? b : write;
    }
    return 2 * read + (ranks > 1 ? 3 * write : 0);
}

double rival_memory(rival_kind kind, const word *w, int ranks, int threads, int64_t n, int64_t m, int backward) {
    const rival_body *body = body_of(kind);
    return (double)sizeof(float) *
           (body->floats(w, ranks, threads, n, m, backward) + (double)message_floats(body, w, ranks, n, m, backward));
}

static float *floats(double count) { return need_raw((size_t)count + 1, sizeof(float)); }

rival *rival_open(rival_kind kind, const word *w, const crew_member *me, int ranks, int threads, const burst_plan *plan,
                  const data *mine, int backward) {
    rival *r = need_bytes(sizeof *r);
    *r = (rival){.body = body_of(kind), .word = w, .me = me, .rank = me->rank, .ranks = ranks, .threads = threads};
    r->plan = plan, r->mine = mine;
    r->scale = w->parts & WORD_SCALE ? (float)w->scale : (float)(1 / sqrt((double)w->d));
    r->n = largest(r, BURST_SIDE_Q), r->m = largest(r, BURST_SIDE_K);
    int64_t read = 0, write = 0;
    for (int pass = 0; pass <= backward; pass++) {
        const int64_t tokens = r->body->side[pass] == BURST_SIDE_Q ? r->n : r->m;
        const int64_t a = tokens * r->body->read(w, pass).row, b = tokens * r->body->write(w, pass).row;
        read = a > read ? a : read, write = b > write ? b : write;
    }
    for (int n = 0; n < 2; n++) r->read[n] = floats((double)read);
    for (int n = 0; n < 2 && ranks > 1; n++) r->write[n] = floats((double)write);
    if (ranks > 1) r->arrived = floats((double)write);
    r->room = floats(r->body->floats(w, ranks, threads, r->n, r->m, backward));
    openblas_set_num_threads(1); /* heads run side by side */
    return r;
}

void rival_close(rival *r) {
    if (!r) return;
    for (int n = 0; n < 2; n++) free(r->read[n]), free(r->write[n]);
    free(r->arrived);
    free(r->room);
    free(r);
}

/* What stays at home meets all of the other side: pairs of all heads. */
static int64_t count_pairs(const rival *r, burst_side travels) {
    const rival_block keys = rival_block_of(r, BURST_SIDE_K, r->rank);
    const burst_span all_keys = {0, r->word->k, 1}, *spans = travels == BURST_SIDE_K ? &all_keys : keys.spans;
    const int span_count = travels == BURST_SIDE_K ? 1 : keys.count;
    int64_t pairs = 0;
    for (int rank = 0; rank < r->ranks; rank++) {
        const rival_block rows = rival_block_of(r, BURST_SIDE_Q, rank);
        if (travels == BURST_SIDE_K && rank != r->rank) continue;
        for (int a = 0; a < rows.count; a++)
            for (int c = 0; c < span_count; c++)
                for (int64_t i = 0; i < rows.spans[a].count; i++) {
                    const rival_interval see = rival_seen(r->word, &rows.spans[a], i, &spans[c]);
                    pairs += see.end - see.begin;
                }
    }
    return pairs * r->word->batch * r->word->heads;
}

static void run(rival *r, int pass) {
    const double start = check_now();
    r->report = (burst_report)BURST_REPORT_INIT;
    (pass ? r->body->backward : r->body->forward)(r);
    r->report.seconds = check_now() - start;
    r->report.pairs = count_pairs(r, r->body->side[pass]);
}

void rival_forward(rival *r) { run(r, 0); }

void rival_backward(rival *r) { run(r, 1); }

burst_report rival_report(const rival *r) { return r->report; }
