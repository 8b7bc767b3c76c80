/* mpi_ranks.c - run by mpirun: the conformance suite, then a list of words over all processes, each with another
 * partition, other sides and another strategy. Usage: mpi_ranks LIST [HOW_MANY [LARGEST_MESSAGE]]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    how.plan.side_forward = (burst_side)(number / 2 % 3);
    how.plan.side_backward = (burst_side)(number / 3 % 3);
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
    burst_transport_free(transport);
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks: %d words, %d wrong\n", size, words, all);
    MPI_Finalize();
    return all != 0 || words == 0;
}
