/* problem.c - knows what a meaningful problem and meaningful options are, and what the defaults stand for.
 * One idea: everything is refused here, with a sentence, before a byte is allocated; on whatever passes, every folder
 * below may rely. Does not look at tensors: see arguments.c. */
#include "api.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

enum { DIM_MAX = 512, THREADS_MAX = 4096 };

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static burst_status check_at_least(const char *name, int64_t size, int64_t least) {
    if (size >= least) return BURST_OK;
    return base_fail(BURST_INVALID, "%s is %" PRId64 ": expected %" PRId64 " or more", name, size, least);
}

static burst_status check_dim(const char *name, int64_t dim) {
    if (dim >= 1 && dim <= DIM_MAX) return BURST_OK;
    return base_fail(dim < 1 ? BURST_INVALID : BURST_UNSUPPORTED, "%s is %" PRId64 ": expected 1 to %d", name, dim,
                     DIM_MAX);
}

static burst_status check_tokens(const char *name, int64_t tokens) {
    if (tokens < 0) return base_fail(BURST_INVALID, "%s is %" PRId64 ": expected 0 or more", name, tokens);
    if (tokens > PLAN_TOKENS_MAX)
        return base_fail(BURST_UNSUPPORTED, "%s is %" PRId64 ": at most %" PRId64 " are supported", name, tokens,
                         PLAN_TOKENS_MAX);
    return BURST_OK;
}

/* A tensor in the default layout must be addressable. */
static burst_status check_product(const char *name, int64_t batch, int64_t tokens, int64_t heads, int64_t dim,
                                  size_t bytes) {
    ptrdiff_t total;
    if (!__builtin_mul_overflow(batch, heads, &total) &&
        !__builtin_mul_overflow(total, tokens > 0 ? tokens : 1, &total) &&
        !__builtin_mul_overflow(total, dim, &total) && !__builtin_mul_overflow(total, (ptrdiff_t)bytes, &total))
        return BURST_OK;
    return base_fail(BURST_INVALID,
                     "the size of %s overflows: batch %" PRId64 " x tokens %" PRId64 " x heads %" PRId64 " x %" PRId64
                     " x %zu bytes",
                     name, batch, tokens, heads, dim, bytes);
}

static burst_status check_products(const lao_shape *s) {
    const size_t bytes = dtype_bytes(s->dtype);
    burst_status status = check_product("q", s->batch, s->q_tokens, s->q_heads, s->head_dim, bytes);
    if (status == BURST_OK) status = check_product("k", s->batch, s->k_tokens, s->kv_heads, s->head_dim, bytes);
    if (status == BURST_OK) status = check_product("v", s->batch, s->k_tokens, s->kv_heads, s->value_dim, bytes);
    if (status == BURST_OK) status = check_product("o", s->batch, s->q_tokens, s->q_heads, s->value_dim, bytes);
    /* two numbers per row and head, f64 at most */
    if (status == BURST_OK) status = check_product("stats", s->batch, s->q_tokens, s->q_heads, 2, sizeof(double));
    return status;
}

static burst_status check_sizes(const lao_shape *s) {
    burst_status status = check_at_least("batch", s->batch, 1);
    if (status == BURST_OK) status = check_at_least("q_heads", s->q_heads, 1);
    if (status == BURST_OK) status = check_at_least("kv_heads", s->kv_heads, 1);
    if (status == BURST_OK && s->q_heads % s->kv_heads != 0)
        status = base_fail(BURST_INVALID, "kv_heads %" PRId64 " must divide q_heads %" PRId64, s->kv_heads, s->q_heads);
    if (status == BURST_OK) status = check_tokens("q_tokens", s->q_tokens);
    if (status == BURST_OK) status = check_tokens("k_tokens", s->k_tokens);
    if (status == BURST_OK) status = check_dim("head_dim", s->head_dim);
    if (status == BURST_OK) status = check_dim("value_dim", s->value_dim);
    return status == BURST_OK ? check_products(s) : status;
}

/* ---- scores and mask --------------------------------------------------------------------------------------------- */

static burst_status check_scores(const lao_shape *s, const burst_problem *problem) {
    /* Scores are computed in f32 (f64 for f64): what is no number there cannot be meant. */
    const double largest = s->dtype == BURST_F64 ? DBL_MAX : (double)FLT_MAX;
    const double least = s->dtype == BURST_F64 ? DBL_MIN : (double)FLT_MIN;
    /* exponents are multiples of it, and -127 over it is their least: both must be numbers */
    const double scale_most = s->dtype == BURST_F64 ? 1e300 : 1e38,
                 scale_least = s->dtype == BURST_F64 ? 1e-298 : 1e-36;
    if (!isfinite(s->scale) || fabs(s->scale) > scale_most || fabs(s->scale) < scale_least)
        return base_fail(BURST_INVALID, "scale is %g: expected %g to %g in size (0: 1 / sqrt(head_dim))", s->scale,
                         scale_least, scale_most);
    if (!isfinite(s->softcap) || s->softcap < 0 || s->softcap > largest || (s->softcap > 0 && s->softcap < least))
        return base_fail(BURST_INVALID, "softcap is %g: must be 0 (none) or positive, %g to %g", s->softcap, least,
                         largest);
    if (s->softcap > 0 && fabs(s->scale) / s->softcap > largest)
        return base_fail(BURST_INVALID, "scale %g over softcap %g is no number", s->scale, s->softcap);
    if (problem->sink != 0 && problem->sink != 1)
        return base_fail(BURST_INVALID, "sink is %d: expected 0 or 1", problem->sink);
    if (problem->bias) return base_fail(BURST_UNSUPPORTED, "a dense additive bias is not supported: bias must be NULL");
    if (s->alibi && (uintptr_t)s->alibi % _Alignof(float) != 0)
        return base_fail(BURST_INVALID, "alibi is misaligned: must be a multiple of %zu bytes", _Alignof(float));
    if (s->alibi && (s->q_tokens > INT32_MAX / 4 || s->k_tokens > INT32_MAX / 4))
        return base_fail(BURST_UNSUPPORTED, "ALiBi distances are 32 bit: at most %d tokens a side", INT32_MAX / 4);
    for (int64_t h = 0; s->alibi && h < s->q_heads; h++)
        if (!isfinite(s->alibi[h]))
            return base_fail(BURST_INVALID, "alibi[%" PRId64 "] is %g: must be finite", h, (double)s->alibi[h]);
    return BURST_OK;
}

static burst_status check_mask(const lao_shape *s, const burst_mask *mask) {
    if (!mask) return BURST_OK;
    if (mask->q_tokens != s->q_tokens || mask->k_tokens != s->k_tokens)
        return base_fail(BURST_INVALID,
                         "the mask is for %" PRId64 " x %" PRId64 " tokens, the problem has %" PRId64 " x %" PRId64,
                         mask->q_tokens, mask->k_tokens, s->q_tokens, s->k_tokens);
    if (mask->batch > 0 && mask->batch != s->batch)
        return base_fail(BURST_INVALID,
                         "the mask has lengths for %" PRId64 " batch rows, the problem has batch %" PRId64, mask->batch,
                         s->batch);
    return BURST_OK;
}

burst_status problem_check(const burst_problem *problem, plan_request *request) {
    if (!problem) return base_fail(BURST_INVALID, "problem is NULL");
    burst_status status = base_check_struct("burst_problem", problem->struct_size, sizeof *problem);
    if (status != BURST_OK) return status;
    if (dtype_bytes(problem->dtype) == 0)
        return base_fail(BURST_INVALID, "dtype is %d: expected BURST_F32, BURST_BF16, BURST_F16 or BURST_F64",
                         (int)problem->dtype);
    lao_shape *shape = &request->shape;
    *shape = (lao_shape){
        .dtype = problem->dtype,
        .batch = problem->batch,
        .q_heads = problem->q_heads,
        .kv_heads = problem->kv_heads == 0 ? problem->q_heads : problem->kv_heads,
        .q_tokens = problem->q_tokens,
        .k_tokens = problem->k_tokens,
        .head_dim = problem->head_dim,
        .value_dim = problem->value_dim == 0 ? problem->head_dim : problem->value_dim,
        .scale = problem->scale,
        .softcap = problem->softcap,
        .alibi = problem->alibi,
        .sink = problem->sink != 0,
    };
    request->mask = problem->mask;
    status = check_sizes(shape);
    if (status == BURST_OK && shape->scale == 0) shape->scale = 1.0 / sqrt((double)shape->head_dim);
    if (status == BURST_OK) status = check_scores(shape, problem);
    return status == BURST_OK ? check_mask(shape, problem->mask) : status;
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static burst_status check_side(const char *name, burst_side side) {
    if (side == BURST_SIDE_AUTO || side == BURST_SIDE_Q || side == BURST_SIDE_K) return BURST_OK;
    return base_fail(BURST_INVALID, "%s is %d: expected BURST_SIDE_AUTO, BURST_SIDE_Q or BURST_SIDE_K", name,
                     (int)side);
}

static burst_status check_strategy(const burst_options *o) {
    if ((int)o->strategy < BURST_STRATEGY_AUTO || o->strategy > BURST_STRATEGY_ULYSSES)
        return base_fail(BURST_INVALID, "strategy is %d: expected BURST_STRATEGY_AUTO, _RING, _GATHER or _ULYSSES",
                         (int)o->strategy);
    if (o->send_o != 0 && o->send_o != 1) return base_fail(BURST_INVALID, "send_o is %d: expected 0 or 1", o->send_o);
    if (o->send_o && o->side_backward != BURST_SIDE_Q)
        return base_fail(BURST_INVALID, "send_o is about queries that travel: side_backward must be BURST_SIDE_Q");
    if (o->strategy <= BURST_STRATEGY_RING) return BURST_OK;
    if (o->side_forward != BURST_SIDE_AUTO || o->side_backward != BURST_SIDE_AUTO || o->narrow_gradients)
        return base_fail(BURST_INVALID, "side_forward, side_backward and narrow_gradients are the ring's: the strategy "
                                        "is another");
    return BURST_OK;
}

/* What is said about ranks must make sense with one rank too. */
static burst_status check_ring(const burst_options *o, burst_dtype dtype) {
    if ((int)o->partition < BURST_PARTITION_AUTO || o->partition > BURST_PARTITION_STRIPED)
        return base_fail(BURST_INVALID,
                         "partition is %d: expected BURST_PARTITION_AUTO, _CONTIGUOUS, _ZIGZAG or _STRIPED",
                         (int)o->partition);
    burst_status status = check_side("side_forward", o->side_forward);
    if (status == BURST_OK) status = check_side("side_backward", o->side_backward);
    if (status != BURST_OK) return status;
    if (o->no_overlap != 0 && o->no_overlap != 1)
        return base_fail(BURST_INVALID, "no_overlap is %d: expected 0 or 1", o->no_overlap);
    if (o->narrow_gradients != 0 && o->narrow_gradients != 1)
        return base_fail(BURST_INVALID, "narrow_gradients is %d: expected 0 or 1", o->narrow_gradients);
    if (o->narrow_gradients && dtype_bytes(dtype) != 2)
        return base_fail(BURST_UNSUPPORTED, "narrow_gradients is for bf16 and f16 problems only");
    status = check_strategy(o);
    if (status != BURST_OK) return status;
    if (!(o->timeout >= 0 && o->timeout <= 1e9))
        return base_fail(BURST_INVALID, "timeout is %g s: expected 0 (for ever) to 1e9", o->timeout);
    return BURST_OK;
}

static int share_of_cores(const burst_transport *transport) {
    const int cores = base_cores(), here = transport ? transport->here : 1;
    return cores > here ? cores / here : 1;
}

burst_status options_check(const burst_options *options, plan_request *request) {
    const burst_options chosen = BURST_OPTIONS_INIT;
    const burst_options *o = options ? options : &chosen;
    const unsigned both = BURST_PASS_FORWARD | BURST_PASS_BACKWARD;
    burst_status status = base_check_struct("burst_options", o->struct_size, sizeof *o);
    if (status != BURST_OK) return status;
    if (o->threads < 0 || o->threads > THREADS_MAX)
        return base_fail(BURST_INVALID, "threads is %d: expected 0 (choose) to %d", o->threads, THREADS_MAX);
    if ((o->passes & ~both) != 0)
        return base_fail(BURST_INVALID, "passes is %#x: expected BURST_PASS_FORWARD, BURST_PASS_BACKWARD or both",
                         o->passes);
    if (o->q_tile < 0 || o->k_tile < 0)
        return base_fail(BURST_INVALID, "tiles are %" PRId64 " x %" PRId64 ": expected 0 (choose) or more", o->q_tile,
                         o->k_tile);
    status = check_ring(o, request->shape.dtype);
    if (status != BURST_OK) return status;
    request->passes = o->passes == 0 ? both : o->passes;
    request->partition = o->partition;
    request->sides[0] = o->side_forward, request->sides[1] = o->side_backward;
    request->no_overlap = o->no_overlap != 0;
    request->narrow = o->narrow_gradients != 0;
    request->strategy = o->strategy == BURST_STRATEGY_AUTO ? BURST_STRATEGY_RING : o->strategy;
    request->send_o = o->send_o != 0;
    request->timeout = o->timeout;
    request->local = (lao_options){
        .threads = o->threads == 0 ? share_of_cores(request->transport) : o->threads,
        .q_tile = o->q_tile < PLAN_TOKENS_MAX ? o->q_tile : PLAN_TOKENS_MAX, /* more than all is all */
        .k_tile = o->k_tile < PLAN_TOKENS_MAX ? o->k_tile : PLAN_TOKENS_MAX,
        .memory_limit = o->memory_limit == 0 ? SIZE_MAX : o->memory_limit,
    };
    request->progress = o->progress;
    request->progress_user = o->progress_user;
    request->cancel = o->cancel;
    request->isa_forced = lao_isa_forced(o->isa);
    return lao_choose_isa(o->isa, request->shape.dtype, &request->local.isa);
}
