/* main.c - the `burst` command: finds the command's name and calls it. */
#include "command.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(const command_options *options);
} commands[] = {
    {"check", command_check}, {"bench", command_bench}, {"plan", command_plan},
    {"info", command_info},   {"demo", command_demo},
};

static int run(const command_options *options) {
    if (options->help) return command_usage(), EXIT_FINE;
    if (options->version) return printf("burst %s\n", burst_version()), EXIT_FINE;
    if (!options->command) {
        fputs("burst: a command is needed: check, bench, plan, info or demo; see burst --help\n", stderr);
        return EXIT_REFUSED;
    }
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, options->command) == 0) return commands[i].run(options);
    fprintf(stderr, "burst: unknown command \"%s\"; expected check, bench, plan, info or demo; see burst --help\n",
            options->command);
    return EXIT_REFUSED;
}

/* 0, or EXIT_REFUSED after a sentence: more ranks than there are processes. */
static int check_ranks(const command_options *options) {
    if (strcmp(options->command ? options->command : "", "plan") == 0) return 0; /* runs nothing */
    for (int n = 0; n < options->rank_counts; n++) {
        const int most = crew_is_mpi() ? crew_processes() : BURST_THREAD_RANKS_MAX;
        if (options->ranks[n] <= most) continue;
        fprintf(stderr, "burst: --ranks %d: there are %d %s; see burst --help\n", options->ranks[n], most,
                crew_is_mpi() ? "processes" : "threads at most");
        return EXIT_REFUSED;
    }
    return 0;
}

int main(int count, char **arguments) {
    command_options options;
    crew_hush();
    int code = command_parse(count, arguments, &options);
    const int opened = code || options.help || options.version ? -1 : crew_open(options.transport);
    if (!code) code = opened > 0 ? opened : check_ranks(&options);
    if (!code) code = run(&options);
    if (opened >= 0) crew_close();
    if ((fflush(stdout) || ferror(stdout)) && !code) code = EXIT_BROKEN;
    command_free(&options);
    return code;
}
