/* cmocka.h - the part of cmocka that the tests use, in one header, for targets that have no cmocka package (the emulated
 * aarch64 job). Same names, same meaning; no mocks, no memory checks. On all other builds the real one is used. */
#ifndef BURST_SHIM_CMOCKA_H
#define BURST_SHIM_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*CMUnitTestFunction)(void **state);
typedef int (*CMFixtureFunction)(void **state);
struct CMUnitTest {
    const char *name;
    CMUnitTestFunction test_func;
    CMFixtureFunction setup_func, teardown_func;
    void *initial_state;
};

#define cmocka_unit_test(f)                                                                                            \
    { #f, f, NULL, NULL, NULL }
#define cmocka_unit_test_setup(f, setup)                                                                               \
    { #f, f, setup, NULL, NULL }
#define cmocka_unit_test_teardown(f, teardown)                                                                         \
    { #f, f, NULL, teardown, NULL }
#define cmocka_unit_test_setup_teardown(f, setup, teardown)                                                            \
    { #f, f, setup, teardown, NULL }
#define cmocka_unit_test_prestate(f, state)                                                                            \
    { #f, f, NULL, NULL, state }
#define cmocka_run_group_tests(tests, setup, teardown)                                                                 \
    shim_run((tests), sizeof(tests) / sizeof((tests)[0]), (setup), (teardown))

/* Where a test that fails (1) or skips (2) goes. Weak: every file that includes this header shares one. */
__attribute__((weak)) jmp_buf shim_out;

static inline int shim_run(const struct CMUnitTest *tests, size_t count, CMFixtureFunction setup,
                           CMFixtureFunction teardown) {
    static void *group;
    volatile int failures = 0;
    if (setup && setup(&group) != 0) {
        fprintf(stderr, "group set-up failed\n");
        return 1;
    }
    for (volatile size_t i = 0; i < count; i++) {
        static void *state;
        state = tests[i].initial_state ? tests[i].initial_state : group;
        fprintf(stderr, "[ RUN      ] %s\n", tests[i].name);
        const char *unwanted = getenv("SHIM_SKIP"); /* name of a test that is too slow when emulated */
        int how = setjmp(shim_out);
        if (unwanted && strcmp(unwanted, tests[i].name) == 0) {
            how = 2;
        } else if (how == 0) {
            if (tests[i].setup_func && tests[i].setup_func(&state) != 0) {
                how = 1;
            } else {
                tests[i].test_func(&state);
            }
        }
        if (tests[i].teardown_func && tests[i].teardown_func(&state) != 0) {
            how = 1;
        }
        failures += how == 1;
        fprintf(stderr, "[ %s ] %s\n", how == 0 ? "      OK" : how == 1 ? " FAILED " : "SKIPPED ", tests[i].name);
    }
    if (teardown && teardown(&group) != 0) {
        failures++;
    }
    fprintf(stderr, "%d of %zu tests failed\n", failures, count);
    return failures;
}

static inline void shim_check(int holds, const char *what, const char *file, int line) {
    if (!holds) {
        fprintf(stderr, "%s:%d: %s\n", file, line, what);
        longjmp(shim_out, 1);
    }
}

__attribute__((format(printf, 3, 4))) static inline void shim_fail(const char *file, int line, const char *format,
                                                                   ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    longjmp(shim_out, 1);
}

static inline int shim_same_text(const char *a, const char *b) {
    if (strcmp(a, b) != 0) {
        fprintf(stderr, "\"%s\" and \"%s\"\n", a, b);
        return 0;
    }
    return 1;
}

static inline int shim_same_int(uintmax_t a, uintmax_t b) {
    if (a != b) {
        fprintf(stderr, "%jd (0x%jx) and %jd (0x%jx)\n", (intmax_t)a, a, (intmax_t)b, b);
        return 0;
    }
    return 1;
}

#define shim_assert(holds, what) shim_check((holds) ? 1 : 0, what, __FILE__, __LINE__)
#define assert_true(c) shim_assert(c, #c)
#define assert_false(c) shim_assert(!(c), "not " #c)
#define assert_null(p) shim_assert((p) == NULL, #p " is NULL")
#define assert_non_null(p) shim_assert((p) != NULL, #p " is not NULL")
#define assert_ptr_equal(a, b) shim_assert((const void *)(a) == (const void *)(b), #a " is " #b)
#define assert_int_equal(a, b) shim_assert(shim_same_int((uintmax_t)(a), (uintmax_t)(b)), #a " equals " #b)
#define assert_int_not_equal(a, b) shim_assert((uintmax_t)(a) != (uintmax_t)(b), #a " differs from " #b)
#define assert_in_range(x, low, high)                                                                                  \
    shim_assert((uintmax_t)(x) >= (uintmax_t)(low) && (uintmax_t)(x) <= (uintmax_t)(high), #x " in range")
#define assert_string_equal(a, b) shim_assert(shim_same_text((a), (b)), #a " equals " #b)
#define assert_string_not_equal(a, b) shim_assert(strcmp((a), (b)) != 0, #a " differs from " #b)
#define assert_memory_equal(a, b, n) shim_assert(memcmp((a), (b), (n)) == 0, #a " has the bytes of " #b)
#define assert_memory_not_equal(a, b, n) shim_assert(memcmp((a), (b), (n)) != 0, #a " has other bytes than " #b)
#define assert_float_equal(a, b, eps)                                                                                  \
    shim_assert((double)((a) - (b)) <= (double)(eps) && (double)((b) - (a)) <= (double)(eps), #a " is near " #b)
#define fail() shim_fail(__FILE__, __LINE__, "fail()")
#define fail_msg(...) shim_fail(__FILE__, __LINE__, __VA_ARGS__)
#define skip() longjmp(shim_out, 2)
#define print_message(...) printf(__VA_ARGS__)
#define print_error(...) fprintf(stderr, __VA_ARGS__)

#endif
