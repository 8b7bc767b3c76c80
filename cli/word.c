/* word.c - the parser of problem words.
 *
 * One idea: a cursor walks the word once; the function that meets something unexpected writes the sentence, with the
 * place, and everybody above only forwards the -1. Parts are rows of one table.
 * Does not print words (word_print.c) or ask the library (word_problem.c).
 */
#include "word.h"
#include "need.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cursor {
    const char *text, *at;
    char *error;
} cursor;

__attribute__((format(printf, 2, 3))) static int refuse(const cursor *c, const char *format, ...) {
    size_t place = (size_t)(c->at - c->text);
    int used;
    if (*c->at)
        used = snprintf(c->error, WORD_ERROR_SIZE, "at character %zu ('%c'): ", place + 1, *c->at);
    else
        used = snprintf(c->error, WORD_ERROR_SIZE, "at the end: ");
    va_list args;
    va_start(args, format);
    vsnprintf(c->error + used, WORD_ERROR_SIZE - (size_t)used, format, args);
    va_end(args);
    return -1;
}

static int is_digit(char c) { return c >= '0' && c <= '9'; }

static int read_number(cursor *c, int64_t least, const char *meaning, int64_t *out) {
    const char *start = c->at;
    int negative = *c->at == '-';
    if (negative) c->at++;
    if (!is_digit(*c->at)) return refuse(c, "expected %s, a whole number", meaning);
    int64_t value = 0;
    for (; is_digit(*c->at); c->at++)
        if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *c->at - '0', &value))
            return refuse(c, "%s does not fit in 64 bits", meaning);
    if (negative) value = -value;
    if (value < least) {
        c->at = start;
        return refuse(c, "%s must be at least %lld", meaning, (long long)least);
    }
    *out = value;
    return 0;
}

static int read_real(cursor *c, const char *meaning, double *out) {
    const char *digits = c->at + (*c->at == '-');
    if (!is_digit(*digits) || (digits[0] == '0' && (digits[1] == 'x' || digits[1] == 'X')))
        return refuse(c, "expected %s, a decimal number", meaning);
    char *end;
    double value = strtod(c->at, &end);
    if (!isfinite(value)) return refuse(c, "%s is too large", meaning);
    c->at = end;
    *out = value;
    return 0;
}

static int read_char(cursor *c, char expected, const char *meaning) {
    if (*c->at != expected) return refuse(c, "expected '%c' %s", expected, meaning);
    c->at++;
    return 0;
}

static int read_list(cursor *c, const char *meaning, word_list *out) {
    size_t room = 1;
    for (const char *p = c->at; *p && *p != ':'; p++) room += *p == '/';
    out->at = need_bytes(room * sizeof(int64_t));
    for (;;) {
        if (read_number(c, 0, meaning, &out->at[out->count])) return -1;
        out->count++;
        if (*c->at != '/') return 0;
        c->at++;
    }
}

/* ---- the sizes --------------------------------------------------------------------------------------------------- */

static int read_sizes(cursor *c, word *w) {
    struct {
        char letter;
        int required;
        int64_t least;
        const char *meaning;
        int64_t *value;
        const int64_t *otherwise;
    } sizes[] = {
        {'b', 1, 1, "the batch size", &w->batch, NULL},
        {'h', 1, 1, "the number of query heads", &w->heads, NULL},
        {'g', 0, 1, "the number of kv heads", &w->groups, &w->heads},
        {'n', 1, 0, "the number of query tokens", &w->n, NULL},
        {'k', 0, 0, "the number of key tokens", &w->k, &w->n},
        {'d', 1, 1, "the head dimension", &w->d, NULL},
        {'v', 0, 1, "the value dimension", &w->v, &w->d},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (*c->at == sizes[i].letter) {
            c->at++;
            if (read_number(c, sizes[i].least, sizes[i].meaning, sizes[i].value)) return -1;
        } else if (sizes[i].required) {
            return refuse(c, "expected '%c' and %s (sizes come in the order b h g n k d v)", sizes[i].letter,
                          sizes[i].meaning);
        } else {
            *sizes[i].value = *sizes[i].otherwise;
        }
    }
    if (*c->at && *c->at != ':')
        return refuse(c, "expected ':' and a part, or the end (sizes come in the order b h g n k d v)");
    return 0;
}

/* ---- the parts --------------------------------------------------------------------------------------------------- */

static int part_window(cursor *c, word *w) {
    return read_number(c, -1, "the window's left width", &w->window_left) || read_char(c, '/', "and the right width") ||
           read_number(c, -1, "the window's right width", &w->window_right);
}
static int part_prefix(cursor *c, word *w) { return read_number(c, 0, "the prefix length", &w->prefix); }
static int part_sinktokens(cursor *c, word *w) {
    return read_number(c, 0, "the number of sink tokens", &w->sink_tokens);
}
static int part_docs(cursor *c, word *w) { return read_list(c, "a document length", &w->docs); }
static int part_kdocs(cursor *c, word *w) { return read_list(c, "a document length", &w->kdocs); }
static int part_lengths(cursor *c, word *w) { return read_list(c, "a row length", &w->lengths); }
static int part_klengths(cursor *c, word *w) { return read_list(c, "a row length", &w->klengths); }
static int part_shared(cursor *c, word *w) { return read_list(c, "a question or answer length", &w->shared); }

static int part_blocks(cursor *c, word *w) {
    if (read_number(c, 1, "the block size", &w->block) || read_char(c, '/', "and the probability of a block"))
        return -1;
    const char *start = c->at;
    if (read_real(c, "the probability of a block", &w->block_probability)) return -1;
    if (w->block_probability >= 0 && w->block_probability <= 1) return 0;
    c->at = start;
    return refuse(c, "the probability of a block must be from 0 to 1");
}

static int part_softcap(cursor *c, word *w) {
    const char *start = c->at;
    if (read_real(c, "the softcap", &w->softcap)) return -1;
    if (w->softcap > 0) return 0;
    c->at = start;
    return refuse(c, "the softcap must be above 0");
}
static int part_scale(cursor *c, word *w) {
    const char *start = c->at;
    if (read_real(c, "the scale", &w->scale)) return -1;
    if (w->scale < 0 || w->scale > 0) return 0;
    c->at = start;
    return refuse(c, "the scale must not be 0");
}
static int part_amp(cursor *c, word *w) { return read_real(c, "the factor of q", &w->amp); }

static int read_name(cursor *c, const char *name) {
    size_t length = strlen(name);
    if (strncmp(c->at, name, length) != 0 || (c->at[length] && c->at[length] != ':')) return 0;
    c->at += length;
    return 1;
}
static int part_align(cursor *c, word *w) {
    if (read_name(c, "start")) return w->align = BURST_ALIGN_START, 0;
    if (read_name(c, "end")) return w->align = BURST_ALIGN_END, 0;
    return refuse(c, "expected start or end");
}
static int part_layout(cursor *c, word *w) {
    if (read_name(c, "bnhd")) return w->layout = WORD_BNHD, 0;
    if (read_name(c, "bhnd")) return w->layout = WORD_BHND, 0;
    if (read_name(c, "qkv")) return w->layout = WORD_QKV, 0;
    return refuse(c, "expected bnhd, bhnd or qkv");
}

static int read_slice(cursor *c, burst_slice *s) {
    s->lo = INT64_MIN, s->hi = INT64_MAX, s->diag = 0;
    if (read_number(c, 0, "the slice's first query", &s->q_begin) || read_char(c, '-', "and the end of the queries") ||
        read_number(c, 0, "the end of the queries", &s->q_end) || read_char(c, 'x', "and the slice's keys") ||
        read_number(c, 0, "the slice's first key", &s->k_begin) || read_char(c, '-', "and the end of the keys") ||
        read_number(c, 0, "the end of the keys", &s->k_end))
        return -1;
    if (*c->at != '@') return 0;
    c->at++;
    if (*c->at != '.' && read_number(c, INT64_MIN, "the least k - q", &s->lo)) return -1;
    if (read_char(c, '.', "of the '..' between the least and the largest k - q") || read_char(c, '.', "once more"))
        return -1;
    if (*c->at && *c->at != ',' && *c->at != ':') return read_number(c, INT64_MIN, "the largest k - q", &s->hi);
    return 0;
}
static int part_slices(cursor *c, word *w) {
    size_t room = 1;
    for (const char *p = c->at; *p && *p != ':'; p++) room += *p == ',';
    w->slices = need_bytes(room * sizeof(burst_slice));
    for (;;) {
        if (read_slice(c, &w->slices[w->slice_count])) return -1;
        w->slice_count++;
        if (*c->at != ',') return 0;
        c->at++;
    }
}

static const struct {
    const char *name;
    unsigned part;
    int (*read)(cursor *c, word *w); /* NULL: the name alone says it all */
} parts[] = {
    {"f32", WORD_DTYPE, NULL},
    {"bf16", WORD_DTYPE, NULL},
    {"f16", WORD_DTYPE, NULL},
    {"f64", WORD_DTYPE, NULL},
    {"causal", WORD_CAUSAL, NULL},
    {"alibi", WORD_ALIBI, NULL},
    {"sink", WORD_SINK, NULL},
    {"window", WORD_WINDOW, part_window},
    {"prefix", WORD_PREFIX, part_prefix},
    {"sinktokens", WORD_SINKTOKENS, part_sinktokens},
    {"align", WORD_ALIGN, part_align},
    {"docs", WORD_DOCS, part_docs},
    {"kdocs", WORD_KDOCS, part_kdocs},
    {"blocks", WORD_BLOCKS, part_blocks},
    {"lengths", WORD_LENGTHS, part_lengths},
    {"klengths", WORD_KLENGTHS, part_klengths},
    {"shared", WORD_SHARED, part_shared},
    {"slices", WORD_SLICES, part_slices},
    {"softcap", WORD_SOFTCAP, part_softcap},
    {"scale", WORD_SCALE, part_scale},
    {"amp", WORD_AMP, part_amp},
    {"layout", WORD_LAYOUT, part_layout},
};

static int read_part(cursor *c, word *w) {
    size_t length = strcspn(c->at, ":=");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strlen(parts[i].name) != length || strncmp(parts[i].name, c->at, length) != 0) continue;
        if (w->parts & parts[i].part)
            return refuse(c, parts[i].part == WORD_DTYPE ? "the element type is given twice" : "%s is given twice",
                          parts[i].name);
        w->parts |= parts[i].part;
        c->at += length;
        if (parts[i].part == WORD_DTYPE) word_dtype_parse(parts[i].name, &w->dtype);
        if (parts[i].read) {
            if (read_char(c, '=', "and a value") || parts[i].read(c, w)) return -1;
        }
        if (*c->at && *c->at != ':') return refuse(c, "expected ':' or the end after %s", parts[i].name);
        return 0;
    }
    return refuse(
        c,
        "unknown part \"%.*s\"; expected f32 bf16 f16 f64 causal window= prefix= sinktokens= align= docs= kdocs= "
        "blocks= lengths= klengths= shared= slices= softcap= alibi sink scale= amp= or layout=",
        length > 40 ? 40 : (int)length, c->at);
}

/* ---- what the parts must agree on -------------------------------------------------------------------------------- */

static int sums_to(const cursor *c, const word_list *list, int64_t total, const char *name, const char *size) {
    int64_t sum = 0;
    for (size_t i = 0; i < list->count; i++)
        if (__builtin_add_overflow(sum, list->at[i], &sum))
            return refuse(c, "%s= sums to more than 64 bits hold", name);
    if (sum == total) return 0;
    return refuse(c, "%s= sums to %lld, expected %s = %lld", name, (long long)sum, size, (long long)total);
}

static int check_alone(const cursor *c, const word *w) {
    const unsigned mask = WORD_CAUSAL | WORD_WINDOW | WORD_PREFIX | WORD_SINKTOKENS | WORD_ALIGN | WORD_DOCS |
                          WORD_KDOCS | WORD_BLOCKS | WORD_LENGTHS | WORD_KLENGTHS | WORD_SHARED | WORD_SLICES;
    const unsigned rows = WORD_LENGTHS | WORD_KLENGTHS;
    if ((w->parts & WORD_SLICES) && (w->parts & mask & ~(unsigned)(WORD_SLICES | WORD_ALIGN)))
        return refuse(c, "slices= allows no other mask part beside it");
    if ((w->parts & WORD_SHARED) && (w->parts & mask & ~(unsigned)WORD_SHARED))
        return refuse(c, "shared= allows no other mask part beside it");
    if ((w->parts & rows) && (w->parts & (WORD_DOCS | WORD_KDOCS | WORD_BLOCKS)))
        return refuse(c, "lengths= cannot be combined with docs= or blocks=");
    return 0;
}

static int check_documents(const cursor *c, const word *w) {
    if ((w->parts & WORD_KDOCS) && !(w->parts & WORD_DOCS)) return refuse(c, "kdocs= needs docs= for the queries");
    if (!(w->parts & WORD_DOCS)) return 0;
    if (sums_to(c, &w->docs, w->n, "docs", "n")) return -1;
    if (!(w->parts & WORD_KDOCS)) {
        if (w->n == w->k) return 0;
        return refuse(c, "docs= with k different from n needs kdocs= for the keys");
    }
    if (w->docs.count != w->kdocs.count)
        return refuse(c, "docs= has %zu documents and kdocs= has %zu", w->docs.count, w->kdocs.count);
    return sums_to(c, &w->kdocs, w->k, "kdocs", "k");
}

static int check_lengths(const cursor *c, const word *w) {
    if ((w->parts & WORD_KLENGTHS) && !(w->parts & WORD_LENGTHS))
        return refuse(c, "klengths= needs lengths= for the queries");
    if (!(w->parts & WORD_LENGTHS)) return 0;
    for (int side = 0; side < 2; side++) {
        const word_list *list = word_lengths(w, side);
        const char *name = list == &w->klengths ? "klengths" : "lengths";
        int64_t tokens = side ? w->k : w->n;
        if ((int64_t)list->count != w->batch)
            return refuse(c, "%s= has %zu lengths, expected one per batch row: %lld", name, list->count,
                          (long long)w->batch);
        for (size_t i = 0; i < list->count; i++)
            if (list->at[i] > tokens)
                return refuse(c, "%s= says %lld, more than the %lld tokens of %c", name, (long long)list->at[i],
                              (long long)tokens, side ? 'k' : 'n');
    }
    return 0;
}

static int check_rest(const cursor *c, const word *w) {
    if (w->parts & WORD_SHARED) {
        if (w->n != w->k) return refuse(c, "shared= needs as many keys as queries");
        if (sums_to(c, &w->shared, w->n, "shared", "n")) return -1;
    }
    if (w->layout == WORD_QKV && w->n != w->k) return refuse(c, "layout=qkv needs as many keys as queries");
    return 0;
}

int word_parse(const char *text, word *out, char error[WORD_ERROR_SIZE]) {
    cursor c = {text, text, error};
    error[0] = '\0';
    memset(out, 0, sizeof *out);
    out->window_left = out->window_right = out->prefix = -1;
    out->amp = 1;
    int bad = read_sizes(&c, out);
    while (!bad && *c.at == ':') {
        c.at++;
        bad = read_part(&c, out);
    }
    bad = bad || check_alone(&c, out) || check_documents(&c, out) || check_lengths(&c, out) || check_rest(&c, out);
    if (!bad) return 0;
    word_free(out);
    return -1;
}

void word_free(word *w) {
    word_list *lists[] = {&w->docs, &w->kdocs, &w->lengths, &w->klengths, &w->shared};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) free(lists[i]->at);
    free(w->slices);
    memset(w, 0, sizeof *w);
}
