/* command.h - what the commands of `burst` share: the options of the command line, exit codes, the progress line. */
#ifndef CLI_COMMAND_H
#define CLI_COMMAND_H

#include "check.h"
#include "crew.h"
#include "system.h"

enum exit_code { EXIT_FINE = 0, EXIT_WRONG = 1, EXIT_REFUSED = 2, EXIT_BROKEN = 3 };

enum { RANKS_LIST_MAX = 8 };

typedef struct command_options {
    const char *command;
    const char **words; /* what is neither the command nor an option */
    int word_count;
    const char *list; /* --list FILE */
    burst_options plan;
    uint64_t seed;
    int has_dtype;
    burst_dtype dtype;
    int repeat; /* 0: chosen */
    int json, forward_only, from_lse;
    crew_kind transport;
    int ranks[RANKS_LIST_MAX], rank_counts; /* --ranks: as said, or none */
    const system_kind *systems[SYSTEMS];    /* --system: as said, or none */
    int system_count;
    int unchecked; /* bench: systems are not compared with the oracle first */
    int help, version;
} command_options;

/* 0, or EXIT_REFUSED after a sentence on stderr. */
int command_parse(int count, char **arguments, command_options *out);
void command_free(command_options *options);

/* The word with --dtype applied; 0, or EXIT_REFUSED after a sentence on stderr, with --json an object on stdout too. */
int command_word(const command_options *options, const char *text, word *out);
/* How many ranks: what --ranks said, or all processes under MPI. */
int command_ranks(const command_options *options);
/* A sentence on stderr for a word that the library refused or failed on, with --json an object on stdout too. */
void command_complain(const command_options *options, const char *text, burst_status status);

int command_check(const command_options *options);
int command_bench(const command_options *options);
int command_plan(const command_options *options);
int command_info(const command_options *options);
int command_demo(const command_options *options);
void command_usage(void);

/* One line on stderr that overwrites itself, on a terminal only. */
__attribute__((format(printf, 1, 2))) void progress_show(const char *format, ...);
void progress_clear(void);
int progress_visible(void);
/* For burst_options.progress; user is a progress_label. */
typedef struct progress_label {
    const char *what;
} progress_label;
void progress_report(void *user, double done);

#endif
