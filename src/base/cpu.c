/* cpu.c - knows what this machine can run, how many cores this process may use, and what time it is.
 * One idea: ask the system each time it matters (plan creation), keep nothing.
 * Does not know which kernels are built in, nor which of them is best. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "base.h"

#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
static bool runs_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

static bool runs_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static bool runs_avx512bf16(void) { return runs_avx512() && __builtin_cpu_supports("avx512bf16"); }

/* Linux gives the memory of the tile registers to processes that ask; once is enough, asking again does no harm. */
static bool runs_amx(void) {
    enum { ASK_FOR_STATE = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: Linux 5.16 */
    return runs_avx512() && __builtin_cpu_supports("amx-bf16") &&
           syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA) == 0;
}
#else
static bool runs_avx2(void) { return false; }

static bool runs_avx512(void) { return false; }

static bool runs_avx512bf16(void) { return false; }

static bool runs_amx(void) { return false; }
#endif

bool base_cpu_runs(burst_isa isa) {
    switch (isa) {
    case BURST_ISA_SCALAR:
        return true;
    case BURST_ISA_AVX2:
        return runs_avx2();
    case BURST_ISA_AVX512:
        return runs_avx512();
    case BURST_ISA_AVX512BF16:
        return runs_avx512bf16();
    case BURST_ISA_AMX:
        return runs_amx();
    case BURST_ISA_NEON:
#if defined(__aarch64__)
        return true; /* part of the base architecture */
#else
        return false;
#endif
    case BURST_ISA_AUTO:
        break;
    }
    return false;
}

int base_cores(void) {
    /* One cpu_set_t holds 1024 cores and the call fails on larger machines: 16 of them are enough for any today. */
    cpu_set_t sets[16];
    if (sched_getaffinity(0, sizeof sets, sets) != 0) return 1;
    const int cores = CPU_COUNT_S(sizeof sets, sets);
    return cores > 0 ? cores : 1;
}

double base_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
