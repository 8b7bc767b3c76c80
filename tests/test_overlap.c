/* test_overlap.c - the exact overlap check against a brute force that marks every byte, over random small layouts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "api.h"

enum { BYTES = 4096 };

static uint64_t random_state = 88172645463325252u;

static int64_t draw(int64_t low, int64_t high) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return low + (int64_t)(random_state % (uint64_t)(high - low + 1));
}

/* Adds 1 to every byte of the region as often as it is there; the greatest count. */
static int mark(const overlap_region *r, unsigned char *bytes) {
    int most = 0;
    for (int64_t i = 0; i < r->count[0]; i++)
        for (int64_t j = 0; j < r->count[1]; j++)
            for (int64_t k = 0; k < r->count[2]; k++)
                for (int64_t x = 0; x < r->run; x++) {
                    unsigned char *at = bytes + r->address + i * r->stride[0] + j * r->stride[1] + k * r->stride[2] + x;
                    if (*at < 255) ++*at;
                    if (*at > most) most = *at;
                }
    return most;
}

static overlap_region random_region(void) {
    overlap_region r = {.address = (uintptr_t)draw(0, 150), .run = draw(1, 9)};
    for (int i = 0; i < 3; i++) {
        r.count[i] = draw(0, 30) == 0 ? 0 : draw(1, 5);
        r.stride[i] = draw(0, 8) == 0 ? 0 : draw(1, draw(0, 1) ? 20 : 120);
    }
    return r;
}

static void test_between_random(void **state) {
    (void)state;
    static unsigned char a_bytes[BYTES], b_bytes[BYTES];
    int shared = 0;
    for (int round = 0; round < 20000; round++) {
        const overlap_region a = random_region(), b = random_region();
        memset(a_bytes, 0, BYTES);
        memset(b_bytes, 0, BYTES);
        mark(&a, a_bytes);
        mark(&b, b_bytes);
        bool expected = false;
        for (int i = 0; i < BYTES; i++) expected = expected || (a_bytes[i] && b_bytes[i]);
        shared += expected;
        assert_int_equal(overlap_between(&a, &b), expected ? OVERLAP_SHARED : OVERLAP_NONE);
        assert_int_equal(overlap_between(&b, &a), expected ? OVERLAP_SHARED : OVERLAP_NONE);
    }
    assert_in_range(shared, 1000, 19000); /* both answers were asked for */
}

static void test_itself_random(void **state) {
    (void)state;
    static unsigned char bytes[BYTES];
    int shared = 0;
    for (int round = 0; round < 20000; round++) {
        const overlap_region a = random_region();
        memset(bytes, 0, BYTES);
        const bool expected = mark(&a, bytes) > 1;
        shared += expected;
        assert_int_equal(overlap_itself(&a), expected ? OVERLAP_SHARED : OVERLAP_NONE);
    }
    assert_in_range(shared, 1000, 19000);
}

/* q, k and v as interleaved views of one buffer, large enough that only a good bound is quick. */
static void test_packed_views(void **state) {
    (void)state;
    const int64_t heads = 32, dim = 128, tokens = 100000, batch = 64, token = 3 * heads * dim * 4;
    overlap_region views[3];
    for (int i = 0; i < 3; i++)
        views[i] = (overlap_region){.address = (uintptr_t)(4096 + i * heads * dim * 4),
                                    .run = dim * 4,
                                    .stride = {tokens * token, token, dim * 4},
                                    .count = {batch, tokens, heads}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(overlap_itself(&views[i]), OVERLAP_NONE);
        for (int j = 0; j < 3; j++)
            assert_int_equal(overlap_between(&views[i], &views[j]), i == j ? OVERLAP_SHARED : OVERLAP_NONE);
    }
    /* per head [q k v], and the heads outermost */
    for (int i = 0; i < 3; i++)
        views[i] = (overlap_region){.address = (uintptr_t)(4096 + i * dim * 4),
                                    .run = dim * 4,
                                    .stride = {heads * tokens * 3 * dim * 4, 3 * dim * 4, tokens * 3 * dim * 4},
                                    .count = {batch, tokens, heads}};
    assert_int_equal(overlap_between(&views[0], &views[1]), OVERLAP_NONE);
    assert_int_equal(overlap_between(&views[1], &views[2]), OVERLAP_NONE);
    views[1].address -= 1; /* one byte into the neighbour */
    assert_int_equal(overlap_between(&views[0], &views[1]), OVERLAP_SHARED);
}

/* Strides without order and without a common divisor: the work is bounded, whatever the answer. */
static void test_work_is_bounded(void **state) {
    (void)state;
    const overlap_region a = {.address = 1 << 20,
                              .run = 1,
                              .stride = {2 * 1000000007, 2 * 1000000009, 2 * 1000000021},
                              .count = {100000, 100000, 100000}};
    overlap_region b = {.address = (1 << 20) + 1,
                        .run = 1,
                        .stride = {2 * 1000000033, 2 * 1000000087, 2 * 1000000093},
                        .count = {100000, 100000, 100000}};
    assert_int_equal(overlap_between(&a, &b), OVERLAP_NONE); /* even against odd: the divisor tells */
    /* Sums of strides that never come near a multiple of each other: a needle in a haystack of 1e15. */
    overlap_region c = {.address = 0, .run = 1, .stride = {0, 0, 0}, .count = {100000, 100000, 100000}};
    overlap_region d = c;
    int unknown = 0;
    for (int round = 0; round < 30; round++) {
        for (int i = 0; i < 3; i++) {
            c.stride[i] = draw((int64_t)1 << 40, (int64_t)1 << 41);
            d.stride[i] = draw((int64_t)1 << 40, (int64_t)1 << 41);
        }
        d.address = (uintptr_t)draw((int64_t)1 << 50, (int64_t)1 << 51);
        unknown += overlap_between(&c, &d) == OVERLAP_UNKNOWN; /* must only return soon */
    }
    assert_true(unknown > 0);
}

static void test_empty_and_zero_strides(void **state) {
    (void)state;
    overlap_region a = {.address = 100, .run = 8, .stride = {0, 0, 0}, .count = {1, 1, 1}};
    overlap_region b = a;
    assert_int_equal(overlap_between(&a, &b), OVERLAP_SHARED);
    assert_int_equal(overlap_itself(&a), OVERLAP_NONE);
    b.count[1] = 0;
    assert_int_equal(overlap_between(&a, &b), OVERLAP_NONE);
    b.count[1] = 2;
    assert_int_equal(overlap_itself(&b), OVERLAP_SHARED);
    b.address = 108;
    assert_int_equal(overlap_between(&a, &b), OVERLAP_NONE);
    b.address = 107;
    assert_int_equal(overlap_between(&a, &b), OVERLAP_SHARED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_random),         cmocka_unit_test(test_itself_random),
        cmocka_unit_test(test_packed_views),           cmocka_unit_test(test_work_is_bounded),
        cmocka_unit_test(test_empty_and_zero_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
