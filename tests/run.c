/* run.c - see run.h. */
#include "run.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATTERN = 0xa5 };

/* Copies `bytes` to the end of pages of their own, with a forbidden page behind and a pattern in front. */
static void *guard(run *r, const void *from, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (bytes + 2 * page - 1) / page * page;
    unsigned char *area = mmap(NULL, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(area != MAP_FAILED && r->areas < 16);
    assert_int_equal(mprotect(area + pages, page, PROT_NONE), 0);
    memset(area, PATTERN, pages - bytes);
    if (from) memcpy(area + pages - bytes, from, bytes);
    r->guarded[r->areas] = area;
    r->mapped[r->areas] = pages + page;
    r->margin[r->areas++] = pages - bytes;
    return area + pages - bytes;
}

static void guard_tensor(run *r, data_tensor *t) {
    const size_t bytes = (size_t)(t->batch * t->tokens * t->heads * t->dim) * data_size(t->dtype);
    if (t->plain && t->data) t->data = guard(r, t->data, bytes);
}

burst_strategy run_strategy(const word *w, int number, int ranks) {
    const int dealt = w->heads % ranks == 0 && (w->groups % ranks == 0 || ranks % w->groups == 0);
    if (number % 5 == 2) return BURST_STRATEGY_GATHER;
    return number % 5 >= 3 && dealt ? BURST_STRATEGY_ULYSSES : BURST_STRATEGY_RING;
}

void run_make(const char *text, int threads, burst_isa isa, run *out) {
    char error[WORD_ERROR_SIZE];
    burst_options options = BURST_OPTIONS_INIT;
    memset(out, 0, sizeof *out);
    if (word_parse(text, &out->word, error)) fail_msg("%s: %s", text, error);
    if (word_problem_make(&out->word, 1, &out->made)) fail_msg("%s: %s", text, burst_last_error());
    data_make(&out->word, 1, 1, &out->data);
    data *d = &out->data;
    data_tensor *tensors[8] = {&d->q, &d->k, &d->v, &d->o, &d->d_o, &d->d_q, &d->d_k, &d->d_v};
    for (int i = 0; i < 8; i++) guard_tensor(out, tensors[i]);
    const size_t wide = data_size(data_wide(out->word.dtype));
    d->lse = guard(out, d->lse, (size_t)(out->word.batch * out->word.heads * out->word.n) * wide);
    if (d->sink) {
        d->sink = guard(out, d->sink, (size_t)out->word.heads * wide);
        d->d_sink = guard(out, d->d_sink, (size_t)out->word.heads * wide);
    }
    options.threads = threads;
    options.isa = isa;
    if (burst_plan_create(&out->made.problem, NULL, &options, &out->plan)) fail_msg("%s: %s", text, burst_last_error());
    out->stats = guard(out, NULL, burst_plan_stats_bytes(out->plan));
}

void run_both(run *r) {
    if (check_forward(r->plan, &r->data, r->stats)) fail_msg("forward: %s", burst_last_error());
    if (check_backward(r->plan, &r->data, r->stats)) fail_msg("backward: %s", burst_last_error());
}

void run_free(run *r) {
    for (int i = 0; i < r->areas; i++) {
        const unsigned char *area = r->guarded[i];
        for (size_t n = 0; n < r->margin[i]; n++)
            if (area[n] != PATTERN) fail_msg("area %d was written to in front of its buffer", i);
        munmap(r->guarded[i], r->mapped[i]);
    }
    burst_plan_free(r->plan);
    data_free(&r->data);
    word_problem_free(&r->made);
    word_free(&r->word);
}

double run_distance(const data_tensor *a, const data_tensor *b, double *largest) {
    double far = 0;
    *largest = 0;
    for (int64_t n = 0; n < a->batch; n++)
        for (int64_t t = 0; t < a->tokens; t++)
            for (int64_t h = 0; h < a->heads; h++)
                for (int64_t x = 0; x < a->dim; x++) {
                    const double u = data_at(a, n, t, h, x), v = data_at(b, n, t, h, x);
                    if (!(fabs(u - v) <= far)) far = isnan(u - v) ? INFINITY : fabs(u - v);
                    if (fabs(u) > *largest) *largest = fabs(u);
                }
    return far;
}

int run_same(const data_tensor *a, const data_tensor *b) {
    return !memcmp(a->data, b->data, (size_t)(a->batch * a->tokens * a->heads * a->dim) * data_size(a->dtype));
}

void run_assert_same(const run *a, const run *b) {
    const size_t wide = data_size(data_wide(a->word.dtype));
    assert_true(run_same(&a->data.o, &b->data.o));
    assert_true(run_same(&a->data.d_q, &b->data.d_q));
    assert_true(run_same(&a->data.d_k, &b->data.d_k));
    assert_true(run_same(&a->data.d_v, &b->data.d_v));
    assert_memory_equal(a->data.lse, b->data.lse, (size_t)(a->word.batch * a->word.heads * a->word.n) * wide);
    if (a->data.d_sink) assert_memory_equal(a->data.d_sink, b->data.d_sink, (size_t)a->word.heads * wide);
}
