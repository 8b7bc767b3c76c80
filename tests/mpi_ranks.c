/* mpi_ranks.c - run by mpirun: the conformance suite, then a list of words over all processes, each with another
 * partition, other sides and another strategy; then what MPI alone can do wrong.
 * Usage: mpi_ranks LIST [HOW_MANY [LARGEST_MESSAGE]]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "burst_mpi.h"
#include "conform.h"
#include "run.h"

static int check_word(const char *text, int number, burst_transport *transport) {
    word w;
    char error[WORD_ERROR_SIZE];
    check_options how = {.plan = BURST_OPTIONS_INIT, .seed = (uint64_t)number + 1};
    check_result result;
    if (word_parse(text, &w, error)) return 1;
    how.plan.threads = 1;
    how.plan.timeout = 60;
    how.plan.partition = (burst_partition)(number % 4);
    how.plan.side_forward = (burst_side)(number / 4 % 3);
    how.plan.side_backward = (burst_side)(number / 12 % 3);
    how.plan.strategy = run_strategy(&w, number, burst_transport_size(transport));
    if (how.plan.strategy != BURST_STRATEGY_RING) how.plan.side_forward = how.plan.side_backward = BURST_SIDE_AUTO;
    how.plan.send_o = how.plan.side_backward == BURST_SIDE_Q && number % 2;
    check_run(&w, &how, transport, &result);
    if (result.code) printf("rank %d: %s: %s\n", burst_transport_rank(transport), text, result.message);
    for (int i = 0; i < CHECK_NAMES; i++)
        if (result.checked[i] && !result.errors[i].ok)
            printf("  %s %.3e > %.3e\n", result.errors[i].name, result.errors[i].error, result.errors[i].threshold);
    word_free(&w);
    return result.code != 0;
}

static int check_list(const char *path, int most, burst_transport *transport, int *words) {
    char line[512];
    int wrong = 0;
    FILE *file = fopen(path, "r");
    if (!file) return 1;
    while (*words < most && fgets(line, sizeof line, file)) {
        line[strcspn(line, " \t\r\n#")] = '\0';
        if (*line) wrong += check_word(line, (*words)++, transport);
    }
    fclose(file);
    return wrong;
}

/* ---- memory of others -------------------------------------------------------------------------------------------- */

static int segments_mapped(void) {
    char line[512];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) found += strstr(line, "memfd:burst") != NULL;
    if (maps) fclose(maps);
    return found;
}

/* Plans come and go beside one that stays: what ranks have seen of each other's memory goes with them. */
static int check_mappings(burst_transport *transport) {
    const int size = burst_transport_size(transport);
    burst_problem problem = BURST_PROBLEM_INIT;
    burst_plan *stays = NULL;
    problem.q_heads = 2, problem.q_tokens = problem.k_tokens = 64, problem.head_dim = 8;
    int wrong = burst_plan_create(&problem, transport, NULL, &stays) != BURST_OK;
    for (int n = 0; n < 20 && !wrong; n++) wrong = check_word("b1h2n64d8:causal", n, transport);
    const int found = segments_mapped(),
              most = 1 + 2 * size; /* its own; of the last plan; of one not yet freed by others */
    if (found > most) printf("%d segments are mapped after 20 plans, expected %d at most\n", found, most);
    burst_plan_free(stays);
    return wrong || found > most;
}

/* ---- what is refused, and what fails half way -------------------------------------------------------------------- */

static int dup_returns; /* the communicator's errors came back as codes while it was duplicated */

static int returns(MPI_Comm comm) {
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(comm, &handler);
    const int is = handler == MPI_ERRORS_RETURN;
    MPI_Errhandler_free(&handler);
    return is;
}

int MPI_Comm_dup(MPI_Comm comm, MPI_Comm *own) {
    dup_returns = returns(comm);
    return PMPI_Comm_dup(comm, own);
}

static int fail_send; /* the so-manieth send from now on fails; 0: none */

int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    if (fail_send > 0 && --fail_send == 0) return MPI_ERR_OTHER;
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}

/* MPI takes the first piece of a message and refuses the second: the message fails, and its memory is free only when the
 * first piece has left. */
static int check_half_sent(int rank) {
    enum { BYTES = 12 << 20, FROM = 0, TO = 1 };
    burst_transport *t = NULL;
    transport_request request = {.posted = false};
    int wrong = burst_transport_create_mpi(MPI_COMM_WORLD, &t) != BURST_OK;
    if (!dup_returns || returns(MPI_COMM_WORLD))
        printf("the caller's error handler was asked, or is lost\n"), wrong = 1;
    char *memory = calloc(1, BYTES);
    if (!wrong && rank == FROM) {
        fail_send = 2;
        burst_status status = transport_send(t, TO, TRANSPORT_MOVE, memory, BYTES, &request);
        fail_send = 0;
        if (status == BURST_OK) status = transport_test(t, &request);
        wrong = status != BURST_TRANSPORT || !strstr(burst_last_error(), "rank 1 on channel move");
        if (wrong) printf("half a message: %s\n", burst_last_error());
    } else if (!wrong && rank == TO) {
        wrong = transport_receive(t, FROM, TRANSPORT_MOVE, memory, BYTES, &request) != BURST_OK;
        for (int n = 0; n < 100 && !wrong; n++) { /* lets the first piece arrive */
            wrong = transport_test(t, &request) != BURST_OK || request.done;
            usleep(1000);
        }
    }
    if (!transport_cancel(t, &request)) printf("rank %d: half a message cannot be taken back\n", rank), wrong = 1;
    free(memory);
    burst_transport_free(t);
    return wrong;
}

static int check_intercommunicator(int rank) {
    MPI_Comm half, both;
    burst_transport *t = NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, rank % 2 ? 0 : 1, 7, &both);
    const int refused = burst_transport_create_mpi(both, &t) == BURST_INVALID;
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
    return !refused || !strstr(burst_last_error(), "intercommunicator");
}

int main(int count, char **arguments) {
    int provided = 0, rank = 0, size = 1, words = 0, all = 0;
    burst_transport *transport = NULL;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int wrong = count < 2 || burst_transport_create_mpi(MPI_COMM_WORLD, &transport) != BURST_OK;
    const size_t large = count > 3 ? (size_t)atoll(arguments[3]) : (size_t)65 << 20;
    if (!wrong) wrong += conform_run(transport, large);
    if (!wrong) wrong += check_list(arguments[1], count > 2 ? atoi(arguments[2]) : 1000000, transport, &words);
    if (!wrong) wrong += check_mappings(transport);
    burst_transport_free(transport);
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (!all && size > 1) wrong += check_half_sent(rank) + check_intercommunicator(rank);
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks: %d words, %d wrong\n", size, words, all);
    MPI_Finalize();
    return all != 0 || words == 0;
}
