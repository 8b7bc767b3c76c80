/* test_ring.c - the ring over threads: routes, bytes, bits and leaks. The oracle's verdict over ranks is test_words'. */
#include "ranks.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "plan.h"

static burst_options options_of(burst_partition partition, burst_side forward, burst_side backward) {
    burst_options o = BURST_OPTIONS_INIT;
    o.threads = 1;
    o.partition = partition;
    o.side_forward = forward, o.side_backward = backward;
    o.timeout = 20;
    return o;
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */

static void test_every_token_has_one_owner(void **state) {
    (void)state;
    for (int kind = BURST_PARTITION_CONTIGUOUS; kind <= BURST_PARTITION_STRIPED; kind++)
        for (int ranks = 1; ranks <= 9; ranks++)
            for (int64_t tokens = 0; tokens <= 70; tokens++) {
                int owners[70] = {0};
                int64_t least = 100, most = 0;
                for (int r = 0; r < ranks; r++) {
                    const plan_share s = partition_share((burst_partition)kind, tokens, ranks, r);
                    int64_t count = 0;
                    for (int n = 0; n < s.count; n++)
                        for (int64_t i = 0; i < s.spans[n].count; i++, count++)
                            owners[s.spans[n].begin + i * s.spans[n].stride]++;
                    assert_int_equal(count, s.tokens);
                    least = count < least ? count : least, most = count > most ? count : most;
                }
                for (int64_t n = 0; n < tokens; n++) assert_int_equal(owners[n], 1);
                assert_true(most - least <= 2);
            }
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

enum { SMALL = 40 };

static int64_t position(const plan_share *s, int64_t i) {
    int n = 0;
    while (i >= s->spans[n].count) i -= s->spans[n++].count;
    return s->spans[n].begin + i * s->spans[n].stride;
}

/* Marks every pair that a rank's steps of one pass meet; checks that rectangles tell true positions. */
static void mark_pairs(const burst_plan *plan, int pass, unsigned char (*met)[SMALL]) {
    const plan_route *route = &plan->routes[pass];
    for (int t = 0; t < route->count; t++) {
        const plan_step *step = &route->steps[t];
        const bool q = route->side == BURST_SIDE_Q;
        const plan_share queries = q ? plan_share_of(plan, BURST_SIDE_Q, step->visitor) : plan->q;
        const plan_share keys = q ? plan->k : plan_share_of(plan, BURST_SIDE_K, step->visitor);
        const lao_list *list = &plan->lists[step->local];
        int64_t pairs = 0;
        for (size_t n = 0; n < list->count; n++) {
            const lao_rect *r = &list->rects[n];
            for (int64_t i = r->i0; i < r->i0 + r->ni; i++)
                for (int64_t j = r->j0; j < r->j0 + r->nj; j++) {
                    const int64_t a = r->q0 + r->sq * (i - r->i0), b = r->k0 + r->sk * (j - r->j0);
                    assert_int_equal(a, position(&queries, i));
                    assert_int_equal(b, position(&keys, j));
                    if (b - a < r->lo || b - a > r->hi) continue;
                    met[a][b]++;
                    pairs++;
                }
        }
        assert_int_equal(pairs, step->pairs);
    }
}

static void check_pairs(const char *text, int ranks, const burst_options *o) {
    word w;
    word_problem made;
    char error[WORD_ERROR_SIZE];
    unsigned char met[2][SMALL][SMALL];
    if (word_parse(text, &w, error)) fail_msg("%s: %s", text, error);
    assert_int_equal(word_problem_make(&w, 1, &made), BURST_OK);
    memset(met, 0, sizeof met);
    for (int r = 0; r < ranks; r++) {
        burst_transport *t = NULL;
        burst_plan *plan = NULL;
        assert_int_equal(burst_transport_create_dry(r, ranks, &t), BURST_OK);
        if (burst_plan_create(&made.problem, t, o, &plan)) fail_msg("%s: %s", text, burst_last_error());
        for (int pass = 0; pass < 2; pass++) mark_pairs(plan, pass, met[pass]);
        burst_plan_free(plan);
        burst_transport_free(t);
    }
    size_t count = 0;
    const burst_slice *slices = burst_mask_slices(made.problem.mask, 0, &count);
    for (int64_t q = 0; q < w.n; q++)
        for (int64_t k = 0; k < w.k; k++) {
            int allowed = made.problem.mask == NULL;
            for (size_t n = 0; n < count; n++) {
                const burst_slice *s = &slices[n];
                allowed |= q >= s->q_begin && q < s->q_end && k >= s->k_begin && k < s->k_end && k - q >= s->lo &&
                           k - q <= s->hi;
            }
            for (int pass = 0; pass < 2; pass++)
                if (met[pass][q][k] != allowed)
                    fail_msg("%s over %d ranks: pair %d, %d is met %d times", text, ranks, (int)q, (int)k,
                             met[pass][q][k]);
        }
    word_problem_free(&made);
    word_free(&w);
}

static void test_every_pair_is_met_once(void **state) {
    static const char *const words[] = {"b1h1n37d4:causal",
                                        "b1h1n37d4",
                                        "b1h1n23k40d4:causal",
                                        "b1h1n40k11d4:causal:align=start",
                                        "b1h1n40d4:window=5/3",
                                        "b1h1n40d4:sinktokens=3:window=4/0",
                                        "b1h1n39d4:docs=7/0/13/19:causal",
                                        "b1h1n40d4:prefix=11",
                                        "b1h1n36d4:shared=10/7/19",
                                        "b1h1n33d4:blocks=8/0.4",
                                        "b1h1n3d4:causal",
                                        "b1h1n1k40d4"};
    (void)state;
    for (size_t n = 0; n < sizeof words / sizeof *words; n++)
        for (int ranks = 1; ranks <= 8; ranks++)
            for (int kind = BURST_PARTITION_AUTO; kind <= BURST_PARTITION_STRIPED; kind++)
                for (int sides = 0; sides < 4; sides++) {
                    const burst_options o = options_of((burst_partition)kind, sides & 1 ? BURST_SIDE_Q : BURST_SIDE_K,
                                                       sides & 2 ? BURST_SIDE_Q : BURST_SIDE_K);
                    check_pairs(words[n], ranks, &o);
                }
}

typedef struct replay {
    int visitors[64][65], counts[64];
} replay;

/* The block that a rank has in a round was the next rank's the round before, and every block visits every rank. */
static void check_replay(const replay *p, int ranks) {
    for (int r = 0; r < ranks; r++) {
        bool seen[64] = {false};
        assert_int_equal(p->counts[r], p->counts[0]);
        assert_int_equal(p->visitors[r][0], r);
        for (int n = 0; n < ranks; n++) {
            assert_false(seen[p->visitors[r][n]]);
            seen[p->visitors[r][n]] = true;
            if (n > 0) assert_int_equal(p->visitors[r][n], p->visitors[(r + 1) % ranks][n - 1]);
        }
        if (p->counts[r] > ranks) assert_int_equal(p->visitors[r][ranks], r);
    }
}

static void test_routes_fit(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 64; ranks += RANKS_SANITIZED && ranks >= 8 ? 7 : 1) {
        burst_problem problem = BURST_PROBLEM_INIT;
        replay passes[2];
        problem.q_tokens = problem.k_tokens = 130;
        problem.head_dim = 8;
        for (int r = 0; r < ranks; r++) {
            burst_transport *t = NULL;
            burst_plan *plan = NULL;
            assert_int_equal(burst_transport_create_dry(r, ranks, &t), BURST_OK);
            assert_int_equal(burst_plan_create(&problem, t, NULL, &plan), BURST_OK);
            for (int pass = 0; pass < 2; pass++) {
                const plan_route *route = &plan->routes[pass];
                passes[pass].counts[r] = route->count;
                for (int n = 0; n < route->count; n++) passes[pass].visitors[r][n] = route->steps[n].visitor;
            }
            burst_plan_free(plan);
            burst_transport_free(t);
        }
        for (int pass = 0; pass < 2; pass++) check_replay(&passes[pass], ranks);
    }
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Per token of the side that travels, as in the published formulas: read + write set. */
static int64_t formula(const word *w, int backward, burst_side side, int write) {
    const int64_t wide = w->dtype == BURST_F64, e = (int64_t)data_size(w->dtype), f = wide ? 8 : 4;
    const int64_t dq = w->heads * w->d, do_ = w->heads * w->v, dk = w->groups * w->d, dv = w->groups * w->v;
    if (side == BURST_SIDE_K) return write ? (backward ? (dk + dv) * f : 0) : (dk + dv) * e;
    if (!backward) return write ? f * do_ + 2 * f * w->heads : dq * e;
    return write ? dq * f : (dq + do_) * e + 3 * f * w->heads;
}

static void check_bytes(const char *text, int ranks, burst_side side) {
    const burst_options o = options_of(BURST_PARTITION_CONTIGUOUS, side, side);
    ranks_result *r = malloc(sizeof *r);
    ranks_run(text, ranks, &o, NULL, NULL, r);
    ranks_assert_ok(text, r, ranks);
    const int64_t tokens = side == BURST_SIDE_Q ? r->word.n : r->word.k;
    int64_t total[2][2] = {{0, 0}, {0, 0}};
    for (int n = 0; n < ranks; n++)
        for (int pass = 0; pass < 2; pass++) {
            const burst_report *p = &r->reports[n][pass];
            total[pass][0] += p->read_bytes, total[pass][1] += p->write_bytes;
            assert_int_equal(p->read_messages, ranks - 1);
            assert_int_equal(p->write_messages, formula(&r->word, pass, side, 1) ? ranks - 1 : 0);
            assert_int_equal(p->read_bytes + p->write_bytes, r->wire[n][pass]);
            assert_true(p->seconds >= p->seconds_computing);
            assert_true(p->hidden >= 0 && p->hidden <= 1);
        }
    for (int pass = 0; pass < 2; pass++)
        for (int write = 0; write < 2; write++)
            assert_int_equal(total[pass][write],
                             (ranks - 1) * r->word.batch * tokens * formula(&r->word, pass, side, write));
    ranks_free(r);
    free(r);
}

static void test_bytes_equal_the_formulas(void **state) {
    static const char *const words[] = {"b2h4g2n50k70d8v12:causal", "b1h4n64d16:causal:bf16", "b1h2n33d8:f64:sink",
                                        "b1h2n3d8"};
    (void)state;
    for (size_t n = 0; n < sizeof words / sizeof *words; n++)
        for (int ranks = 2; ranks <= 5; ranks++) {
            check_bytes(words[n], ranks, BURST_SIDE_Q);
            check_bytes(words[n], ranks, BURST_SIDE_K);
        }
}

static burst_side chosen_side(const char *text, unsigned pass, int64_t bytes[2]) {
    word w;
    word_problem made;
    char error[WORD_ERROR_SIZE];
    burst_transport *t = NULL;
    burst_plan *plan = NULL;
    assert_int_equal(word_parse(text, &w, error), 0);
    assert_int_equal(word_problem_make(&w, 1, &made), BURST_OK);
    assert_int_equal(burst_transport_create_dry(0, 4, &t), BURST_OK);
    assert_int_equal(burst_plan_create(&made.problem, t, NULL, &plan), BURST_OK);
    const burst_side side = plan->routes[pass == BURST_PASS_BACKWARD].side;
    bytes[0] = burst_plan_wire_bytes(plan, pass, BURST_SIDE_Q);
    bytes[1] = burst_plan_wire_bytes(plan, pass, BURST_SIDE_K);
    burst_plan_free(plan);
    burst_transport_free(t);
    word_problem_free(&made);
    word_free(&w);
    return side;
}

static void test_the_lighter_side_travels(void **state) {
    (void)state;
    int64_t bytes[2];
    assert_int_equal(chosen_side("b1h8n4096d128:bf16", BURST_PASS_BACKWARD, bytes), BURST_SIDE_Q);
    assert_true((double)bytes[0] / (double)bytes[1] <= 0.675); /* 1036 / 1536 */
    assert_int_equal(chosen_side("b1h8g4n4096d128:bf16", BURST_PASS_BACKWARD, bytes), BURST_SIDE_K);
    assert_int_equal(chosen_side("b1h8n4096d128:bf16", BURST_PASS_FORWARD, bytes), BURST_SIDE_K);
    assert_int_equal(chosen_side("b1h8n64k65536d128", BURST_PASS_FORWARD, bytes), BURST_SIDE_Q);
}

/* ---- bits and leaks ---------------------------------------------------------------------------------------------- */

static void assert_same_bits(const ranks_result *a, const ranks_result *b) {
    const size_t wide = data_size(data_wide(a->word.dtype));
    assert_true(run_same(&a->data.o, &b->data.o));
    assert_true(run_same(&a->data.d_q, &b->data.d_q));
    assert_true(run_same(&a->data.d_k, &b->data.d_k));
    assert_true(run_same(&a->data.d_v, &b->data.d_v));
    assert_memory_equal(a->data.lse, b->data.lse, (size_t)(a->word.batch * a->word.heads * a->word.n) * wide);
    if (a->data.d_sink) assert_memory_equal(a->data.d_sink, b->data.d_sink, (size_t)a->word.heads * wide);
}

static void test_repeats_have_equal_bits(void **state) {
    static const char text[] = "b1h2n150d16:causal:sink:bf16";
    ranks_result *first = malloc(sizeof *first), *again = malloc(sizeof *again);
    (void)state;
    for (int sides = 0; sides < 2; sides++) {
        burst_options o = options_of(BURST_PARTITION_ZIGZAG, sides ? BURST_SIDE_Q : BURST_SIDE_K,
                                     sides ? BURST_SIDE_Q : BURST_SIDE_K);
        ranks_run(text, 4, &o, NULL, NULL, first);
        ranks_assert_ok(text, first, 4);
        for (int n = 0; n < 125; n++) {
            o.threads = 1 + n % 3;
            ranks_run(text, 4, &o, NULL, NULL, again);
            ranks_assert_ok(text, again, 4);
            assert_same_bits(first, again);
            ranks_free(again);
        }
        for (int r = 1; r < 4; r++) assert_memory_equal(&first->d_sink[r], &first->d_sink[0], sizeof(double));
        ranks_free(first);
    }
    free(first);
    free(again);
}

/* Puts NaN into keys and values from a position on, and into queries before another. */
typedef struct poison {
    int64_t from, to; /* tokens */
    int queries;
    double value;
} poison;

static void poison_tensor(const data_tensor *t, const int64_t *positions, const poison *p) {
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t n = 0; n < t->tokens; n++)
            for (int64_t h = 0; h < t->heads && positions[n] >= p->from && positions[n] < p->to; h++)
                for (int64_t x = 0; x < t->dim; x++) data_store(t->dtype, data_place(t, b, n, h), x, p->value);
}

static void poison_share(const word *w, share *mine, void *user) {
    const poison *p = user;
    (void)w;
    if (p->queries) {
        poison_tensor(&mine->data.q, mine->q_positions, p);
        poison_tensor(&mine->data.d_o, mine->q_positions, p);
    }
    poison_tensor(&mine->data.k, mine->k_positions, p);
    poison_tensor(&mine->data.v, mine->k_positions, p);
}

static void assert_same_tokens(const data_tensor *a, const data_tensor *b, int64_t from, int64_t to) {
    for (int64_t n = from; n < to; n++)
        for (int64_t h = 0; h < a->heads; h++)
            assert_memory_equal(data_place(a, 0, n, h), data_place(b, 0, n, h), (size_t)a->dim * data_size(a->dtype));
}

/* Tokens of one document become NaN, or other numbers: the other document keeps every bit. */
static void test_documents_do_not_leak(void **state) {
    static const char text[] = "b1h2n170d16:docs=90/80:causal";
    ranks_result *clean = malloc(sizeof *clean), *bad = malloc(sizeof *bad);
    (void)state;
    for (int kind = BURST_PARTITION_CONTIGUOUS; kind <= BURST_PARTITION_STRIPED; kind++)
        for (int side = BURST_SIDE_Q; side <= BURST_SIDE_K; side++)
            for (int n = 0; n < 2; n++) {
                const burst_options o = options_of((burst_partition)kind, (burst_side)side, (burst_side)side);
                poison p = {0, 90, 1, n ? NAN : 3.0};
                ranks_run(text, 3, &o, NULL, NULL, clean);
                ranks_run(text, 3, &o, poison_share, &p, bad);
                ranks_assert_ok(text, bad, 3);
                assert_same_tokens(&clean->data.o, &bad->data.o, 90, 170);
                assert_same_tokens(&clean->data.d_q, &bad->data.d_q, 90, 170);
                assert_same_tokens(&clean->data.d_k, &bad->data.d_k, 90, 170);
                assert_same_tokens(&clean->data.d_v, &bad->data.d_v, 90, 170);
                assert_false(run_same(&clean->data.o, &bad->data.o));
                ranks_free(clean);
                ranks_free(bad);
            }
    free(clean);
    free(bad);
}

/* Keys that only the last queries see are NaN: no earlier query hears of them, whichever rank they visit. */
static void test_hidden_keys_do_not_leak(void **state) {
    static const char text[] = "b1h2n160d16:causal";
    ranks_result *clean = malloc(sizeof *clean), *bad = malloc(sizeof *bad);
    (void)state;
    for (int kind = BURST_PARTITION_CONTIGUOUS; kind <= BURST_PARTITION_STRIPED; kind++)
        for (int way = 0; way < 4; way++) {
            const burst_side side = way % 2 ? BURST_SIDE_K : BURST_SIDE_Q;
            burst_options o = options_of((burst_partition)kind, side, side);
            o.isa = way < 2 ? BURST_ISA_AUTO : BURST_ISA_SCALAR; /* narrow panels see the bad key alone */
            poison p = {131, 160, 0, NAN};
            ranks_run(text, 4, &o, NULL, NULL, clean);
            ranks_run(text, 4, &o, poison_share, &p, bad);
            ranks_assert_ok(text, bad, 4);
            assert_same_tokens(&clean->data.o, &bad->data.o, 0, 131);
            assert_same_tokens(&clean->data.d_q, &bad->data.d_q, 0, 131);
            assert_true(isnan(data_at(&bad->data.o, 0, 131, 0, 0)));
            ranks_free(clean);
            ranks_free(bad);
        }
    free(clean);
    free(bad);
}

/* ---- folding ----------------------------------------------------------------------------------------------------- */

static void check_folds(burst_isa isa) {
    static const double tops[] = {-INFINITY, -200, -30, 0, 30, 200};
    enum { TOPS = sizeof tops / sizeof *tops };
    lao_round round = {.passes = BURST_PASS_FORWARD};
    lao_options options = {.threads = 1, .isa = isa, .memory_limit = SIZE_MAX};
    lao_list none = {NULL, 0};
    round.shape = (lao_shape){.dtype = BURST_F32,
                              .batch = 1,
                              .q_heads = 1,
                              .kv_heads = 1,
                              .q_tokens = TOPS * TOPS,
                              .k_tokens = 1,
                              .head_dim = 1,
                              .value_dim = 2,
                              .scale = 1,
                              .lists = &none,
                              .list_count = 1};
    lao *local = NULL;
    assert_int_equal(lao_create(&round, 1, &options, &local), BURST_OK);
    float acc[2][TOPS * TOPS][2], ms[2][TOPS * TOPS][2];
    for (int n = 0; n < TOPS * TOPS; n++)
        for (int side = 0; side < 2; side++) {
            const double top = tops[side ? n % TOPS : n / TOPS];
            const bool seen = top > -INFINITY;
            ms[side][n][0] = (float)top, ms[side][n][1] = seen ? 1.5f : 0;
            acc[side][n][0] = seen ? (float)(side + 1) : 0, acc[side][n][1] = seen ? -3.0f : 0;
        }
    const lao_state into = {acc[0], ms[0]}, from = {acc[1], ms[1]};
    lao_fold(local, &into, &from);
    for (int n = 0; n < TOPS * TOPS; n++) {
        const double a = tops[n / TOPS], b = tops[n % TOPS], top = fmax(a, b);
        if (top == -INFINITY) {
            assert_true(ms[0][n][0] == -INFINITY && ms[0][n][1] == 0 && acc[0][n][0] == 0 && acc[0][n][1] == 0);
            continue;
        }
        const double u = exp(a - top), v = exp(b - top);
        assert_true(ms[0][n][0] == (float)top);
        assert_true(fabs(ms[0][n][1] - 1.5 * (u + v)) <= 1e-6 * 3);
        assert_true(fabs(acc[0][n][0] - (u * 1 + v * 2)) <= 1e-6 * 3);
        assert_true(fabs(acc[0][n][1] + 3 * (u + v)) <= 1e-6 * 6);
    }
    /* A row that has seen nothing but NaN has no maximum either; it is not a row that has seen nothing. */
    ms[1][0][1] = acc[1][0][0] = acc[1][0][1] = NAN;
    lao_fold(local, &into, &from);
    assert_true(isnan(ms[0][0][1]) && isnan(acc[0][0][0]) && isnan(acc[0][0][1]));
    lao_free(local);
}

static void test_folds_of_extremes(void **state) {
    burst_isa best = BURST_ISA_SCALAR;
    (void)state;
    check_folds(BURST_ISA_SCALAR);
    assert_int_equal(lao_choose_isa(BURST_ISA_AUTO, BURST_F32, &best), BURST_OK);
    check_folds(best);
}

/* ---- words of others --------------------------------------------------------------------------------------------- */

/* Masks as MagiAttention's pipeline test has them, in f64, to 1e-8. */
static void test_masks_of_others(void **state) {
    static const char *const words[] = {
        "b1h2n900d16:f64:docs=100/200/300/300",                                               /* varlen full */
        "b1h2g1n900d16:f64:docs=150/450/300:causal",                                          /* varlen causal */
        "b1h2n704d16:f64:slices=0-256x0-256@-1000..0,256-512x0-512,512-704x512-704@-1000..0", /* block causal */
        "b1h2n512d16:f64:shared=200/112/200",                                      /* one question, answers */
        "b1h2n600d16:f64:slices=0-300x0-100,0-300x300-600@0..100,300-600x100-250", /* several key ranges */
        "b1h1n1103d16:f64:docs=201/301/601:causal",                                /* uneven */
        "b1h2n704d16:f64:lengths=698:causal",
        "b1h1n11021d16:f64:docs=1021/4001/5999:causal" /* uneven and long */
    };
    const size_t count = sizeof words / sizeof *words - RANKS_SANITIZED;
    (void)state;
    for (size_t n = 0; n < count; n++)
        for (int ranks = 2; ranks <= 5; ranks += RANKS_SANITIZED ? 3 : (int)n % 2 + 1) {
            word w;
            char error[WORD_ERROR_SIZE];
            if (word_parse(words[n], &w, error)) fail_msg("%s: %s", words[n], error);
            check_options o = {.seed = 1};
            o.plan = options_of((burst_partition)(1 + ((int)n + ranks) % 3), BURST_SIDE_AUTO,
                                ranks % 2 ? BURST_SIDE_Q : BURST_SIDE_K);
            check_result r;
            check_run_threads(&w, &o, ranks, &r);
            if (r.code) fail_msg("%s over %d ranks: %d %s", words[n], ranks, r.code, r.message);
            for (int i = 0; i < CHECK_NAMES; i++)
                if (r.checked[i]) assert_true(r.errors[i].error <= 1e-8);
            word_free(&w);
        }
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

enum { MOVE_BATCH = 2, MOVE_TOKENS = 23 };

typedef struct move_team {
    burst_partition partition;
    size_t token_bytes;
    int wrong;
} move_team;

static unsigned char byte_of(int64_t row, int64_t position, size_t n) {
    return (unsigned char)(row * 101 + position * 7 + (int64_t)(n * 31) + 3);
}

/* Whole tensors scattered from a rank and gathered to it come back; shares hold what their positions say. */
static void move_round(move_team *team, burst_plan *plan, int rank, int root) {
    const size_t token = team->token_bytes, all = MOVE_BATCH * MOVE_TOKENS * token;
    const int64_t n = burst_plan_tokens(plan, BURST_SIDE_Q);
    int64_t positions[MOVE_TOKENS], wrong = 0;
    unsigned char *whole = malloc(all + 1), *part = malloc((size_t)(MOVE_BATCH * n) * token + 1);
    unsigned char *back = calloc(all + 1, 1);
    const bool has = root == -1 || root == rank;
    for (int64_t t = 0; t < MOVE_BATCH * MOVE_TOKENS; t++)
        for (size_t x = 0; x < token; x++) whole[(size_t)t * token + x] = byte_of(t / MOVE_TOKENS, t % MOVE_TOKENS, x);
    wrong += burst_plan_positions(plan, BURST_SIDE_Q, positions) != BURST_OK;
    wrong += burst_plan_scatter(plan, BURST_SIDE_Q, root, token, has ? whole : NULL, part) != BURST_OK;
    for (int64_t t = 0; t < MOVE_BATCH * n; t++)
        for (size_t x = 0; x < token; x++) wrong += part[(size_t)t * token + x] != byte_of(t / n, positions[t % n], x);
    wrong += burst_plan_gather(plan, BURST_SIDE_Q, root, token, part, has ? back : NULL) != BURST_OK;
    if (has) wrong += memcmp(whole, back, all) != 0;
    __atomic_add_fetch(&team->wrong, wrong != 0, __ATOMIC_RELAXED);
    free(whole);
    free(part);
    free(back);
}

static void check_labels(move_team *team, const burst_plan *plan) {
    const int64_t n = burst_plan_tokens(plan, BURST_SIDE_Q);
    int64_t ids[MOVE_BATCH * MOVE_TOKENS], labels[MOVE_BATCH * MOVE_TOKENS], positions[MOVE_TOKENS], wrong = 0;
    for (int64_t t = 0; t < MOVE_BATCH * MOVE_TOKENS; t++) ids[t] = 1000 + t;
    wrong += burst_plan_labels(plan, ids, -100, labels) != BURST_OK;
    wrong += burst_plan_positions(plan, BURST_SIDE_Q, positions) != BURST_OK;
    for (int64_t t = 0; t < MOVE_BATCH * n; t++) {
        const int64_t next = positions[t % n] + 1;
        wrong += labels[t] != (next < MOVE_TOKENS ? 1000 + t / n * MOVE_TOKENS + next : -100);
    }
    __atomic_add_fetch(&team->wrong, wrong != 0, __ATOMIC_RELAXED);
}

static burst_status move_rank(burst_transport *t, void *user) {
    move_team *team = user;
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_options options = BURST_OPTIONS_INIT;
    burst_plan *plan = NULL;
    problem.batch = MOVE_BATCH, problem.q_tokens = problem.k_tokens = MOVE_TOKENS, problem.head_dim = 4;
    options.partition = team->partition;
    options.timeout = 20;
    burst_status status = burst_plan_create(&problem, t, &options, &plan);
    for (int root = -1; root < burst_transport_size(t) && status == BURST_OK; root++)
        move_round(team, plan, burst_transport_rank(t), root);
    if (status == BURST_OK) check_labels(team, plan);
    burst_plan_free(plan);
    return status;
}

static void test_tensors_are_moved(void **state) {
    static const size_t sizes[] = {0, 1, 12, 5000}; /* the last is more than the message memory of this plan */
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        for (int kind = BURST_PARTITION_CONTIGUOUS; kind <= BURST_PARTITION_STRIPED; kind++)
            for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
                move_team team = {(burst_partition)kind, sizes[n], 0};
                assert_int_equal(burst_threads_run(ranks, move_rank, &team), BURST_OK);
                assert_int_equal(team.wrong, 0);
            }
}

/* ---- other ways -------------------------------------------------------------------------------------------------- */

/* Gradients in 16 bits on the wire: half the bytes of the write set, and errors of a few roundings more. */
static void test_narrow_gradients(void **state) {
    ranks_result *wide = malloc(sizeof *wide), *narrow = malloc(sizeof *narrow);
    (void)state;
    for (int side = BURST_SIDE_Q; side <= BURST_SIDE_K; side++) {
        static const char text[] = "b1h2n130d32:causal:bf16";
        burst_options o = options_of(BURST_PARTITION_ZIGZAG, BURST_SIDE_AUTO, (burst_side)side);
        const int64_t sides[] = {0, 1};
        double largest;
        o.no_overlap = 1; /* or the own block is parted by the bytes to be sent, and sums run in another order */
        ranks_run(text, 4, &o, NULL, NULL, wide);
        o.narrow_gradients = 1;
        ranks_run(text, 4, &o, NULL, NULL, narrow);
        ranks_assert_ok(text, wide, 4);
        ranks_assert_ok(text, narrow, 4);
        assert_int_equal(2 * narrow->reports[0][1].write_bytes, wide->reports[0][1].write_bytes);
        assert_true(run_same(&wide->data.o, &narrow->data.o));
        const data_tensor *pairs[][2] = {{&wide->data.d_q, &narrow->data.d_q}, {&wide->data.d_k, &narrow->data.d_k}};
        const double far =
            run_distance(pairs[sides[side == BURST_SIDE_K]][0], pairs[sides[side == BURST_SIDE_K]][1], &largest);
        assert_true(far > 0 && far <= 4 * 0x1p-8 * largest); /* what travelled is rounded three times */
        const double same =
            run_distance(pairs[sides[side == BURST_SIDE_Q]][0], pairs[sides[side == BURST_SIDE_Q]][1], &largest);
        assert_true(same == 0); /* what stayed at home is not */
        ranks_free(wide);
        ranks_free(narrow);
    }
    free(wide);
    free(narrow);
}

/* With and without overlap, and with the statistics or lse: the same numbers. */
static void test_overlap_changes_no_result(void **state) {
    static const char text[] = "b1h2n200d16:causal";
    ranks_result *with = malloc(sizeof *with), *without = malloc(sizeof *without);
    (void)state;
    for (int side = BURST_SIDE_Q; side <= BURST_SIDE_K; side++) {
        burst_options o = options_of(BURST_PARTITION_AUTO, (burst_side)side, (burst_side)side);
        double largest;
        ranks_run(text, 3, &o, NULL, NULL, with);
        o.no_overlap = 1;
        ranks_run(text, 3, &o, NULL, NULL, without);
        ranks_assert_ok(text, without, 3);
        assert_true(run_distance(&with->data.o, &without->data.o, &largest) <= 1e-5);
        assert_true(run_distance(&with->data.d_q, &without->data.d_q, &largest) <= 1e-5);
        assert_true(run_distance(&with->data.d_v, &without->data.d_v, &largest) <= 1e-5);
        ranks_free(with);
        ranks_free(without);
    }
    free(with);
    free(without);
}

/* What the plans of all ranks state is what the allocator counts, and a rank's share of the tokens' memory. */
typedef struct memory_team {
    size_t stated, told; /* told: by plans that are only asked */
    int64_t counted;
    pthread_barrier_t barrier;
} memory_team;

static burst_status memory_rank(burst_transport *t, void *user) {
    memory_team *team = user;
    burst_mask_spec spec = BURST_MASK_SPEC_INIT;
    burst_mask *mask = NULL;
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_options options = BURST_OPTIONS_INIT;
    burst_plan *plan = NULL;
    spec.q_tokens = spec.k_tokens = problem.q_tokens = problem.k_tokens = 131072;
    spec.causal = 1;
    problem.q_heads = 2, problem.head_dim = 64;
    options.threads = 1;
    burst_status status = burst_mask_create(&spec, &mask);
    problem.mask = mask;
    const int64_t before = base_live_bytes();
    pthread_barrier_wait(&team->barrier);
    if (status == BURST_OK) status = burst_plan_create(&problem, t, &options, &plan);
    __atomic_add_fetch(&team->stated, burst_plan_workspace_bytes(plan), __ATOMIC_RELAXED);
    pthread_barrier_wait(&team->barrier);
    if (burst_transport_rank(t) == 0) team->counted = base_live_bytes() - before;
    pthread_barrier_wait(&team->barrier);
    burst_plan_free(plan);
    plan = NULL;
    burst_transport *dry = NULL;
    if (status == BURST_OK) status = burst_transport_create_dry(burst_transport_rank(t), 8, &dry);
    if (status == BURST_OK) status = burst_plan_create(&problem, dry, &options, &plan);
    __atomic_add_fetch(&team->told, burst_plan_workspace_bytes(plan), __ATOMIC_RELAXED);
    burst_plan_free(plan);
    burst_transport_free(dry);
    burst_mask_free(mask);
    return status;
}

static void test_memory_is_as_stated(void **state) {
    memory_team team = {.stated = 0};
    (void)state;
    pthread_barrier_init(&team.barrier, NULL, 8);
    assert_int_equal(burst_threads_run(8, memory_rank, &team), BURST_OK);
    pthread_barrier_destroy(&team.barrier);
    printf("8 ranks state %zu bytes (%zu if only asked), %lld are counted\n", team.stated, team.told,
           (long long)team.counted);
    assert_int_equal(team.told, team.stated);
    assert_true((double)team.counted <= 1.1 * (double)team.stated && (double)team.counted >= 0.9 * (double)team.stated);
    /* O(N / P): some 20 rows of d reals for each of a rank's tokens and heads */
    assert_true((double)team.stated / 8 <= 24.0 * (131072.0 / 8) * 2 * 64 * sizeof(float));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_has_one_owner),
        cmocka_unit_test(test_every_pair_is_met_once),
        cmocka_unit_test(test_routes_fit),
        cmocka_unit_test(test_bytes_equal_the_formulas),
        cmocka_unit_test(test_the_lighter_side_travels),
        cmocka_unit_test(test_repeats_have_equal_bits),
        cmocka_unit_test(test_documents_do_not_leak),
        cmocka_unit_test(test_hidden_keys_do_not_leak),
        cmocka_unit_test(test_folds_of_extremes),
        cmocka_unit_test(test_masks_of_others),
        cmocka_unit_test(test_tensors_are_moved),
        cmocka_unit_test(test_narrow_gradients),
        cmocka_unit_test(test_overlap_changes_no_result),
        cmocka_unit_test(test_memory_is_as_stated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
