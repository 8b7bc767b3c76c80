/* partition.c - knows which tokens a rank owns, and which rectangles of pairs two ranks' tokens make.
 * One idea: a share is one or two arithmetic progressions (spans), the same kind on both sides; so a slice that meets a
 * span of queries and a span of keys is again a slice, in local coordinates, and all that is known of slices holds.
 * Everything is computed when asked for: nothing is stored per rank. */
#include "plan.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* b > 0; C's own division cuts towards zero */
static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

static int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

/* ---- shares ------------------------------------------------------------------------------------------------------ */

static void add_span(plan_share *share, burst_span span) {
    burst_span *last = share->count ? &share->spans[share->count - 1] : NULL;
    if (span.count <= 0) return;
    share->tokens += span.count;
    if (last && last->stride == 1 && span.stride == 1 && last->begin + last->count == span.begin)
        last->count += span.count;
    else
        share->spans[share->count++] = span;
}

/* The n-th of `pieces` pieces of the sequence. */
static burst_span piece(int64_t tokens, int64_t n, int64_t pieces) {
    const int64_t begin = tokens * n / pieces; /* 2^40 tokens, 2^21 pieces: no overflow */
    return (burst_span){begin, tokens * (n + 1) / pieces - begin, 1};
}

plan_share partition_share(burst_partition kind, int64_t tokens, int ranks, int rank) {
    plan_share share = {.count = 0};
    if (kind == BURST_PARTITION_ZIGZAG) {
        add_span(&share, piece(tokens, rank, 2 * (int64_t)ranks));
        add_span(&share, piece(tokens, 2 * (int64_t)ranks - 1 - rank, 2 * (int64_t)ranks));
    } else if (kind == BURST_PARTITION_STRIPED) {
        add_span(&share, (burst_span){rank, ceil_div(tokens - rank, ranks), ranks});
    } else {
        add_span(&share, piece(tokens, rank, ranks));
    }
    return share;
}

/* ---- rectangles -------------------------------------------------------------------------------------------------- */

/* Indices first .. *last-1 of the span that lie in begin .. end-1. */
static int64_t indices(const burst_span *span, int64_t begin, int64_t end, int64_t *last) {
    *last = least(span->count, ceil_div(end - span->begin, span->stride));
    return most(0, ceil_div(begin - span->begin, span->stride));
}

/* The part of a slice in two spans of equal stride, whose first tokens have the local numbers i0 and j0; as a rectangle
 * and as a trimmed slice in the spans' indices. false: no pair. */
static bool cut(const burst_slice *slice, const burst_span *q, int64_t i0, const burst_span *k, int64_t j0,
                lao_rect *rect, burst_slice *local) {
    const int64_t s = q->stride, shift = k->begin - q->begin;
    *local = (burst_slice){.lo = ceil_div(slice->lo - shift, s), .hi = floor_div(slice->hi - shift, s)};
    local->q_begin = indices(q, slice->q_begin, slice->q_end, &local->q_end);
    local->k_begin = indices(k, slice->k_begin, slice->k_end, &local->k_end);
    if (local->q_begin >= local->q_end || local->k_begin >= local->k_end || !slice_trim(local)) return false;
    *rect = (lao_rect){
        .i0 = i0 + local->q_begin,
        .ni = local->q_end - local->q_begin,
        .q0 = q->begin + s * local->q_begin,
        .sq = s,
        .j0 = j0 + local->k_begin,
        .nj = local->k_end - local->k_begin,
        .k0 = k->begin + s * local->k_begin,
        .sk = s,
        .lo = slice->lo,
        .hi = slice->hi,
        .diag = slice->diag,
    };
    return true;
}

/* Only local queries first .. last-1. */
static bool clip(lao_rect *rect, burst_slice *local, int64_t first, int64_t last) {
    const int64_t origin = rect->i0 - local->q_begin, k_origin = rect->j0 - local->k_begin;
    const int64_t q = local->q_begin, k = local->k_begin;
    if (first <= rect->i0 && rect->i0 + rect->ni <= last) return true;
    local->q_begin = most(local->q_begin, first - origin);
    local->q_end = least(local->q_end, last - origin);
    if (local->q_begin >= local->q_end || !slice_trim(local)) return false;
    rect->q0 += rect->sq * (local->q_begin - q);
    rect->k0 += rect->sk * (local->k_begin - k);
    rect->i0 = origin + local->q_begin, rect->ni = local->q_end - local->q_begin;
    rect->j0 = k_origin + local->k_begin, rect->nj = local->k_end - local->k_begin;
    return true;
}

int64_t partition_rects(const burst_slice *slices, size_t count, const plan_share *q, const plan_share *k,
                        int64_t first, int64_t last, lao_rect *rects, int64_t *pairs) {
    int64_t found = 0;
    for (size_t n = 0; n < count; n++) {
        int64_t i0 = 0;
        for (int a = 0; a < q->count; i0 += q->spans[a++].count) {
            int64_t j0 = 0;
            for (int b = 0; b < k->count; j0 += k->spans[b++].count) {
                lao_rect rect;
                burst_slice local;
                if (!cut(&slices[n], &q->spans[a], i0, &k->spans[b], j0, &rect, &local)) continue;
                if (!clip(&rect, &local, first, last)) continue;
                if (pairs) (void)slice_count_pairs(&local, pairs); /* the whole mask's were counted: no overflow */
                if (rects) rects[found] = rect;
                found++;
            }
        }
    }
    return found;
}

int64_t partition_pairs(const burst_mask *mask, int64_t batch, const plan_share *q, const plan_share *k, int64_t first,
                        int64_t last) {
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    int64_t pairs = 0;
    for (size_t row = 0; row < rows; row++)
        partition_rects(mask->slices + mask->starts[row], mask->starts[row + 1] - mask->starts[row], q, k, first, last,
                        NULL, &pairs);
    return mask->batch > 0 ? pairs : pairs * batch;
}

/* ---- balance ----------------------------------------------------------------------------------------------------- */

/* Ranks move on together, so a round takes as long as its busiest rank: sum of these, against an even share. With very
 * many ranks and slices, the busiest rank over all rounds instead: ranks are then counted against all keys. */
double partition_balance(const burst_mask *mask, burst_partition kind, int ranks) {
    const double effort_most = 2e7;
    const plan_share all = {.count = 1, .tokens = mask->k_tokens, .spans = {{0, mask->k_tokens, 1}}};
    const size_t rows = mask->batch > 0 ? (size_t)mask->batch : 1;
    const bool rounds = (double)ranks * ranks * (double)mask->starts[rows] <= effort_most;
    double pace = 0, total = 0;
    for (int t = 0; t < (rounds ? ranks : 1); t++) {
        double busiest = 0;
        for (int r = 0; r < ranks; r++) {
            const plan_share q = partition_share(kind, mask->q_tokens, ranks, r);
            const plan_share k = partition_share(kind, mask->k_tokens, ranks, (r + t) % ranks);
            double pairs;
            if (rounds || kind != BURST_PARTITION_STRIPED) {
                pairs = (double)partition_pairs(mask, 1, &q, rounds ? &k : &all, 0, q.tokens);
            } else { /* strides must agree: key share by key share is what was to be avoided; a sample serves */
                pairs = (double)partition_pairs(mask, 1, &q, &k, 0, q.tokens) * ranks;
            }
            busiest = pairs > busiest ? pairs : busiest;
            total += pairs;
        }
        pace += busiest;
    }
    return total > 0 ? pace * ranks / total : 1;
}

burst_partition partition_choose(const burst_mask *mask, int ranks) {
    const double tolerance = 1.01; /* fewer, larger rectangles are worth a percent */
    burst_partition best = BURST_PARTITION_CONTIGUOUS;
    double least_so_far = ranks > 1 ? partition_balance(mask, best, ranks) : 1;
    for (int kind = BURST_PARTITION_ZIGZAG; ranks > 1 && kind <= BURST_PARTITION_STRIPED; kind++) {
        const double balance = partition_balance(mask, (burst_partition)kind, ranks);
        if (balance * tolerance < least_so_far) best = (burst_partition)kind, least_so_far = balance;
    }
    return best;
}
