/* test_refusals.c - everything that is refused: its status, the essential part of its sentence, and that no output was
 * touched and no handle was made. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "transport.h"

#define BIG ((int64_t)1 << 39)

static void expect_at(int line, burst_status got, burst_status expected, const char *part) {
    if (got == expected && strstr(burst_last_error(), part)) return;
    print_error("line %d: got %s \"%s\", expected %s with \"%s\"\n", line, burst_status_name(got), burst_last_error(),
                burst_status_name(expected), part);
    fail();
}
#define EXPECT(status, expected, part) expect_at(__LINE__, status, expected, part)

static const burst_problem small_problem = {
    sizeof(burst_problem), BURST_F32, 2, 4, 2, 6, 5, 8, 8, 0, 0, NULL, 0, NULL, NULL};

/* ---- problems and options ---------------------------------------------------------------------------------------- */

static burst_status try_plan(const burst_problem *problem, const burst_options *options) {
    burst_plan *plan = NULL;
    const burst_status status = burst_plan_create(problem, NULL, options, &plan);
    assert_true((status == BURST_OK) == (plan != NULL));
    burst_plan_free(plan);
    return status;
}

#define REFUSE_PROBLEM(change, expected, part)                                                                         \
    do {                                                                                                               \
        burst_problem p = small_problem;                                                                               \
        change;                                                                                                        \
        EXPECT(try_plan(&p, NULL), expected, part);                                                                    \
    } while (0)

static void test_problem_sizes(void **state) {
    (void)state;
    assert_int_equal(try_plan(&small_problem, NULL), BURST_OK);
    EXPECT(try_plan(NULL, NULL), BURST_INVALID, "problem is NULL");
    EXPECT(burst_plan_create(&small_problem, NULL, NULL, NULL), BURST_INVALID, "plan is NULL");
    REFUSE_PROBLEM(p.struct_size = 0, BURST_INVALID, "struct_size of burst_problem is 0");
    REFUSE_PROBLEM(p.struct_size += 8, BURST_UNSUPPORTED, "larger than this library knows");
    REFUSE_PROBLEM(p.struct_size -= 8, BURST_INVALID, "struct_size");
    REFUSE_PROBLEM(p.dtype = (burst_dtype)4, BURST_INVALID, "dtype is 4");
    REFUSE_PROBLEM(p.dtype = (burst_dtype)-1, BURST_INVALID, "dtype is -1");
    REFUSE_PROBLEM(p.batch = 0, BURST_INVALID, "batch is 0");
    REFUSE_PROBLEM(p.batch = -1, BURST_INVALID, "batch is -1");
    REFUSE_PROBLEM(p.q_heads = 0, BURST_INVALID, "q_heads is 0");
    REFUSE_PROBLEM(p.q_heads = -4, BURST_INVALID, "q_heads is -4");
    REFUSE_PROBLEM(p.kv_heads = -1, BURST_INVALID, "kv_heads is -1");
    REFUSE_PROBLEM((p.q_heads = 8, p.kv_heads = 3), BURST_INVALID, "kv_heads 3 must divide q_heads 8");
    REFUSE_PROBLEM((p.q_heads = 2, p.kv_heads = 4), BURST_INVALID, "kv_heads 4 must divide q_heads 2");
    REFUSE_PROBLEM(p.q_tokens = -1, BURST_INVALID, "q_tokens is -1");
    REFUSE_PROBLEM(p.k_tokens = -7, BURST_INVALID, "k_tokens is -7");
    REFUSE_PROBLEM(p.q_tokens = INT64_MAX, BURST_UNSUPPORTED, "q_tokens is 9223372036854775807");
    REFUSE_PROBLEM(p.head_dim = 0, BURST_INVALID, "head_dim is 0");
    REFUSE_PROBLEM(p.head_dim = -3, BURST_INVALID, "head_dim is -3");
    REFUSE_PROBLEM(p.head_dim = 513, BURST_UNSUPPORTED, "head_dim is 513: expected 1 to 512");
    REFUSE_PROBLEM(p.value_dim = 513, BURST_UNSUPPORTED, "value_dim is 513");
    REFUSE_PROBLEM(p.value_dim = -1, BURST_INVALID, "value_dim is -1");
    REFUSE_PROBLEM((p.q_tokens = BIG, p.batch = 1 << 20), BURST_INVALID, "size of q overflows");
    REFUSE_PROBLEM((p.k_tokens = BIG, p.batch = 1 << 20), BURST_INVALID, "size of k overflows");
    REFUSE_PROBLEM((p.k_tokens = BIG, p.batch = 1 << 14, p.value_dim = 512), BURST_INVALID, "size of v overflows");
    REFUSE_PROBLEM((p.q_tokens = BIG, p.batch = 1 << 13, p.value_dim = 512), BURST_INVALID, "size of o overflows");
    REFUSE_PROBLEM((p.q_tokens = BIG, p.batch = 1 << 19, p.head_dim = p.value_dim = 1, p.k_tokens = 0), BURST_INVALID,
                   "size of stats overflows");
    REFUSE_PROBLEM(p.batch = p.q_heads = INT64_MAX - 1, BURST_INVALID, "overflows");
    REFUSE_PROBLEM((p.q_tokens = p.k_tokens = BIG), BURST_INVALID, "pairs overflow");
}

static void test_problem_scores(void **state) {
    (void)state;
    const float slopes[4] = {1, NAN, 1, 1}, endless[4] = {1, 1, 1, INFINITY};
    REFUSE_PROBLEM(p.scale = NAN, BURST_INVALID, "scale is");
    REFUSE_PROBLEM(p.scale = INFINITY, BURST_INVALID, "scale is inf");
    REFUSE_PROBLEM(p.scale = 1e300, BURST_INVALID, "scale is 1e+300");
    REFUSE_PROBLEM(p.softcap = -1, BURST_INVALID, "softcap is -1");
    REFUSE_PROBLEM(p.softcap = NAN, BURST_INVALID, "softcap is");
    REFUSE_PROBLEM(p.softcap = INFINITY, BURST_INVALID, "softcap is inf");
    REFUSE_PROBLEM(p.softcap = 1e-60, BURST_INVALID, "softcap is 1e-60");
    REFUSE_PROBLEM(p.alibi = slopes, BURST_INVALID, "alibi[1] is");
    REFUSE_PROBLEM(p.alibi = endless, BURST_INVALID, "alibi[3] is inf");
    REFUSE_PROBLEM(p.alibi = (const float *)(uintptr_t)((uintptr_t)slopes + 1), BURST_INVALID, "alibi is misaligned");
    REFUSE_PROBLEM(p.sink = 2, BURST_INVALID, "sink is 2");
    REFUSE_PROBLEM(p.bias = slopes, BURST_UNSUPPORTED, "bias is not supported");
}

static void test_problem_mask(void **state) {
    (void)state;
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    burst_mask *mask = NULL;
    spec.q_tokens = 6, spec.k_tokens = 6;
    assert_int_equal(burst_mask_create(&spec, &mask), BURST_OK);
    REFUSE_PROBLEM(p.mask = mask, BURST_INVALID, "the mask is for 6 x 6 tokens, the problem has 6 x 5");
    burst_mask_free(mask);
    const int64_t lengths[3] = {1, 2, 3};
    spec.k_tokens = 5;
    for (int64_t batch = 1; batch <= 3; batch += 2) {
        assert_int_equal(burst_mask_create_lengths(&spec, batch, lengths, lengths, &mask), BURST_OK);
        REFUSE_PROBLEM(p.mask = mask, BURST_INVALID, "batch rows, the problem has batch 2");
        burst_mask_free(mask);
    }
}

#define REFUSE_OPTIONS(change, expected, part)                                                                         \
    do {                                                                                                               \
        burst_options o = BURST_OPTIONS_INIT;                                                                          \
        change;                                                                                                        \
        EXPECT(try_plan(&small_problem, &o), expected, part);                                                          \
    } while (0)

static void test_options(void **state) {
    (void)state;
    REFUSE_OPTIONS(o.struct_size = 0, BURST_INVALID, "struct_size of burst_options is 0");
    REFUSE_OPTIONS(o.struct_size += 1, BURST_UNSUPPORTED, "newer burst.h");
    REFUSE_OPTIONS(o.struct_size -= 1, BURST_INVALID, "struct_size");
    REFUSE_OPTIONS(o.threads = -1, BURST_INVALID, "threads is -1");
    REFUSE_OPTIONS(o.threads = 4097, BURST_INVALID, "threads is 4097");
    REFUSE_OPTIONS(o.passes = 4, BURST_INVALID, "passes is 0x4");
    REFUSE_OPTIONS(o.q_tile = -1, BURST_INVALID, "tiles are -1 x 0");
    REFUSE_OPTIONS(o.k_tile = -8, BURST_INVALID, "tiles are 0 x -8");
    REFUSE_OPTIONS(o.isa = (burst_isa)77, BURST_INVALID, "77");
    REFUSE_OPTIONS(o.memory_limit = 1, BURST_MEMORY, "limit");
    REFUSE_OPTIONS(o.partition = (burst_partition)4, BURST_INVALID, "partition is 4");
    REFUSE_OPTIONS(o.side_forward = (burst_side)3, BURST_INVALID, "side_forward is 3");
    REFUSE_OPTIONS(o.side_backward = (burst_side)-1, BURST_INVALID, "side_backward is -1");
    REFUSE_OPTIONS(o.no_overlap = 2, BURST_INVALID, "no_overlap is 2");
    REFUSE_OPTIONS(o.narrow_gradients = 1, BURST_UNSUPPORTED, "bf16 and f16 problems only");
    REFUSE_OPTIONS(o.timeout = -1, BURST_INVALID, "timeout is -1");
    const burst_isa all[] = {BURST_ISA_AVX2, BURST_ISA_AVX512, BURST_ISA_NEON, BURST_ISA_AMX, BURST_ISA_AVX512BF16};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!burst_isa_supported(all[i])) REFUSE_OPTIONS(o.isa = all[i], BURST_UNSUPPORTED, burst_isa_name(all[i]));
}

static void test_transport(void **state) {
    (void)state;
    burst_plan *plan = NULL;
    EXPECT(burst_transport_create_self(NULL), BURST_INVALID, "transport is NULL");
    burst_transport *self = NULL;
    assert_int_equal(burst_transport_create_self(&self), BURST_OK);
    assert_int_equal(burst_transport_rank(self), 0);
    assert_int_equal(burst_transport_size(self), 1);
    assert_int_equal(burst_plan_create(&small_problem, self, NULL, &plan), BURST_OK);
    burst_plan_free(plan);
    burst_transport_free(self);
    burst_plan_free(NULL);
    burst_mask_free(NULL);
    burst_transport_free(NULL);
}

/* ---- masks ------------------------------------------------------------------------------------------------------- */

#define REFUSE_SPEC(change, expected, part)                                                                            \
    do {                                                                                                               \
        burst_mask_spec s = BURST_MASK_SPEC_INIT;                                                                      \
        s.q_tokens = s.k_tokens = 10;                                                                                  \
        change;                                                                                                        \
        EXPECT(burst_mask_create(&s, &mask), expected, part);                                                          \
        assert_null(mask);                                                                                             \
    } while (0)

static void test_mask_spec(void **state) {
    (void)state;
    const int64_t good[3] = {0, 4, 10}, late[3] = {1, 4, 10}, falling[4] = {0, 7, 4, 10}, brief[3] = {0, 4, 9};
    burst_mask *mask = NULL;
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    EXPECT(burst_mask_create(NULL, &mask), BURST_INVALID, "spec is NULL");
    EXPECT(burst_mask_create(&spec, NULL), BURST_INVALID, "mask is NULL");
    REFUSE_SPEC(s.struct_size = 0, BURST_INVALID, "struct_size of burst_mask_spec is 0");
    REFUSE_SPEC(s.struct_size = 4096, BURST_UNSUPPORTED, "struct_size 4096");
    REFUSE_SPEC(s.q_tokens = -1, BURST_INVALID, "q_tokens is -1");
    REFUSE_SPEC(s.k_tokens = -1, BURST_INVALID, "k_tokens is -1");
    REFUSE_SPEC(s.k_tokens = INT64_MAX, BURST_UNSUPPORTED, "k_tokens is 9223372036854775807");
    REFUSE_SPEC(s.align = (burst_align)2, BURST_INVALID, "align is 2");
    REFUSE_SPEC(s.causal = -1, BURST_INVALID, "causal is -1");
    REFUSE_SPEC(s.window_left = -2, BURST_INVALID, "window is -2/-1");
    REFUSE_SPEC(s.window_right = -3, BURST_INVALID, "window is -1/-3");
    REFUSE_SPEC(s.sink_tokens = -1, BURST_INVALID, "sink_tokens is -1");
    REFUSE_SPEC(s.prefix = -2, BURST_INVALID, "prefix is -2");
    REFUSE_SPEC(s.documents = -1, BURST_INVALID, "documents is -1");
    REFUSE_SPEC(s.q_offsets = good, BURST_INVALID, "documents is 0");
    REFUSE_SPEC(s.documents = 2, BURST_INVALID, "q_offsets is NULL");
    REFUSE_SPEC((s.documents = 2, s.q_offsets = good), BURST_INVALID, "k_offsets is NULL");
    REFUSE_SPEC((s.documents = 2, s.q_offsets = late, s.k_offsets = good), BURST_INVALID, "q_offsets[0] is 1");
    REFUSE_SPEC((s.documents = 3, s.q_offsets = falling, s.k_offsets = falling), BURST_INVALID, "q_offsets[2] is 4");
    REFUSE_SPEC((s.documents = 2, s.q_offsets = good, s.k_offsets = brief), BURST_INVALID,
                "k_offsets ends at 9: the documents must sum up to 10");
}

static void test_mask_slices(void **state) {
    (void)state;
    burst_mask *mask = NULL;
    const burst_slice good = {0, 10, 0, 10, 0, 0, 0};
    EXPECT(burst_mask_create_slices(10, 10, NULL, 1, &mask), BURST_INVALID, "slices is NULL, but count is 1");
    EXPECT(burst_mask_create_slices(10, 10, &good, 1, NULL), BURST_INVALID, "mask is NULL");
    EXPECT(burst_mask_create_slices(-1, 10, &good, 1, &mask), BURST_INVALID, "q_tokens is -1");
    EXPECT(burst_mask_create_slices(9, 10, &good, 1, &mask), BURST_INVALID, "slice 0 has queries 0 to 10");
    EXPECT(burst_mask_create_slices(10, 9, &good, 1, &mask), BURST_INVALID, "slice 0 has keys 0 to 10");
    burst_slice bad = good;
    bad.q_begin = -1;
    EXPECT(burst_mask_create_slices(10, 10, &bad, 1, &mask), BURST_INVALID, "slice 0 has queries -1 to 10");
    bad = good;
    bad.k_begin = 5, bad.k_end = 4;
    EXPECT(burst_mask_create_slices(10, 10, &bad, 1, &mask), BURST_INVALID, "slice 0 has keys 5 to 4");
    bad = good;
    bad.diag = INT64_MAX;
    EXPECT(burst_mask_create_slices(10, 10, &bad, 1, &mask), BURST_INVALID, "slice 0 has diag");
    const burst_slice twice[2] = {good, good};
    EXPECT(burst_mask_create_slices(10, 10, twice, 2, &mask), BURST_INVALID, "slices 0 and 1 overlap");
    assert_null(mask);
}

static void test_other_masks(void **state) {
    (void)state;
    burst_mask *mask = NULL;
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    spec.q_tokens = spec.k_tokens = 10;
    const unsigned char bits[4] = {1, 1, 1, 1};
    const int64_t good[2] = {3, 10}, bad[2] = {3, 11}, negative[2] = {3, -1}, offsets[2] = {0, 10};
    EXPECT(burst_mask_create_blocks(&spec, 0, bits, &mask), BURST_INVALID, "block is 0");
    EXPECT(burst_mask_create_blocks(&spec, 5, NULL, &mask), BURST_INVALID, "bitmap is NULL");
    EXPECT(burst_mask_create_shared_question(-1, good, 2, &mask), BURST_INVALID, "question is -1");
    EXPECT(burst_mask_create_shared_question(1, NULL, 2, &mask), BURST_INVALID, "answers is NULL");
    EXPECT(burst_mask_create_shared_question(1, negative, 2, &mask), BURST_INVALID, "an answer is -1");
    EXPECT(burst_mask_create_lengths(&spec, 0, good, good, &mask), BURST_INVALID, "batch is 0");
    EXPECT(burst_mask_create_lengths(&spec, 2, NULL, good, &mask), BURST_INVALID, "q_lengths is NULL");
    EXPECT(burst_mask_create_lengths(&spec, 2, good, NULL, &mask), BURST_INVALID, "k_lengths is NULL");
    EXPECT(burst_mask_create_lengths(&spec, 2, bad, good, &mask), BURST_INVALID, "q_lengths[1] is 11");
    EXPECT(burst_mask_create_lengths(&spec, 2, good, negative, &mask), BURST_INVALID, "k_lengths[1] is -1");
    spec.documents = 1, spec.q_offsets = spec.k_offsets = offsets;
    EXPECT(burst_mask_create_lengths(&spec, 2, good, good, &mask), BURST_INVALID, "documents cannot be combined");
    spec = (burst_mask_spec)BURST_MASK_SPEC_INIT;
    spec.q_tokens = spec.k_tokens = BIG;
    EXPECT(burst_mask_create_blocks(&spec, 1, bits, &mask), BURST_INVALID, "overflows");
    assert_null(mask);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* Buffers of small_problem (batch 2, heads 4 on 2, tokens 6 x 5, dim 8), outputs filled with a pattern. */
enum { Q = 2 * 6 * 4 * 8, K = 2 * 5 * 2 * 8, ROWS = 2 * 4 * 6, STATS = 4 * ROWS };

static struct buffers {
    float q[Q + 1], k[K + 1], v[K + 1], o_in[Q + 1], d_o[Q + 1], sink[5];
    double stats[STATS];
    float lse[ROWS + 1];
    struct outputs {
        float o[Q + 1], d_q[Q + 1], d_k[K + 1], d_v[K + 1], lse[ROWS + 1], d_sink[5];
        double stats[STATS];
    } out;
} data;

static void check_untouched(void) {
    const unsigned char *bytes = (const unsigned char *)&data.out;
    for (size_t i = 0; i < sizeof data.out; i++) assert_int_equal(bytes[i], 0xA5);
}

static burst_plan *make_plan(int sink, unsigned passes) {
    burst_problem problem = small_problem;
    problem.sink = sink;
    burst_options options = BURST_OPTIONS_INIT;
    options.passes = passes;
    burst_plan *plan = NULL;
    assert_int_equal(burst_plan_create(&problem, NULL, &options, &plan), BURST_OK);
    assert_true(burst_plan_stats_bytes(plan) <= sizeof data.stats);
    memset(&data, 0, sizeof data);
    memset(&data.out, 0xA5, sizeof data.out);
    return plan;
}

static burst_forward_args forward_args(void) {
    burst_forward_args a = BURST_FORWARD_ARGS_INIT;
    a.q.data = data.q, a.k.data = data.k, a.v.data = data.v;
    a.o.data = data.out.o, a.lse = data.out.lse, a.stats = data.out.stats;
    return a;
}

static burst_backward_args backward_args(void) {
    burst_backward_args a = BURST_BACKWARD_ARGS_INIT;
    a.q.data = data.q, a.k.data = data.k, a.v.data = data.v, a.o.data = data.o_in, a.d_o.data = data.d_o;
    a.lse = data.lse;
    a.d_q.data = data.out.d_q, a.d_k.data = data.out.d_k, a.d_v.data = data.out.d_v;
    return a;
}

static void *shifted(void *pointer, int bytes) { return (void *)((uintptr_t)pointer + (uintptr_t)bytes); }

#define REFUSE_FORWARD(change, expected, part)                                                                         \
    do {                                                                                                               \
        burst_forward_args a = forward_args();                                                                         \
        change;                                                                                                        \
        EXPECT(burst_forward(plan, &a), expected, part);                                                               \
        check_untouched();                                                                                             \
    } while (0)

#define REFUSE_BACKWARD(change, expected, part)                                                                        \
    do {                                                                                                               \
        burst_backward_args a = backward_args();                                                                       \
        change;                                                                                                        \
        EXPECT(burst_backward(plan, &a), expected, part);                                                              \
        check_untouched();                                                                                             \
    } while (0)

static void test_forward(void **state) {
    (void)state;
    burst_plan *plan = make_plan(0, 0);
    EXPECT(burst_forward(NULL, NULL), BURST_INVALID, "plan is NULL");
    EXPECT(burst_forward(plan, NULL), BURST_INVALID, "args is NULL");
    REFUSE_FORWARD(a.struct_size = 0, BURST_INVALID, "struct_size of burst_forward_args is 0");
    REFUSE_FORWARD(a.struct_size += 64, BURST_UNSUPPORTED, "larger than this library knows");
    REFUSE_FORWARD(a.q.data = NULL, BURST_INVALID, "q is NULL");
    REFUSE_FORWARD(a.k.data = NULL, BURST_INVALID, "k is NULL");
    REFUSE_FORWARD(a.v.data = NULL, BURST_INVALID, "v is NULL");
    REFUSE_FORWARD(a.o.data = NULL, BURST_INVALID, "o is NULL");
    REFUSE_FORWARD(a.q.data = shifted(data.q, 1), BURST_INVALID, "q is misaligned");
    REFUSE_FORWARD(a.o.data = shifted(data.out.o, 2), BURST_INVALID, "o is misaligned");
    REFUSE_FORWARD(a.lse = shifted(data.out.lse, 1), BURST_INVALID, "lse is misaligned");
    REFUSE_FORWARD(a.stats = shifted(data.out.stats, 4), BURST_INVALID, "stats is misaligned");
    REFUSE_FORWARD(a.sink = data.sink, BURST_INVALID, "the problem has no sink");
    REFUSE_FORWARD(a.q.head_stride = -8, BURST_INVALID, "q has strides 0, 0, -8");
    REFUSE_FORWARD(a.o.batch_stride = -1, BURST_INVALID, "o has strides -1, 0, 0");
    REFUSE_FORWARD(a.k.token_stride = INT64_MAX, BURST_INVALID, "strides of k reach further");
    REFUSE_FORWARD(a.k.token_stride = INT64_MAX / 16, BURST_INVALID, "strides of k reach further");
    REFUSE_FORWARD((a.v.token_stride = INT64_MAX / 32, a.v.batch_stride = INT64_MAX / 8), BURST_INVALID,
                   "strides of v reach further");
    burst_plan_free(plan);
    plan = make_plan(1, BURST_PASS_BACKWARD);
    REFUSE_FORWARD(a.sink = data.sink, BURST_INVALID, "made for backward only");
    burst_plan_free(plan);
    plan = make_plan(1, BURST_PASS_FORWARD);
    REFUSE_FORWARD((void)0, BURST_INVALID, "sink is NULL, but the problem has a sink");
    REFUSE_FORWARD(a.sink = shifted(data.sink, 2), BURST_INVALID, "sink is misaligned");
    burst_plan_free(plan);
}

static void test_backward(void **state) {
    (void)state;
    burst_plan *plan = make_plan(0, 0);
    EXPECT(burst_backward(NULL, NULL), BURST_INVALID, "plan is NULL");
    EXPECT(burst_backward(plan, NULL), BURST_INVALID, "args is NULL");
    REFUSE_BACKWARD(a.struct_size = 0, BURST_INVALID, "struct_size of burst_backward_args is 0");
    REFUSE_BACKWARD(a.struct_size += 64, BURST_UNSUPPORTED, "larger than this library knows");
    REFUSE_BACKWARD(a.accumulate = 2, BURST_INVALID, "accumulate is 2");
    REFUSE_BACKWARD(a.lse = NULL, BURST_INVALID, "lse and stats are both NULL");
    REFUSE_BACKWARD(a.q.data = NULL, BURST_INVALID, "q is NULL");
    REFUSE_BACKWARD(a.o.data = NULL, BURST_INVALID, "o is NULL");
    REFUSE_BACKWARD(a.d_o.data = NULL, BURST_INVALID, "d_o is NULL");
    REFUSE_BACKWARD(a.d_o.data = shifted(data.d_o, 3), BURST_INVALID, "d_o is misaligned");
    REFUSE_BACKWARD(a.d_v.data = shifted(data.out.d_v, 1), BURST_INVALID, "d_v is misaligned");
    REFUSE_BACKWARD(a.stats = shifted(data.stats, 4), BURST_INVALID, "stats is misaligned");
    REFUSE_BACKWARD(a.lse = shifted(data.lse, 2), BURST_INVALID, "lse is misaligned");
    REFUSE_BACKWARD(a.d_sink = data.out.d_sink, BURST_INVALID, "d_sink is given, but the problem has no sink");
    REFUSE_BACKWARD(a.sink = data.sink, BURST_INVALID, "sink is given, but the problem has no sink");
    REFUSE_BACKWARD(a.d_k.token_stride = -1, BURST_INVALID, "d_k has strides 0, -1, 0");
    burst_plan_free(plan);
    plan = make_plan(1, BURST_PASS_FORWARD);
    REFUSE_BACKWARD(a.sink = data.sink, BURST_INVALID, "made for forward only");
    burst_plan_free(plan);
    plan = make_plan(1, BURST_PASS_BACKWARD);
    REFUSE_BACKWARD((void)0, BURST_INVALID, "sink is NULL, but the problem has a sink");
    burst_plan_free(plan);
}

static void test_overlapping_outputs(void **state) {
    (void)state;
    burst_plan *plan = make_plan(1, 0);
    REFUSE_FORWARD((a.sink = data.sink, a.q.data = data.out.o), BURST_INVALID, "o shares elements with q");
    REFUSE_FORWARD((a.sink = data.sink, a.k.data = data.out.o + 1), BURST_INVALID, "o shares elements with k");
    REFUSE_FORWARD((a.sink = data.sink, a.lse = data.out.o + Q - 1), BURST_INVALID, "o shares elements with lse");
    REFUSE_FORWARD((a.sink = data.sink, a.stats = data.out.lse), BURST_INVALID, "lse shares elements with stats");
    REFUSE_FORWARD(a.sink = data.out.lse + 2, BURST_INVALID, "lse shares elements with sink");
    REFUSE_FORWARD((a.sink = data.sink, a.o.batch_stride = 1, a.o.token_stride = 32, a.o.head_stride = 8),
                   BURST_INVALID, "o overlaps itself");
    REFUSE_FORWARD((a.sink = data.sink, a.o.token_stride = 32, a.o.head_stride = 8), BURST_INVALID,
                   "o overlaps itself");
    REFUSE_BACKWARD((a.sink = data.sink, a.d_q.data = data.out.d_k), BURST_INVALID, "d_q shares elements with d_k");
    REFUSE_BACKWARD((a.sink = data.sink, a.d_o.data = data.out.d_q), BURST_INVALID, "d_q shares elements with d_o");
    REFUSE_BACKWARD((a.sink = data.sink, a.lse = data.out.d_v), BURST_INVALID, "d_v shares elements with lse");
    REFUSE_BACKWARD((a.sink = data.sink, a.d_sink = data.sink), BURST_INVALID, "d_sink shares elements with sink");
    REFUSE_BACKWARD((a.sink = data.sink, a.d_v.token_stride = 8, a.d_v.head_stride = 8, a.d_v.batch_stride = 80),
                    BURST_INVALID, "d_v overlaps itself");
    burst_plan_free(plan);
}

/* What looks like overlap but shares no element is fine: views of one packed buffer, inputs on each other. */
static void test_interleaved_views(void **state) {
    (void)state;
    static float packed[2 * 6 * 8 * 8];
    burst_problem problem = small_problem;
    problem.k_tokens = 6;
    burst_plan *plan = NULL;
    assert_int_equal(burst_plan_create(&problem, NULL, NULL, &plan), BURST_OK);
    memset(&data, 0, sizeof data);
    burst_forward_args f = BURST_FORWARD_ARGS_INIT;
    f.q = (burst_input){packed, 6 * 64, 64, 8};
    f.k = (burst_input){packed + 32, 6 * 64, 64, 8};
    f.v = (burst_input){packed + 48, 6 * 64, 64, 8};
    f.o.data = data.o_in, f.lse = data.lse;
    assert_int_equal(burst_forward(plan, &f), BURST_OK);
    f.v = f.k; /* inputs may be the same */
    assert_int_equal(burst_forward(plan, &f), BURST_OK);
    f.k = (burst_input){packed, 0, 0, 8}; /* one key token for all */
    assert_int_equal(burst_forward(plan, &f), BURST_OK);
    f.v = (burst_input){packed + 40, 6 * 64, 64, 8}; /* k heads 0 and 1 are at 0 and 8: o beside them */
    f.k = (burst_input){packed + 32, 6 * 64, 64, 8};
    f.q = f.k;
    f.q.head_stride = 0;
    f.o = (burst_output){packed, 6 * 64, 64, 8};
    assert_int_equal(burst_forward(plan, &f), BURST_OK);
    burst_backward_args b = BURST_BACKWARD_ARGS_INIT;
    b.q.data = b.k.data = b.v.data = b.o.data = b.d_o.data = data.o_in;
    b.lse = data.lse;
    b.d_q = (burst_output){packed, 6 * 64, 64, 8};
    b.d_k = (burst_output){packed + 32, 6 * 64, 64, 8};
    b.d_v = (burst_output){packed + 48, 6 * 64, 64, 8};
    assert_int_equal(burst_backward(plan, &b), BURST_OK);
    b.d_v.data = packed + 47;
    EXPECT(burst_backward(plan, &b), BURST_INVALID, "d_k shares elements with d_v");
    burst_plan_free(plan);
}

/* Without tokens there are no elements: NULL is fine, on either side. */
static void test_null_without_elements(void **state) {
    (void)state;
    burst_problem problem = small_problem;
    burst_plan *plan = NULL;
    problem.k_tokens = 0;
    assert_int_equal(burst_plan_create(&problem, NULL, NULL, &plan), BURST_OK);
    memset(&data, 0, sizeof data);
    burst_forward_args f = BURST_FORWARD_ARGS_INIT;
    f.q.data = data.q, f.o.data = data.out.o;
    assert_int_equal(burst_forward(plan, &f), BURST_OK);
    burst_plan_free(plan);
    problem.k_tokens = 5, problem.q_tokens = 0;
    assert_int_equal(burst_plan_create(&problem, NULL, NULL, &plan), BURST_OK);
    f = (burst_forward_args)BURST_FORWARD_ARGS_INIT;
    f.k.data = data.k, f.v.data = data.v;
    assert_int_equal(burst_forward(plan, &f), BURST_OK);
    burst_backward_args b = BURST_BACKWARD_ARGS_INIT;
    memset(&data.out, 0xA5, sizeof data.out);
    b.k.data = data.k, b.v.data = data.v, b.d_k.data = data.out.d_k, b.d_v.data = data.out.d_v;
    assert_int_equal(burst_backward(plan, &b), BURST_OK);
    for (int i = 0; i < K; i++) assert_true(data.out.d_k[i] == 0 && data.out.d_v[i] == 0);
    burst_plan_free(plan);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_problem_sizes),
        cmocka_unit_test(test_problem_scores),
        cmocka_unit_test(test_problem_mask),
        cmocka_unit_test(test_options),
        cmocka_unit_test(test_transport),
        cmocka_unit_test(test_mask_spec),
        cmocka_unit_test(test_mask_slices),
        cmocka_unit_test(test_other_masks),
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_overlapping_outputs),
        cmocka_unit_test(test_interleaved_views),
        cmocka_unit_test(test_null_without_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
