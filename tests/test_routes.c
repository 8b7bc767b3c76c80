/* test_routes.c - what plans over ranks say before anything is computed, held against what is done: shares, routes, bytes,
 * tokens and memory. */
#include "ranks.h"

#include <pthread.h>
#include <stdio.h>

#include "plan.h"

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
                    const burst_options o =
                        ranks_options((burst_partition)kind, sides & 1 ? BURST_SIDE_Q : BURST_SIDE_K,
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
    const burst_options o = ranks_options(BURST_PARTITION_CONTIGUOUS, side, side);
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

/* ---- memory ------------------------------------------------------------------------------------------------------ */

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
        cmocka_unit_test(test_tensors_are_moved),
        cmocka_unit_test(test_memory_is_as_stated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
