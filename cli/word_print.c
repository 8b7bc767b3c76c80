/* word_print.c - from the struct back to the canonical word: defaults are left out, parts stand in one fixed order, so
 * two words of the same problem print alike. */
#include "need.h"
#include "word.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct writer {
    char *text;
    size_t size, length;
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *to, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int count = vsnprintf(to->length < to->size ? to->text + to->length : NULL,
                          to->length < to->size ? to->size - to->length : 0, format, args);
    va_end(args);
    if (count > 0) to->length += (size_t)count;
}

/* The shortest decimal that reads back as the same number; 30 and not 3e+01. */
static void put_real(writer *to, const char *name, double value) {
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double back = strtod(text, NULL);
        int plain = !strchr(text, 'e') || fabs(value) < 1e-4 || fabs(value) >= 1e15;
        if (plain && memcmp(&back, &value, sizeof back) == 0) break;
    }
    put(to, "%s%s", name, text);
}

static void put_list(writer *to, const char *name, const word_list *list) {
    for (size_t i = 0; i < list->count; i++) put(to, "%s%lld", i ? "/" : name, (long long)list->at[i]);
}

static void put_slices(writer *to, const word *w) {
    for (size_t i = 0; i < w->slice_count; i++) {
        const burst_slice *s = &w->slices[i];
        put(to, "%s%lld-%lldx%lld-%lld", i ? "," : ":slices=", (long long)s->q_begin, (long long)s->q_end,
            (long long)s->k_begin, (long long)s->k_end);
        if (s->lo == INT64_MIN && s->hi == INT64_MAX) continue;
        put(to, "@");
        if (s->lo != INT64_MIN) put(to, "%lld", (long long)s->lo);
        put(to, "..");
        if (s->hi != INT64_MAX) put(to, "%lld", (long long)s->hi);
    }
}

static void put_mask(writer *to, const word *w) {
    if (w->parts & WORD_DOCS) put_list(to, ":docs=", &w->docs);
    if (w->parts & WORD_KDOCS) put_list(to, ":kdocs=", &w->kdocs);
    if (w->parts & WORD_LENGTHS) put_list(to, ":lengths=", &w->lengths);
    if (w->parts & WORD_KLENGTHS) put_list(to, ":klengths=", &w->klengths);
    if (w->parts & WORD_SHARED) put_list(to, ":shared=", &w->shared);
    if (w->parts & WORD_SLICES) put_slices(to, w);
    if (w->parts & WORD_CAUSAL) put(to, ":causal");
    if (w->parts & WORD_PREFIX) put(to, ":prefix=%lld", (long long)w->prefix);
    if (w->parts & WORD_SINKTOKENS) put(to, ":sinktokens=%lld", (long long)w->sink_tokens);
    if (w->parts & WORD_WINDOW) put(to, ":window=%lld/%lld", (long long)w->window_left, (long long)w->window_right);
    if (w->parts & WORD_BLOCKS) {
        put(to, ":blocks=%lld", (long long)w->block);
        put_real(to, "/", w->block_probability);
    }
    if (w->align == BURST_ALIGN_START) put(to, ":align=start");
}

size_t word_print(const word *w, char *text, size_t size) {
    writer to = {text, size, 0};
    put(&to, "b%lldh%lld", (long long)w->batch, (long long)w->heads);
    if (w->groups != w->heads) put(&to, "g%lld", (long long)w->groups);
    put(&to, "n%lld", (long long)w->n);
    if (w->k != w->n) put(&to, "k%lld", (long long)w->k);
    put(&to, "d%lld", (long long)w->d);
    if (w->v != w->d) put(&to, "v%lld", (long long)w->v);
    put_mask(&to, w);
    if (w->parts & WORD_SOFTCAP) put_real(&to, ":softcap=", w->softcap);
    if (w->parts & WORD_ALIBI) put(&to, ":alibi");
    if (w->parts & WORD_SINK) put(&to, ":sink");
    if (w->parts & WORD_SCALE) put_real(&to, ":scale=", w->scale);
    if (w->parts & WORD_AMP) put_real(&to, ":amp=", w->amp);
    if (w->layout != WORD_BNHD) put(&to, ":layout=%s", w->layout == WORD_QKV ? "qkv" : "bhnd");
    if (w->dtype != BURST_F32) put(&to, ":%s", word_dtype_name(w->dtype));
    return to.length;
}

char *word_text(const word *w) {
    size_t length = word_print(w, NULL, 0);
    char *text = need_bytes(length + 1);
    word_print(w, text, length + 1);
    return text;
}

static const struct {
    const char *name;
    burst_dtype dtype;
} dtypes[] = {{"f32", BURST_F32}, {"bf16", BURST_BF16}, {"f16", BURST_F16}, {"f64", BURST_F64}};

const char *word_dtype_name(burst_dtype dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (dtypes[i].dtype == dtype) return dtypes[i].name;
    return "?";
}

int word_dtype_parse(const char *name, burst_dtype *dtype) {
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (strcmp(dtypes[i].name, name) == 0) return *dtype = dtypes[i].dtype, 0;
    return -1;
}

const word_list *word_documents(const word *w, int key_side) {
    return key_side && (w->parts & WORD_KDOCS) ? &w->kdocs : &w->docs;
}

const word_list *word_lengths(const word *w, int key_side) {
    return key_side && (w->parts & WORD_KLENGTHS) ? &w->klengths : &w->lengths;
}
