/* test_word.c - the parser of problem words: what it takes, prints again and refuses, in which words. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "word.h"
#include "word_mask.h"

static void assert_prints(const char *text, const char *canonical) {
    word w;
    char error[WORD_ERROR_SIZE];
    if (word_parse(text, &w, error)) fail_msg("\"%s\": %s", text, error);
    char *again = word_text(&w);
    assert_string_equal(again, canonical);
    word_free(&w);
    free(again);
}

static void documented_words_print_again(void **state) {
    (void)state;
    static const char *const words[] = {
        "b1h8n4096d64",
        "b2h8g2n1000d128:causal:bf16",
        "b1h4n1k131072d128",
        "b1h6g1n113k203d59:causal",
        "b1h8n4096d64v128:window=512/0",
        "b1h2n4232d64:docs=120/1128/2984:causal:window=64/0",
        "b1h2n2048d64:prefix=256",
        "b1h2n4096d64:sinktokens=4:window=256/0:sink",
        "b1h4n512d64:softcap=30:alibi",
        "b1h4n512k300d64:alibi:f16",
        "b1h4n512d64:sink:f64",
        "b1h2n2048d64:blocks=64/0.25",
        "b1h1n300d64:slices=0-100x0-300,100-300x0-300@-50..0",
        "b1h2n512d64:causal:amp=50",
        "b2h2n50k40d16:lengths=50/20:klengths=0/40:causal:align=start",
        "b1h2n60d16:shared=20/30/10:layout=qkv",
        "b1h1n9k8d4:docs=4/5:kdocs=8/0:scale=0.3:layout=bhnd",
        "b1h1n9k8d4:slices=0-9x0-8@..3",
        "b1h1n9k8d4:slices=0-9x0-8@-2..",
        "b1h1n0d1",
        "b1h1n9d4:window=-1/-1",
        "b1h1n9d4:scale=-1e-05",
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) assert_prints(words[i], words[i]);
}

static void parts_come_in_any_order(void **state) {
    (void)state;
    assert_prints("b1h2n8d4:f16:sink:window=3/0:causal", "b1h2n8d4:causal:window=3/0:sink:f16");
    assert_prints("b1h2g2n8k8d4v4:f32:align=end:layout=bnhd", "b1h2n8d4");
    assert_prints("b1h1n8d4:amp=5e1:softcap=30.0", "b1h1n8d4:softcap=30:amp=50");
}

static void refusals_say_where_and_what(void **state) {
    (void)state;
    static const char *const refused[][2] = {
        {"", "at the end: expected 'b' and the batch size"},
        {"x", "at character 1 ('x'): expected 'b' and the batch size"},
        {"b1h8", "at the end: expected 'n' and the number of query tokens"},
        {"b0h8n1d1", "at character 2 ('0'): the batch size must be at least 1"},
        {"b1h8n-1d1", "at character 6 ('-'): the number of query tokens must be at least 0"},
        {"b1hn1d1", "at character 4 ('n'): expected the number of query heads, a whole number"},
        {"b1h1n1d1k1", "expected ':' and a part, or the end (sizes come in the order b h g n k d v)"},
        {"b1h1n99999999999999999999d1", "the number of query tokens does not fit in 64 bits"},
        {"b1h1n1d1:", "unknown part \"\""},
        {"b1h1n1d1:caus", "unknown part \"caus\"; expected f32 bf16"},
        {"b1h1n1d1:causal=1", "expected ':' or the end after causal"},
        {"b1h1n1d1:causal:causal", "causal is given twice"},
        {"b1h1n1d1:f16:f32", "the element type is given twice"},
        {"b1h1n1d1:window", "expected '=' and a value"},
        {"b1h1n1d1:window=3", "expected '/' and the right width"},
        {"b1h1n1d1:window=-2/0", "the window's left width must be at least -1"},
        {"b1h1n1d1:window=1/2x", "at character 20 ('x'): expected ':' or the end after window"},
        {"b1h1n1d1:softcap=0", "the softcap must be above 0"},
        {"b1h1n1d1:softcap=nan", "expected the softcap, a decimal number"},
        {"b1h1n1d1:amp=1e999", "the factor of q is too large"},
        {"b1h1n1d1:scale=0", "the scale must not be 0"},
        {"b1h1n1d1:blocks=0/0.5", "the block size must be at least 1"},
        {"b1h1n1d1:blocks=4/1.5", "the probability of a block must be from 0 to 1"},
        {"b1h1n9d1:docs=4/4", "docs= sums to 8, expected n = 9"},
        {"b1h1n9d1:docs=9223372036854775807/1", "docs= sums to more than 64 bits hold"},
        {"b1h1n9k8d1:docs=4/5", "docs= with k different from n needs kdocs= for the keys"},
        {"b1h1n9k8d1:docs=4/5:kdocs=8", "docs= has 2 documents and kdocs= has 1"},
        {"b1h1n9d1:kdocs=9", "kdocs= needs docs= for the queries"},
        {"b2h1n9d1:lengths=3", "lengths= has 1 lengths, expected one per batch row: 2"},
        {"b1h1n9d1:lengths=10", "lengths= says 10, more than the 9 tokens of n"},
        {"b1h1n9d1:lengths=9:docs=9", "lengths= cannot be combined with docs= or blocks="},
        {"b1h1n9d1:shared=4/4", "shared= sums to 8, expected n = 9"},
        {"b1h1n9d1:shared=4/5:causal", "shared= allows no other mask part beside it"},
        {"b1h1n9d1:slices=0-9x0-9:causal", "slices= allows no other mask part beside it"},
        {"b1h1n9d1:slices=0-9", "expected 'x' and the slice's keys"},
        {"b1h1n9d1:slices=0-9x0-9@3", "expected '.' of the '..'"},
        {"b1h1n9d1:align=middle", "expected start or end"},
        {"b1h1n9d1:layout=nbhd", "expected bnhd, bhnd or qkv"},
        {"b1h1n9k8d1:layout=qkv", "layout=qkv needs as many keys as queries"},
    };
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        word w;
        char error[WORD_ERROR_SIZE];
        if (word_parse(refused[i][0], &w, error) == 0) fail_msg("\"%s\" was taken", refused[i][0]);
        if (!strstr(error, refused[i][1])) fail_msg("\"%s\": %s", refused[i][0], error);
    }
}

/* Every prefix and every word with one character changed is taken or refused, never anything worse. */
static void damaged_words_do_no_harm(void **state) {
    (void)state;
    static const char text[] = "b2h4g2n9k12d8v4:docs=4/5:kdocs=6/6:window=3/0:blocks=4/0.5:alibi:scale=0.5:f16";
    static const char damage[] = "0-9:/=x.@~\xff";
    for (size_t i = 0; i < sizeof text - 1; i++)
        for (const char *with = damage; with[0]; with++) {
            char copy[sizeof text], error[WORD_ERROR_SIZE];
            word w;
            memcpy(copy, text, sizeof text);
            copy[i] = *with;
            if (word_parse(copy, &w, error) == 0) word_free(&w);
            copy[i] = '\0';
            if (word_parse(copy, &w, error) == 0) word_free(&w);
        }
}

/* The predicate against a drawing: a line per query, x where it sees the key. */
static void assert_drawing(const char *text, const char *drawing) {
    word w;
    char error[WORD_ERROR_SIZE];
    if (word_parse(text, &w, error)) fail_msg("\"%s\": %s", text, error);
    word_mask mask;
    word_mask_make(&w, 1, &mask);
    int64_t *list = calloc((size_t)(w.n + w.k), sizeof *list);
    for (int64_t q = 0; q < w.n; q++) {
        int64_t count = word_mask_keys(&mask, 0, q, list), at = 0;
        for (int64_t k = 0; k < w.k; k++) {
            int seen = at < count && list[at] == k;
            at += seen;
            if (seen != (drawing[q * (w.k + 1) + k] == 'x')) fail_msg("\"%s\": q %d, k %d", text, (int)q, (int)k);
            assert_int_equal(seen, word_mask_allows(&mask, 0, q, k));
        }
    }
    for (int64_t k = 0; k < w.k; k++) {
        int64_t count = word_mask_queries(&mask, 0, k, list);
        for (int64_t i = 0; i < count; i++) assert_true(drawing[list[i] * (w.k + 1) + k] == 'x');
    }
    free(list);
    word_mask_free(&mask);
    word_free(&w);
}

static void masks_as_drawn(void **state) {
    (void)state;
    assert_drawing("b1h1n3k5d1:causal", "xxx.. xxxx. xxxxx");
    assert_drawing("b1h1n3k5d1:causal:align=start", "x.... xx... xxx..");
    assert_drawing("b1h1n5k3d1:causal", "... ... x.. xx. xxx");
    assert_drawing("b1h1n4d1:window=1/0", "x... xx.. .xx. ..xx");
    assert_drawing("b1h1n4d1:window=0/1", "xx.. .xx. ..xx ...x");
    assert_drawing("b1h1n4d1:window=0/-1", "xxxx .xxx ..xx ...x");
    assert_drawing("b1h1n5d1:window=1/0:sinktokens=1", "x.... xx... xxx.. x.xx. x..xx");
    assert_drawing("b1h1n4d1:prefix=2", "xx.. xx.. xxx. xxxx");
    assert_drawing("b1h1n5d1:docs=2/3:causal", "x.... xx... ..x.. ..xx. ..xxx");
    assert_drawing("b1h1n3k5d1:docs=1/2:kdocs=2/3:causal", "xx... ..xx. ..xxx");
    assert_drawing("b1h1n3k5d1:docs=1/2:kdocs=2/3:causal:align=start", "x.... ..x.. ..xx.");
    assert_drawing("b1h1n4d1:docs=2/2:prefix=1", "x... xx.. ..x. ..xx");
    assert_drawing("b1h1n5d1:shared=2/2/1", "x.... xx... xxx.. xxxx. xx..x");
    assert_drawing("b1h1n4d1:lengths=3:causal", "x... xx.. xxx. ....");
    assert_drawing("b1h1n4k5d1:lengths=2:klengths=4:causal", "xxx.. xxxx. ..... .....");
    assert_drawing("b1h1n3d1:slices=0-1x0-3,1-3x0-3@-1..0", "xxx xx. .xx");
    assert_drawing("b1h1n2d1:blocks=1/1", "xx xx");
    assert_drawing("b1h1n2d1:blocks=1/0", ".. ..");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documented_words_print_again),
        cmocka_unit_test(parts_come_in_any_order),
        cmocka_unit_test(refusals_say_where_and_what),
        cmocka_unit_test(damaged_words_do_no_harm),
        cmocka_unit_test(masks_as_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
