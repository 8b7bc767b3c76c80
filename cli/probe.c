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

/* One statement for all chains, and a variable for each: an array would live on the stack. The values stay finite:
 * c = c * 1 + 0. `line` is one instruction, its operands %0 to %11 (chains), %12 (one) and %13 (zero). */
#define TWELVE(line)                                                                                                   \
    line("%0") line("%1") line("%2") line("%3") line("%4") line("%5") line("%6") line("%7") line("%8") line("%9")      \
        line("%10") line("%11")
#define CHAIN_OPERANDS(kind)                                                                                           \
    "+" kind(c0), "+" kind(c1), "+" kind(c2), "+" kind(c3), "+" kind(c4), "+" kind(c5), "+" kind(c6), "+" kind(c7),    \
        "+" kind(c8), "+" kind(c9), "+" kind(c10), "+" kind(c11)
#define LOOP(line, kind, rounds)                                                                                       \
    for (long i = 0; i < rounds; i++) __asm__ volatile(TWELVE(line) : CHAIN_OPERANDS(kind) : kind(one), kind(zero))

typedef float vector4 __attribute__((vector_size(16)));

#if defined(__x86_64__)
typedef float vector8 __attribute__((vector_size(32)));
typedef float vector16 __attribute__((vector_size(64)));

#define FMA_LINE(c) "vfmadd213ps %13, %12, " c "\n\t"
#define FOUR_LANES_LINE(c) "mulps %12, " c "\n\taddps %13, " c "\n\t"
#define FOUR_LANES_KIND "x"

__attribute__((target("avx512f"), noinline)) static void loop_avx512(long rounds) {
    vector16 zero = {0}, one = zero + 1.0f;
    vector16 c0 = one, c1 = one, c2 = one, c3 = one, c4 = one, c5 = one, c6 = one, c7 = one, c8 = one, c9 = one,
             c10 = one, c11 = one;
    LOOP(FMA_LINE, "v", rounds);
}

__attribute__((target("avx2,fma"), noinline)) static void loop_avx2(long rounds) {
    vector8 zero = {0}, one = zero + 1.0f;
    vector8 c0 = one, c1 = one, c2 = one, c3 = one, c4 = one, c5 = one, c6 = one, c7 = one, c8 = one, c9 = one,
            c10 = one, c11 = one;
    LOOP(FMA_LINE, "x", rounds);
}
#elif defined(__aarch64__)
#define FOUR_LANES_LINE(c) "fmla " c ".4s, %12.4s, %13.4s\n\t"
#define FOUR_LANES_KIND "w"
#else
#error "the FMA probe knows x86-64 and aarch64"
#endif

__attribute__((noinline)) static void loop_four_lanes(long rounds) {
    vector4 zero = {0}, one = zero + 1.0f;
    vector4 c0 = one, c1 = one, c2 = one, c3 = one, c4 = one, c5 = one, c6 = one, c7 = one, c8 = one, c9 = one,
            c10 = one, c11 = one;
    LOOP(FOUR_LANES_LINE, FOUR_LANES_KIND, rounds);
}

typedef struct fma_loop {
    void (*run)(long rounds);
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
        loop.run(ROUNDS); /* wake the wide units */
#pragma omp barrier
        double start = check_now(), now = start;
        long calls = 0;
        while (now < start + seconds) {
            for (int i = 0; i < 16; i++) loop.run(ROUNDS);
            calls += 16;
            now = check_now();
        }
        total += 2.0 * CHAINS * loop.lanes * ROUNDS * (double)calls / (now - start);
    }
    return total * 1e-9;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

typedef uint64_t words2 __attribute__((vector_size(16), may_alias));

/* Two cache lines a step, eight sums in a variable each. */
static uint64_t sum_bytes(const unsigned char *from, size_t bytes) {
    words2 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0}, s4 = {0}, s5 = {0}, s6 = {0}, s7 = {0};
    const words2 *x = (const words2 *)(const void *)from, *end = x + bytes / sizeof *x / 8 * 8;
    for (; x < end; x += 8) {
        s0 += x[0], s1 += x[1], s2 += x[2], s3 += x[3];
        s4 += x[4], s5 += x[5], s6 += x[6], s7 += x[7];
    }
    s0 = ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7));
    return s0[0] + s0[1];
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
