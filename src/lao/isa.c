/* isa.c - which kernel sets are built in, which one a plan gets. The best comes first; the environment's BURST_ISA
 * replaces the choice, never a set that the caller forced. */
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

extern const lao_kernels lao_kernels_scalar, lao_kernels_f64;
extern const lao_kernels lao_kernels_avx2, lao_kernels_avx512, lao_kernels_avx512bf16, lao_kernels_amx,
    lao_kernels_neon;
extern const lao_kernels lao_kernels_avx2x16, lao_kernels_avx2bf16, lao_kernels_avx2amx;

typedef struct isa_entry {
    burst_isa isa;
    const char *name;
    const lao_kernels *kernels; /* NULL: not built in */
    const lao_kernels *brief;   /* for bf16, if that has its own */
    lao_order brief_order;      /* and how it sums */
} isa_entry;

#ifdef BURST_TEST_ISA_X16
/* 16 lanes, and tiles and pairs of bf16, on AVX2; exist in the test library only */
enum { ISA_AVX2X16 = 100, ISA_AVX2AMX = 101, ISA_AVX2BF16 = 102 };
#endif

static const isa_entry entries[] = {
#ifdef BURST_HAVE_AVX512
    {BURST_ISA_AMX, "amx", &lao_kernels_avx512, &lao_kernels_amx, LAO_ORDER_TILES},
    {BURST_ISA_AVX512BF16, "avx512bf16", &lao_kernels_avx512, &lao_kernels_avx512bf16, LAO_ORDER_PAIRS},
    {BURST_ISA_AVX512, "avx512", &lao_kernels_avx512, NULL, 0},
#else
    {BURST_ISA_AMX, "amx", NULL, NULL, 0},
    {BURST_ISA_AVX512BF16, "avx512bf16", NULL, NULL, 0},
    {BURST_ISA_AVX512, "avx512", NULL, NULL, 0},
#endif
#ifdef BURST_HAVE_AVX2
    {BURST_ISA_AVX2, "avx2", &lao_kernels_avx2, NULL, 0},
#else
    {BURST_ISA_AVX2, "avx2", NULL, NULL, 0},
#endif
#ifdef BURST_HAVE_NEON
    {BURST_ISA_NEON, "neon", &lao_kernels_neon, NULL, 0},
#else
    {BURST_ISA_NEON, "neon", NULL, NULL, 0},
#endif
    {BURST_ISA_SCALAR, "scalar", &lao_kernels_scalar, NULL, 0},
#ifdef BURST_TEST_ISA_X16
    {(burst_isa)ISA_AVX2X16, "avx2x16", &lao_kernels_avx2x16, NULL, 0},
    {(burst_isa)ISA_AVX2AMX, "avx2amx", &lao_kernels_avx2x16, &lao_kernels_avx2amx, LAO_ORDER_TILES},
    {(burst_isa)ISA_AVX2BF16, "avx2bf16", &lao_kernels_avx2x16, &lao_kernels_avx2bf16, LAO_ORDER_PAIRS},
#endif
};
enum { ENTRIES = sizeof entries / sizeof entries[0] };

static const isa_entry *find(burst_isa isa) {
    for (int i = 0; i < ENTRIES; i++)
        if (entries[i].isa == isa) return &entries[i];
    return NULL;
}

static bool runs(const isa_entry *entry) {
#ifdef BURST_TEST_ISA_X16
    if (entry->isa >= (burst_isa)ISA_AVX2X16) return base_cpu_runs(BURST_ISA_AVX2);
#endif
    return base_cpu_runs(entry->isa);
}

const char *lao_isa_name(burst_isa isa) {
    const isa_entry *entry = find(isa);
    return isa == BURST_ISA_AUTO ? "auto" : entry ? entry->name : NULL;
}

bool lao_isa_runs(burst_isa isa) {
    const isa_entry *entry = find(isa);
    return entry && entry->kernels && runs(entry);
}

/* NULL: the choice is free */
static const char *named_by_environment(void) {
    const char *name = getenv("BURST_ISA");
    return name && *name && strcmp(name, "auto") != 0 ? name : NULL;
}

bool lao_isa_forced(burst_isa wanted) { return wanted != BURST_ISA_AUTO || named_by_environment(); }

burst_status lao_choose_isa(burst_isa wanted, burst_dtype dtype, burst_isa *chosen) {
    const isa_entry *entry = NULL;
    const char *name = named_by_environment();
    if (wanted != BURST_ISA_AUTO) {
        entry = find(wanted);
        if (!entry) return base_fail(BURST_INVALID, "isa %d is not an instruction set this library knows", (int)wanted);
    } else if (name) {
        for (int i = 0; i < ENTRIES; i++)
            if (!strcmp(entries[i].name, name)) entry = &entries[i];
        if (!entry) {
            return base_fail(BURST_INVALID,
                             "the environment's BURST_ISA is \"%s\"; expected auto, scalar, avx2, avx512, avx512bf16, "
                             "amx or neon",
                             name);
        }
    } else { /* tiles are asked of the system only for what they serve */
        for (int i = 0; i < ENTRIES && !entry; i++)
            if (entries[i].kernels && (dtype == BURST_BF16 || !entries[i].brief) && runs(&entries[i]))
                entry = &entries[i];
    }
    if (!entry->kernels) return base_fail(BURST_UNSUPPORTED, "isa %s is not built into this library", entry->name);
    if (!runs(entry))
        return base_fail(BURST_UNSUPPORTED, "isa %s: this CPU does not have it, or its system does not allow it",
                         entry->name);
    const bool brief = entry->isa == BURST_ISA_AMX || entry->isa == BURST_ISA_AVX512BF16;
    *chosen = brief && dtype != BURST_BF16 ? BURST_ISA_AVX512 : entry->isa;
    if (dtype == BURST_F64) *chosen = BURST_ISA_SCALAR; /* plain C, whatever is asked for */
    return BURST_OK;
}

lao_order lao_isa_order(burst_isa isa, burst_dtype dtype) {
    const isa_entry *entry = find(isa);
    if (dtype == BURST_F64 || !entry) return LAO_ORDER_FUSED;
    if (dtype == BURST_BF16 && entry->brief) return entry->brief_order;
    return isa == BURST_ISA_SCALAR ? LAO_ORDER_PLAIN : LAO_ORDER_FUSED;
}

const lao_kernels *lao_kernels_of(burst_isa isa, burst_dtype dtype) {
    const isa_entry *entry = find(isa);
    if (dtype == BURST_F64) return &lao_kernels_f64;
    if (!entry) return NULL;
    return dtype == BURST_BF16 && entry->brief ? entry->brief : entry->kernels;
}
