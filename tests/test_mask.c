/* test_mask.c - every mask builder against the predicate of burst.h, written out by brute force over small sizes: the
 * slices allow exactly the pairs that the predicate allows, each in one slice only, and the count of pairs is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "plan.h"

enum { SIDE = 40 };

static uint64_t random_state = 88172645463325252u;

static int64_t draw(int64_t low, int64_t high) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return low + (int64_t)(random_state % (uint64_t)(high - low + 1));
}

/* How often each pair is in a slice, and where distance 0 lies there. */
typedef struct picture {
    int times[SIDE][SIDE];
    int64_t diag[SIDE][SIDE];
} picture;

static void paint(const burst_slice *slices, size_t count, picture *p) {
    memset(p, 0, sizeof *p);
    for (size_t i = 0; i < count; i++) {
        const burst_slice *s = &slices[i];
        for (int64_t q = s->q_begin; q < s->q_end; q++)
            for (int64_t k = s->k_begin; k < s->k_end; k++)
                if (s->lo <= k - q && k - q <= s->hi) {
                    p->times[q][k]++;
                    p->diag[q][k] = s->diag;
                }
    }
}

/* Every row of a trimmed slice sees a key, and the bounds are finite. */
static void check_trimmed(const burst_slice *slices, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const burst_slice *s = &slices[i];
        assert_true(s->q_begin < s->q_end && s->k_begin < s->k_end && s->lo <= s->hi);
        assert_true(s->lo > -2 * SIDE && s->hi < 2 * SIDE);
        for (int64_t q = s->q_begin; q < s->q_end; q++)
            assert_true(q + s->hi >= s->k_begin && q + s->lo <= s->k_end - 1);
    }
}

static void check_row(const burst_mask *mask, int64_t row, int64_t nq, int64_t nk, bool (*allows)(int64_t q, int64_t k),
                      int64_t (*diag)(int64_t q)) {
    static picture p;
    size_t count = 99;
    const burst_slice *slices = burst_mask_slices(mask, row, &count);
    paint(slices, count, &p);
    check_trimmed(slices, count);
    int64_t expected = 0, pairs = 0;
    for (int64_t q = 0; q < nq; q++)
        for (int64_t k = 0; k < nk; k++) {
            const bool allowed = allows(q, k);
            expected += allowed;
            assert_int_equal(p.times[q][k], allowed ? 1 : 0);
            if (allowed && diag) assert_int_equal(p.diag[q][k], diag(q));
        }
    for (size_t i = 0; i < count; i++) assert_true(slice_count_pairs(&slices[i], &pairs));
    assert_int_equal(pairs, expected);
}

/* ---- the predicate ----------------------------------------------------------------------------------------------- */

static burst_mask_spec spec;
static int64_t q_offsets[8], k_offsets[8];
static int64_t q_length, k_length; /* of a padded row; else the whole */
static const unsigned char *bitmap;
static int64_t block;

static int64_t document_of(const int64_t *offsets, int64_t token) {
    for (int64_t d = 0;; d++)
        if (offsets[d] <= token && token < offsets[d + 1]) return d;
}

static int64_t off_of(int64_t q) {
    if (spec.documents == 0) return spec.align == BURST_ALIGN_END ? k_length - q_length : 0;
    const int64_t d = document_of(q_offsets, q);
    return spec.align == BURST_ALIGN_END ? k_offsets[d + 1] - q_offsets[d + 1] : k_offsets[d] - q_offsets[d];
}

static bool spec_allows(int64_t q, int64_t k) {
    int64_t first = 0;
    if (q >= q_length || k >= k_length) return false;
    if (spec.documents > 0) {
        if (document_of(q_offsets, q) != document_of(k_offsets, k)) return false;
        first = k_offsets[document_of(k_offsets, k)];
    }
    const int64_t t = k - q - off_of(q);
    if (spec.causal && t > 0) return false;
    if (spec.window_left >= 0 && t < -spec.window_left && k - first >= spec.sink_tokens) return false;
    if (spec.window_right >= 0 && t > spec.window_right) return false;
    if (spec.prefix >= 0 && k - first >= spec.prefix && t > 0) return false;
    if (bitmap && !bitmap[q / block * ((spec.k_tokens + block - 1) / block) + k / block]) return false;
    return true;
}

static void random_offsets(int64_t *offsets, int64_t documents, int64_t tokens) {
    offsets[0] = 0;
    offsets[documents] = tokens;
    for (int64_t i = 1; i < documents; i++) offsets[i] = draw(0, tokens);
    for (int64_t i = 1; i < documents; i++)
        for (int64_t j = i; j > 1 && offsets[j] < offsets[j - 1]; j--) {
            const int64_t other = offsets[j];
            offsets[j] = offsets[j - 1];
            offsets[j - 1] = other;
        }
}

static void random_spec(bool documents) {
    spec = (burst_mask_spec)BURST_MASK_SPEC_INIT;
    spec.q_tokens = draw(0, 12) == 0 ? 0 : draw(1, 24);
    spec.k_tokens = draw(0, 12) == 0 ? 0 : draw(0, 2) == 0 ? spec.q_tokens : draw(1, 24);
    spec.align = draw(0, 1) ? BURST_ALIGN_END : BURST_ALIGN_START;
    spec.causal = (int)draw(0, 1);
    if (draw(0, 1)) spec.window_left = draw(0, 10) == 0 ? INT64_MAX : draw(0, 12);
    if (draw(0, 2) == 0) spec.window_right = draw(0, 10) == 0 ? INT64_MAX : draw(0, 12);
    if (draw(0, 1)) spec.sink_tokens = draw(0, 10) == 0 ? INT64_MAX : draw(0, 6);
    if (draw(0, 2) == 0) spec.prefix = draw(0, 10) == 0 ? INT64_MAX : draw(0, 10);
    if (documents && draw(0, 1)) {
        spec.documents = draw(1, 6);
        random_offsets(q_offsets, spec.documents, spec.q_tokens);
        random_offsets(k_offsets, spec.documents, spec.k_tokens);
        spec.q_offsets = q_offsets;
        spec.k_offsets = k_offsets;
    }
    q_length = spec.q_tokens;
    k_length = spec.k_tokens;
    bitmap = NULL;
}

/* ---- tests ------------------------------------------------------------------------------------------------------- */

static void test_spec(void **state) {
    (void)state;
    for (int round = 0; round < 8000; round++) {
        random_spec(true);
        burst_mask *mask = NULL;
        assert_int_equal(burst_mask_create(&spec, &mask), BURST_OK);
        check_row(mask, 0, spec.q_tokens, spec.k_tokens, spec_allows, off_of);
        burst_mask_free(mask);
    }
}

static void test_blocks(void **state) {
    (void)state;
    unsigned char bits[24 * 24];
    for (int round = 0; round < 6000; round++) {
        random_spec(true);
        if (draw(0, 2) == 0) spec.causal = 0, spec.window_left = spec.window_right = spec.prefix = -1;
        block = draw(0, 20) == 0 ? INT64_MAX : draw(1, 9);
        const int64_t density = draw(0, 10);
        for (size_t i = 0; i < sizeof bits; i++) bits[i] = draw(1, 10) <= density;
        /* some equal rows of blocks, so that runs are merged downwards */
        if (draw(0, 1)) memcpy(bits + 24, bits, 24);
        bitmap = bits;
        burst_mask *mask = NULL;
        assert_int_equal(burst_mask_create_blocks(&spec, block, bits, &mask), BURST_OK);
        if (block == INT64_MAX) block = SIDE;
        check_row(mask, 0, spec.q_tokens, spec.k_tokens, spec_allows, off_of);
        burst_mask_free(mask);
    }
    bitmap = NULL;
}

static void test_blocks_are_merged(void **state) {
    (void)state;
    burst_mask_spec full = BURST_MASK_SPEC_INIT;
    full.q_tokens = full.k_tokens = 64;
    unsigned char bits[64];
    memset(bits, 1, sizeof bits);
    burst_mask *mask = NULL;
    size_t count = 0;
    assert_int_equal(burst_mask_create_blocks(&full, 8, bits, &mask), BURST_OK);
    burst_mask_slices(mask, 0, &count);
    assert_int_equal(count, 1);
    burst_mask_free(mask);
}

/* A row meets the keys of slices that come in any order from the first to the last. */
static void test_slices_go_by_keys(void **state) {
    (void)state;
    const int64_t unbounded = (int64_t)1 << 40;
    burst_slice slices[3];
    for (int i = 0; i < 3; i++)
        slices[i] = (burst_slice){.q_begin = 0, .q_end = 4, .lo = -unbounded, .hi = unbounded, .k_begin = 10 * (2 - i)};
    for (int i = 0; i < 3; i++) slices[i].k_end = slices[i].k_begin + 10;
    burst_mask *mask = NULL;
    size_t count = 0;
    assert_int_equal(burst_mask_create_slices(4, 30, slices, 3, &mask), BURST_OK);
    const burst_slice *kept = burst_mask_slices(mask, 0, &count);
    assert_int_equal(count, 3);
    for (int i = 0; i < 3; i++) assert_int_equal(kept[i].k_begin, 10 * i);
    burst_mask_free(mask);
}

static void test_lengths(void **state) {
    (void)state;
    for (int round = 0; round < 3000; round++) {
        random_spec(false);
        int64_t q_lengths[4], k_lengths[4];
        const int64_t batch = draw(1, 4);
        for (int64_t b = 0; b < batch; b++) {
            q_lengths[b] = draw(0, spec.q_tokens);
            k_lengths[b] = draw(0, spec.k_tokens);
        }
        burst_mask *mask = NULL;
        assert_int_equal(burst_mask_create_lengths(&spec, batch, q_lengths, k_lengths, &mask), BURST_OK);
        int64_t total = 0, pairs = 0;
        for (int64_t b = 0; b < batch; b++) {
            q_length = q_lengths[b];
            k_length = k_lengths[b];
            check_row(mask, b, spec.q_tokens, spec.k_tokens, spec_allows, off_of);
            for (int64_t q = 0; q < spec.q_tokens; q++)
                for (int64_t k = 0; k < spec.k_tokens; k++) total += spec_allows(q, k);
        }
        assert_true(mask_pairs(mask, batch, &pairs));
        assert_int_equal(pairs, total);
        size_t count = 1;
        assert_null(burst_mask_slices(mask, batch, &count));
        assert_int_equal(count, 0);
        burst_mask_free(mask);
    }
}

static int64_t question, answers[5];

static bool shared_question_allows(int64_t q, int64_t k) {
    if (k > q) return false;
    if (k < question) return true;
    int64_t begin = question;
    for (int i = 0; i < 5; begin += answers[i++])
        if (k >= begin && k < begin + answers[i]) return q < begin + answers[i];
    return false;
}

static int64_t no_shift(int64_t q) {
    (void)q;
    return 0;
}

static void test_shared_question(void **state) {
    (void)state;
    for (int round = 0; round < 500; round++) {
        const size_t count = (size_t)draw(0, 5);
        int64_t tokens = question = draw(0, 9);
        memset(answers, 0, sizeof answers);
        for (size_t i = 0; i < count; i++) tokens += answers[i] = draw(0, 6);
        burst_mask *mask = NULL;
        assert_int_equal(burst_mask_create_shared_question(question, answers, count, &mask), BURST_OK);
        assert_int_equal(mask->q_tokens, tokens);
        assert_int_equal(mask->k_tokens, tokens);
        check_row(mask, 0, tokens, tokens, shared_question_allows, no_shift);
        burst_mask_free(mask);
    }
}

static burst_slice random_slice(int64_t nq, int64_t nk) {
    burst_slice s;
    s.q_begin = draw(0, nq);
    s.q_end = draw(s.q_begin, nq);
    s.k_begin = draw(0, nk);
    s.k_end = draw(s.k_begin, nk);
    s.lo = draw(0, 2) == 0 ? INT64_MIN : draw(-nq, nk);
    s.hi = draw(0, 2) == 0 ? INT64_MAX : draw(-nq, nk);
    s.diag = draw(-5, 5);
    return s;
}

static picture raw;

static bool raw_allows(int64_t q, int64_t k) { return raw.times[q][k] > 0; }

/* Slices are drawn until one overlaps those before: accepted up to there, refused with it, both in a random order. */
static void test_slices(void **state) {
    (void)state;
    int accepted = 0, refused = 0;
    for (int round = 0; round < 6000; round++) {
        const int64_t nq = draw(0, SIDE), nk = draw(0, SIDE);
        burst_slice slices[12];
        size_t count = (size_t)draw(0, 12);
        const bool keep_disjoint = draw(0, 1);
        for (size_t i = 0; i < count; i++) slices[i] = random_slice(nq, nk);
        for (size_t n = 0; keep_disjoint && n < count;) { /* leave out those that overlap one before */
            paint(slices, n + 1, &raw);
            bool clash = false;
            for (int q = 0; q < SIDE; q++)
                for (int k = 0; k < SIDE; k++) clash = clash || raw.times[q][k] > 1;
            if (clash)
                slices[n] = slices[--count];
            else
                n++;
        }
        paint(slices, count, &raw);
        bool overlap = false;
        for (int q = 0; q < SIDE; q++)
            for (int k = 0; k < SIDE; k++) overlap = overlap || raw.times[q][k] > 1;
        burst_mask *mask = NULL;
        const burst_status status = burst_mask_create_slices(nq, nk, slices, count, &mask);
        assert_int_equal(status, overlap ? BURST_INVALID : BURST_OK);
        if (overlap) {
            assert_non_null(strstr(burst_last_error(), "overlap"));
            assert_null(mask);
            refused++;
        } else {
            check_row(mask, 0, nq, nk, raw_allows, NULL);
            accepted += count > 3;
        }
        burst_mask_free(mask);
    }
    assert_true(accepted > 500 && refused > 500);
}

static void test_overlap_names_the_slices(void **state) {
    (void)state;
    const burst_slice slices[4] = {{0, 10, 0, 10, 5, 4, 0}, /* empty */
                                   {0, 10, 0, 10, 0, 2, 0},
                                   {0, 10, 0, 10, 3, INT64_MAX, 0},
                                   {9, 10, 9, 10, INT64_MIN, INT64_MAX, 0}};
    burst_mask *mask = NULL;
    assert_int_equal(burst_mask_create_slices(10, 10, slices, 3, &mask), BURST_OK);
    burst_mask_free(mask);
    assert_int_equal(burst_mask_create_slices(10, 10, slices, 4, &mask), BURST_INVALID);
    assert_non_null(strstr(burst_last_error(), "slices 1 and 3 overlap"));
}

/* A quadratic check would take minutes: strips that are all alive at once, and documents. */
static void test_many_slices(void **state) {
    (void)state;
    enum { MANY = 100000 };
    static burst_slice slices[MANY];
    burst_mask *mask = NULL;
    for (int64_t i = 0; i < MANY; i++) slices[i] = (burst_slice){i % 7, 2 * MANY - i % 11, i, i + 1, -MANY, MANY, 0};
    assert_int_equal(burst_mask_create_slices(2 * MANY, 2 * MANY, slices, MANY, &mask), BURST_OK);
    burst_mask_free(mask);
    slices[MANY - 1].k_begin -= 1;
    assert_int_equal(burst_mask_create_slices(2 * MANY, 2 * MANY, slices, MANY, &mask), BURST_INVALID);
    for (int64_t i = 0; i < MANY; i++) slices[i] = (burst_slice){2 * i, 2 * i + 2, 2 * i, 2 * i + 2, INT64_MIN, 0, 0};
    assert_int_equal(burst_mask_create_slices(2 * MANY, 2 * MANY, slices, MANY, &mask), BURST_OK);
    burst_mask_free(mask);
}

/* Sizes far beyond any memory: counts stay exact or are refused, never wrap. */
static void test_large_sizes(void **state) {
    (void)state;
    burst_mask_spec large = BURST_MASK_SPEC_INIT;
    const int64_t n = large.q_tokens = large.k_tokens = (int64_t)1 << 31;
    large.causal = 1;
    burst_mask *mask = NULL;
    int64_t pairs = 0;
    assert_int_equal(burst_mask_create(&large, &mask), BURST_OK);
    assert_true(mask_pairs(mask, 2, &pairs));
    assert_int_equal(pairs, n * (n + 1));
    assert_false(mask_pairs(mask, 8, &pairs));
    burst_mask_free(mask);
    large.q_tokens = large.k_tokens = (int64_t)1 << 40;
    assert_int_equal(burst_mask_create(&large, &mask), BURST_OK);
    assert_false(mask_pairs(mask, 1, &pairs));
    burst_mask_free(mask);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spec),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_blocks_are_merged),
        cmocka_unit_test(test_slices_go_by_keys),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_shared_question),
        cmocka_unit_test(test_slices),
        cmocka_unit_test(test_overlap_names_the_slices),
        cmocka_unit_test(test_many_slices),
        cmocka_unit_test(test_large_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
