/* overlap.c - knows whether two strided tensors share a byte, exactly.
 * One idea: they do iff a sum of index * stride over bounded indices falls into an interval. Branch and bound over the
 * indices, largest stride first: the reach of the rest leaves few values for each, and their greatest common divisor
 * leaves out most of what remains. Ordinary layouts (nested, interleaved) take some ten steps.
 * The problem is NP-hard for arbitrary strides, so the work is bounded; beyond the bound the answer is "unknown".
 * Does not know what the tensors mean. */
#include "api.h"

/* Reaches are sums of differences of addresses: more than 64 bits. */
__extension__ typedef __int128 wide;

enum { VARIABLES_MAX = 6, STEPS_MAX = 1000000 }; /* some 20 ms at most */

typedef struct variable {
    wide stride, low, high; /* stride > 0; low <= index <= high */
} variable;

typedef struct search {
    int count;
    variable variables[VARIABLES_MAX];
    /* of the variables from this one on: least and greatest sum, greatest common divisor of the strides */
    wide least[VARIABLES_MAX + 1], greatest[VARIABLES_MAX + 1], divisor[VARIABLES_MAX + 1];
    long steps;
} search;

static wide floor_divide(wide a, wide b) { return a / b - (a % b < 0); }

static wide ceiling_divide(wide a, wide b) { return a / b + (a % b > 0); }

static wide common_divisor(wide a, wide b) {
    while (b != 0) {
        const wide rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Keeps the variables sorted by stride, largest first; those of one stride act as one with the sum of their ranges. */
static void search_add(search *s, wide stride, wide low, wide high) {
    if (stride == 0 || low == high) return; /* callers shift ranges so that a single value is 0 */
    int place = 0;
    while (place < s->count && s->variables[place].stride > stride) place++;
    if (place < s->count && s->variables[place].stride == stride) {
        s->variables[place].low += low;
        s->variables[place].high += high;
        return;
    }
    for (int i = s->count++; i > place; i--) s->variables[i] = s->variables[i - 1];
    s->variables[place] = (variable){stride, low, high};
}

static void search_prepare(search *s) {
    s->least[s->count] = s->greatest[s->count] = s->divisor[s->count] = 0;
    for (int i = s->count - 1; i >= 0; i--) {
        const variable *v = &s->variables[i];
        s->least[i] = s->least[i + 1] + v->stride * v->low;
        s->greatest[i] = s->greatest[i + 1] + v->stride * v->high;
        s->divisor[i] = common_divisor(v->stride, s->divisor[i + 1]);
    }
    s->steps = STEPS_MAX;
}

/* Can the variables from `at` on sum up to something in low .. high? */
static overlap_answer search_run(search *s, int at, wide low, wide high) {
    if (low > s->greatest[at] || high < s->least[at]) return OVERLAP_NONE;
    if (at == s->count) return OVERLAP_SHARED; /* nothing left to add, and 0 is inside */
    if (floor_divide(high, s->divisor[at]) * s->divisor[at] < low) return OVERLAP_NONE;
    const variable *v = &s->variables[at];
    wide from = ceiling_divide(low - s->greatest[at + 1], v->stride);
    wide to = floor_divide(high - s->least[at + 1], v->stride);
    if (from < v->low) from = v->low;
    if (to > v->high) to = v->high;
    for (wide index = from; index <= to; index++) {
        if (s->steps-- <= 0) return OVERLAP_UNKNOWN;
        const overlap_answer answer = search_run(s, at + 1, low - index * v->stride, high - index * v->stride);
        if (answer != OVERLAP_NONE) return answer;
    }
    return OVERLAP_NONE;
}

static bool is_empty(const overlap_region *a) {
    return a->run == 0 || a->count[0] == 0 || a->count[1] == 0 || a->count[2] == 0;
}

/* One past the last byte, from the first. */
static wide extent(const overlap_region *a) {
    wide bytes = a->run;
    for (int i = 0; i < 3; i++) bytes += (wide)a->stride[i] * (a->count[i] - 1);
    return bytes;
}

overlap_answer overlap_between(const overlap_region *a, const overlap_region *b) {
    if (is_empty(a) || is_empty(b)) return OVERLAP_NONE;
    const wide from_a_to_b = (wide)b->address - (wide)a->address;
    if (from_a_to_b >= extent(a) || -from_a_to_b >= extent(b)) return OVERLAP_NONE;
    search s = {0};
    for (int i = 0; i < 3; i++) {
        search_add(&s, a->stride[i], 0, a->count[i] - 1);
        search_add(&s, b->stride[i], 1 - b->count[i], 0);
    }
    search_prepare(&s);
    /* A run of a and one of b meet iff each begins before the other ends. */
    return search_run(&s, 0, from_a_to_b - a->run + 1, from_a_to_b + b->run - 1);
}

overlap_answer overlap_itself(const overlap_region *a) {
    if (is_empty(a)) return OVERLAP_NONE;
    search all = {0};
    for (int i = 0; i < 3; i++) {
        if (a->count[i] > 1 && a->stride[i] == 0) return OVERLAP_SHARED;
        for (int j = 0; j < i; j++) /* one step along i and one back along j */
            if (a->count[i] > 1 && a->count[j] > 1 && a->stride[i] == a->stride[j]) return OVERLAP_SHARED;
        search_add(&all, a->stride[i], 1 - a->count[i], a->count[i] - 1);
    }
    /* Two places differ: by symmetry, the first index in which they do is greater in the one. */
    for (int first = 0; first < all.count; first++) {
        search s = {0};
        for (int i = first; i < all.count; i++) s.variables[s.count++] = all.variables[i];
        s.variables[0].low = 1;
        search_prepare(&s);
        const overlap_answer answer = search_run(&s, 0, 1 - a->run, a->run - 1);
        if (answer != OVERLAP_NONE) return answer;
    }
    return OVERLAP_NONE;
}
