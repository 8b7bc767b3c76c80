/* probe.c - the machine's peaks.
 *
 * One idea: the FMA loop is written in assembler operands, so that the compiler can neither contract, split nor load
 * anything; 12 independent chains cover a latency of 4 cycles at 2 a cycle with room to spare (and of 6 on others).
 */
#include "probe.h"
#include "check.h"
#include "need.h"

#include <omp.h>
#include <string.h>

#define CHAINS 12
#define ROUNDS 20000 /* of all chains between two looks at the clock: about 40 us */

/* One instruction on every chain. The operands are values that stay finite: x = x * 1 + 0. */
#define ALL_CHAINS(one, c, m, a)                                                                                       \
    one(c[0], m, a) one(c[1], m, a) one(c[2], m, a) one(c[3], m, a) one(c[4], m, a) one(c[5], m, a) one(c[6], m, a)    \
        one(c[7], m, a) one(c[8], m, a) one(c[9], m, a) one(c[10], m, a) one(c[11], m, a)

typedef float vector4 __attribute__((vector_size(16)));

#if defined(__x86_64__)
typedef float vector8 __attribute__((vector_size(32)));
typedef float vector16 __attribute__((vector_size(64)));

#define FMA_VEX(c, m, a) __asm__("vfmadd213ps %2, %1, %0" : "+x"(c) : "x"(m), "x"(a));
#define FMA_EVEX(c, m, a) __asm__("vfmadd213ps %2, %1, %0" : "+v"(c) : "v"(m), "v"(a));
#define MUL_ADD(c, m, a) __asm__("mulps %1, %0\n\taddps %2, %0" : "+x"(c) : "x"(m), "x"(a));

__attribute__((target("avx512f"), noinline)) static float loop_avx512(long rounds) {
    vector16 c[CHAINS] = {{0}}, one = {0}, zero = {0};
    one += 1.0f;
    for (long i = 0; i < rounds; i++) { ALL_CHAINS(FMA_EVEX, c, one, zero) }
    for (int i = 1; i < CHAINS; i++) c[0] += c[i];
    return c[0][0];
}

__attribute__((target("avx2,fma"), noinline)) static float loop_avx2(long rounds) {
    vector8 c[CHAINS] = {{0}}, one = {0}, zero = {0};
    one += 1.0f;
    for (long i = 0; i < rounds; i++) { ALL_CHAINS(FMA_VEX, c, one, zero) }
    for (int i = 1; i < CHAINS; i++) c[0] += c[i];
    return c[0][0];
}
#elif defined(__aarch64__)
#define MUL_ADD(c, m, a) __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(m), "w"(a));
#else
#define MUL_ADD(c, m, a) c = c * m + a;
#endif

__attribute__((noinline)) static float loop_four_lanes(long rounds) {
    vector4 c[CHAINS] = {{0}}, one = {1, 1, 1, 1}, zero = {0};
    for (long i = 0; i < rounds; i++) { ALL_CHAINS(MUL_ADD, c, one, zero) }
    for (int i = 1; i < CHAINS; i++) c[0] += c[i];
    return c[0][0];
}

typedef struct fma_loop {
    float (*run)(long rounds);
    int lanes;
} fma_loop;

static fma_loop best_loop(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f")) return (fma_loop){loop_avx512, 16};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return (fma_loop){loop_avx2, 8};
#endif
    return (fma_loop){loop_four_lanes, 4};
}

double probe_fma(int threads, double seconds) {
    fma_loop loop = best_loop();
    double total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        volatile float sink = loop.run(ROUNDS); /* wake the wide units */
#pragma omp barrier
        double start = check_now(), now = start;
        long calls = 0;
        while (now < start + seconds) {
            for (int i = 0; i < 16; i++) sink = loop.run(ROUNDS);
            calls += 16;
            now = check_now();
        }
        (void)sink;
        total += 2.0 * CHAINS * loop.lanes * ROUNDS * (double)calls / (now - start);
    }
    return total * 1e-9;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef uint64_t words2 __attribute__((vector_size(16)));

/* Two cache lines a step, eight sums. */
static uint64_t sum_bytes(const unsigned char *from, size_t bytes) {
    words2 sum[8] = {{0}};
    for (size_t i = 0; i + sizeof sum <= bytes; i += sizeof sum) {
        words2 x[8];
        memcpy(x, from + i, sizeof x);
        for (int j = 0; j < 8; j++) sum[j] += x[j];
    }
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    return sum[0][0] + sum[0][1];
}

double probe_read(int threads, const void *buffer, size_t bytes) {
    volatile uint64_t sink = 0;
    uint64_t total = 0;
    double start = check_now();
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        size_t share = bytes / (size_t)omp_get_num_threads() / 4096 * 4096;
        total += sum_bytes((const unsigned char *)buffer + share * (size_t)omp_get_thread_num(), share);
    }
    double seconds = check_now() - start;
    sink = total;
    (void)sink;
    return (double)bytes / seconds * 1e-9;
}

void *probe_read_buffer(size_t *bytes) {
    *bytes = (size_t)512 << 20;
    void *buffer = need_bytes(*bytes);
    memset(buffer, 1, *bytes);
    return buffer;
}
