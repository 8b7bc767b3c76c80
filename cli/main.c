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

int main(int count, char **arguments) {
    command_options options;
    int code = command_parse(count, arguments, &options);
    if (!code) code = run(&options);
    if ((fflush(stdout) || ferror(stdout)) && !code) code = EXIT_BROKEN;
    command_free(&options);
    return code;
}
