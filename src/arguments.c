/* arguments.c - knows what the buffers of a call must be: there, aligned, addressable, and outputs apart from all else.
 * One idea: every buffer becomes one region in a table under the name that the caller knows; then one loop asks of each
 * output whether it shares an element with itself or with any other region.
 * Does not look at what is in the buffers. */
#include "api.h"

#include <inttypes.h>

enum { REGIONS_MAX = 12 };

typedef enum role { INPUT, OUTPUT, OPTIONAL_OUTPUT } role;

typedef struct named_region {
    const char *name;
    bool output;
    overlap_region region;
} named_region;

typedef struct table {
    const lao_shape *shape;
    burst_status status; /* of the first refusal: what comes after it is skipped */
    int count;
    named_region entries[REGIONS_MAX];
} table;

static void refuse_null(table *t, const char *name) { t->status = base_fail(BURST_INVALID, "%s is NULL", name); }

static bool is_aligned(table *t, const char *name, const void *data, size_t alignment) {
    if ((uintptr_t)data % alignment == 0) return true;
    t->status =
        base_fail(BURST_INVALID, "%s is misaligned: its address %p must be a multiple of %zu", name, data, alignment);
    return false;
}

/* Bytes from the first to one past the last must be addressable. */
static bool is_addressable(table *t, const char *name, const overlap_region *r) {
    int64_t bytes = r->run;
    bool fits = true;
    for (int i = 0; i < 3 && fits; i++) {
        int64_t reach;
        fits = !__builtin_mul_overflow(r->stride[i], r->count[i] - 1, &reach) &&
               !__builtin_add_overflow(bytes, reach, &bytes);
    }
    fits = fits && bytes <= PTRDIFF_MAX && (uintptr_t)bytes <= UINTPTR_MAX - r->address;
    if (!fits) t->status = base_fail(BURST_INVALID, "the strides of %s reach further than can be addressed", name);
    return fits;
}

static void add_region(table *t, const char *name, role kind, const overlap_region *region) {
    if (!is_addressable(t, name, region)) return;
    t->entries[t->count++] = (named_region){name, kind != INPUT, *region};
}

typedef struct tensor_sizes {
    int64_t tokens, heads, dim;
} tensor_sizes;

/* The default layout, if nothing else was said. */
static lao_tensor resolve_strides(const burst_output *given, tensor_sizes size) {
    if (given->batch_stride == 0 && given->token_stride == 0 && given->head_stride == 0)
        return (lao_tensor){given->data, size.tokens * size.heads * size.dim, size.heads * size.dim, size.dim};
    return (lao_tensor){given->data, given->batch_stride, given->token_stride, given->head_stride};
}

static void add_tensor(table *t, const char *name, role kind, const burst_output *given, tensor_sizes size,
                       lao_tensor *result) {
    if (t->status != BURST_OK) return;
    const size_t element = dtype_bytes(t->shape->dtype);
    if (given->batch_stride < 0 || given->token_stride < 0 || given->head_stride < 0) {
        t->status = base_fail(BURST_INVALID,
                              "%s has strides %" PRId64 ", %" PRId64 ", %" PRId64 ": negative ones are not allowed",
                              name, given->batch_stride, given->token_stride, given->head_stride);
        return;
    }
    *result = resolve_strides(given, size);
    if (!given->data && kind == OPTIONAL_OUTPUT) return;
    if (size.tokens == 0) return; /* no elements: any pointer will do */
    if (!given->data) {
        refuse_null(t, name);
        return;
    }
    if (!is_aligned(t, name, given->data, element)) return;
    overlap_region region = {.address = (uintptr_t)given->data,
                             .run = size.dim * (int64_t)element,
                             .count = {t->shape->batch, size.tokens, size.heads}};
    if (__builtin_mul_overflow(result->batch, (int64_t)element, &region.stride[0]) ||
        __builtin_mul_overflow(result->token, (int64_t)element, &region.stride[1]) ||
        __builtin_mul_overflow(result->head, (int64_t)element, &region.stride[2])) {
        t->status = base_fail(BURST_INVALID, "the strides of %s reach further than can be addressed", name);
        return;
    }
    /* The stride of a dimension of size 1 is never used: it may be anything. */
    for (int i = 0; i < 3; i++)
        if (region.count[i] == 1) region.stride[i] = 0;
    add_region(t, name, kind, &region);
}

static void add_input(table *t, const char *name, const burst_input *given, tensor_sizes size, lao_tensor *result) {
    /* One type for both directions further down; inputs are never written. */
    const burst_output same = {(void *)(uintptr_t)given->data, given->batch_stride, given->token_stride,
                               given->head_stride};
    add_tensor(t, name, INPUT, &same, size, result);
}

/* A plain array; NULL is skipped. */
static void add_array(table *t, const char *name, role kind, const void *data, size_t bytes, size_t alignment) {
    if (t->status != BURST_OK || !data || bytes == 0) return;
    if (!is_aligned(t, name, data, alignment)) return;
    const overlap_region region = {.address = (uintptr_t)data, .run = (int64_t)bytes, .count = {1, 1, 1}};
    add_region(t, name, kind, &region);
}

static void add_sink(table *t, const void *sink, const void *d_sink) {
    if (t->status != BURST_OK) return;
    const lao_shape *s = t->shape;
    const size_t sum = dtype_sum_bytes(s->dtype), bytes = (size_t)s->q_heads * sum;
    if (s->sink && !sink)
        t->status = base_fail(BURST_INVALID, "sink is NULL, but the problem has a sink");
    else if (!s->sink && (sink || d_sink))
        t->status = base_fail(BURST_INVALID, "%s is given, but the problem has no sink", sink ? "sink" : "d_sink");
    add_array(t, "sink", INPUT, sink, bytes, sum);
    add_array(t, "d_sink", OPTIONAL_OUTPUT, d_sink, bytes, sum);
}

/* ---- overlap ----------------------------------------------------------------------------------------------------- */

static burst_status judge(overlap_answer answer, const named_region *output, const named_region *other) {
    const bool self = output == other;
    if (answer == OVERLAP_UNKNOWN)
        return base_fail(BURST_UNSUPPORTED,
                         "the strides of %s are too intricate to tell whether it shares elements with %s", output->name,
                         self ? "itself" : other->name);
    if (answer == OVERLAP_SHARED && self)
        return base_fail(BURST_INVALID, "%s overlaps itself: its strides put two elements at one address",
                         output->name);
    if (answer == OVERLAP_SHARED)
        return base_fail(BURST_INVALID, "%s shares elements with %s: an output must stand apart", output->name,
                         other->name);
    return BURST_OK;
}

static burst_status check_overlaps(const table *t) {
    for (int i = 0; i < t->count; i++) {
        const named_region *a = &t->entries[i];
        if (!a->output) continue;
        burst_status status = judge(overlap_itself(&a->region), a, a);
        for (int j = 0; j < t->count && status == BURST_OK; j++) {
            const named_region *b = &t->entries[j];
            if (b->output && j <= i) continue; /* met already */
            status = judge(overlap_between(&a->region, &b->region), a, b);
        }
        if (status != BURST_OK) return status;
    }
    return BURST_OK;
}

static burst_status finish(const table *t) { return t->status == BURST_OK ? check_overlaps(t) : t->status; }

/* ---- calls ------------------------------------------------------------------------------------------------------- */

static burst_status check_pass(const burst_plan *plan, unsigned pass, const void *args) {
    if (!args) return base_fail(BURST_INVALID, "args is NULL");
    if (plan->passes & pass) return BURST_OK;
    return base_fail(BURST_INVALID, "the plan was made for %s only",
                     pass == BURST_PASS_FORWARD ? "backward" : "forward");
}

burst_status forward_check(const burst_plan *plan, const burst_forward_args *args, lao_forward_args *local) {
    burst_status status = check_pass(plan, BURST_PASS_FORWARD, args);
    if (status == BURST_OK) status = base_check_struct("burst_forward_args", args->struct_size, sizeof *args);
    if (status != BURST_OK) return status;
    const lao_shape *s = &plan->shape;
    const size_t sum = dtype_sum_bytes(s->dtype), rows = (size_t)(s->batch * s->q_heads * s->q_tokens);
    table t = {.shape = s, .status = BURST_OK};
    *local = (lao_forward_args){.sink = args->sink, .lse = args->lse, .stats = args->stats};
    add_input(&t, "q", &args->q, (tensor_sizes){s->q_tokens, s->q_heads, s->head_dim}, &local->q);
    add_input(&t, "k", &args->k, (tensor_sizes){s->k_tokens, s->kv_heads, s->head_dim}, &local->k);
    add_input(&t, "v", &args->v, (tensor_sizes){s->k_tokens, s->kv_heads, s->value_dim}, &local->v);
    add_sink(&t, args->sink, NULL);
    add_tensor(&t, "o", OUTPUT, &args->o, (tensor_sizes){s->q_tokens, s->q_heads, s->value_dim}, &local->o);
    add_array(&t, "lse", OPTIONAL_OUTPUT, args->lse, rows * sum, sum);
    add_array(&t, "stats", OPTIONAL_OUTPUT, args->stats, plan_stats_bytes(plan), 8);
    return finish(&t);
}

burst_status backward_check(const burst_plan *plan, const burst_backward_args *args, lao_backward_args *local) {
    burst_status status = check_pass(plan, BURST_PASS_BACKWARD, args);
    if (status == BURST_OK) status = base_check_struct("burst_backward_args", args->struct_size, sizeof *args);
    if (status != BURST_OK) return status;
    if (args->accumulate != 0 && args->accumulate != 1)
        return base_fail(BURST_INVALID, "accumulate is %d: expected 0 or 1", args->accumulate);
    const lao_shape *s = &plan->shape;
    const size_t sum = dtype_sum_bytes(s->dtype), rows = (size_t)(s->batch * s->q_heads * s->q_tokens);
    if (rows > 0 && !args->lse && !args->stats)
        return base_fail(BURST_INVALID, "lse and stats are both NULL: backward needs one of them");
    const tensor_sizes q = {s->q_tokens, s->q_heads, s->head_dim}, o = {s->q_tokens, s->q_heads, s->value_dim};
    const tensor_sizes k = {s->k_tokens, s->kv_heads, s->head_dim}, v = {s->k_tokens, s->kv_heads, s->value_dim};
    table t = {.shape = s, .status = BURST_OK};
    *local = (lao_backward_args){.sink = args->sink,
                                 .lse = args->lse,
                                 .stats = args->stats,
                                 .d_sink = args->d_sink,
                                 .accumulate_q = args->accumulate != 0,
                                 .accumulate_kv = args->accumulate != 0};
    add_input(&t, "q", &args->q, q, &local->q);
    add_input(&t, "k", &args->k, k, &local->k);
    add_input(&t, "v", &args->v, v, &local->v);
    add_input(&t, "o", &args->o, o, &local->o);
    add_input(&t, "d_o", &args->d_o, o, &local->d_o);
    add_array(&t, "lse", INPUT, args->lse, rows * sum, sum);
    add_array(&t, "stats", INPUT, args->stats, plan_stats_bytes(plan), 8);
    add_sink(&t, args->sink, args->d_sink);
    add_tensor(&t, "d_q", OPTIONAL_OUTPUT, &args->d_q, q, &local->d_q);
    add_tensor(&t, "d_k", OPTIONAL_OUTPUT, &args->d_k, k, &local->d_k);
    add_tensor(&t, "d_v", OPTIONAL_OUTPUT, &args->d_v, v, &local->d_v);
    return finish(&t);
}
