/* check_command.c - `burst check`: one table per word, or one line per word of a list, or JSON. */
#include "command.h"
#include "json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_table(const char *text, const char *system, const check_result *r) {
    printf("%s  %s, %s, ", text, r->code ? "FAILED" : "ok", system ? system : burst_isa_name(r->isa));
    if (r->ranks > 1) printf("%d ranks of ", r->ranks);
    printf("%d thread%s\n", r->threads, r->threads == 1 ? "" : "s");
    for (int i = 0; i < CHECK_NAMES; i++) {
        const check_error *e = &r->errors[i];
        if (r->checked[i])
            printf("  %-7s error %9.3e  threshold %9.3e  %s\n", e->name, e->error, e->threshold,
                   e->ok ? "ok" : "TOO LARGE");
    }
    if (r->whole)
        printf("  compared whole: all rows and keys\n");
    else
        printf(
            "  compared on a sample: %lld rows and %lld keys; for the keys, lse and o of the rows are the library's\n",
            (long long)r->rows, (long long)r->keys);
    if (r->sink_left) printf("  d_sink is not compared: in 16 bits a sample of the rows does not tell it\n");
}

/* Errors as a share of their thresholds: above 1 is a failure. */
static void print_line(const char *text, const char *system, const check_result *r) {
    (void)system;
    printf("%s %s ", r->code ? "FAILED" : "ok    ", text);
    for (int i = 0; i < CHECK_NAMES; i++) {
        const check_error *e = &r->errors[i];
        if (!r->checked[i]) continue;
        if (e->ok)
            printf(" %s %.2f", e->name, e->error > 0 ? e->error / e->threshold : 0.0);
        else
            printf(" %s %.3e > %.3e", e->name, e->error, e->threshold);
    }
    if (!r->whole) printf(" (sample: %lld rows, %lld keys)", (long long)r->rows, (long long)r->keys);
    if (r->sink_left) printf(" (d_sink not compared)");
    puts("");
    fflush(stdout);
}

static void print_json(const char *text, const char *system, const check_result *r) {
    json *object = json_new();
    json_text(object, "word", text);
    if (system) json_text(object, "system", system);
    json_bool(object, "ok", r->code == 0);
    if (r->code >= EXIT_REFUSED) {
        json_text(object, "status", burst_status_name(r->status));
        json_text(object, "message", r->message);
        json_print(object);
        return;
    }
    json_text(object, "isa", burst_isa_name(r->isa));
    json_number(object, "threads", r->threads);
    json_number(object, "ranks", r->ranks);
    json_bool(object, "sampled", !r->whole);
    json_number(object, "rows", (double)r->rows);
    json_number(object, "keys", (double)r->keys);
    if (r->sink_left) json_text(object, "not_compared", "d_sink");
    json *errors = json_child(object, "errors");
    for (int i = 0; i < CHECK_NAMES; i++) {
        const check_error *e = &r->errors[i];
        if (!r->checked[i]) continue;
        json *entry = json_child(errors, e->name);
        json_number(entry, "error", e->error);
        json_number(entry, "threshold", e->threshold);
        json_number(entry, "rms", e->count > 0 ? sqrt(e->squares / e->count) : 0);
        json_number(entry, "plain", e->plain);
        json_bool(entry, "ok", e->ok);
    }
    json_print(object);
}

typedef struct checking {
    const word *word;
    const char *text;
    check_options how;
    int ranks;
    check_result result; /* of the first rank */
} checking;

static void check_member(crew_member *me, void *user) {
    checking *c = user;
    check_options how = c->how;
    burst_transport *transport = NULL;
    check_result result = {.code = EXIT_FINE};
    burst_status status = crew_transport(me, c->ranks, &transport);
    if (me->rank > 0) how.plan.progress = NULL; /* one rank tells */
    how.me = me;
    if (status != BURST_OK) {
        result.code = EXIT_BROKEN;
        result.status = status;
        snprintf(result.message, sizeof result.message, "%s: %s", burst_status_name(status), burst_last_error());
    } else if (me->rank < c->ranks) {
        check_run(c->word, &how, transport, &result);
    }
    if (result.code == EXIT_BROKEN) crew_give_up(c->text, result.message);
    if (me->rank == 0) c->result = result;
    crew_barrier(me); /* those who are done sleep while the first compares */
    burst_transport_free(transport);
}

static int check_text(const command_options *options, const char *text, int lines) {
    word w;
    int bad = command_word(options, text, &w);
    if (bad) return bad;
    progress_label label = {"computing"};
    const system_kind *system = options->system_count ? options->systems[0] : NULL;
    checking c = {.word = &w, .text = text, .ranks = command_ranks(options)};
    c.how = (check_options){.plan = options->plan,
                            .seed = options->seed,
                            .forward_only = options->forward_only,
                            .from_lse = options->from_lse};
    if (system) system_apply(system, &c.how.plan), c.how.rival = system->rival;
    if (system && system->alone) c.ranks = 1;
    if (system && system_refuses(system, &w)) {
        c.result = (check_result){.code = EXIT_REFUSED, .status = BURST_UNSUPPORTED};
        snprintf(c.result.message, sizeof c.result.message, "%s: %s", system->name, system_refuses(system, &w));
        c.ranks = 0; /* nobody runs */
    }
    if (progress_visible()) c.how.plan.progress = progress_report, c.how.plan.progress_user = &label;
    if (c.ranks) bad = crew_run(c.ranks, check_member, &c);
    const check_result result = c.result;
    progress_clear();
    char *canonical = word_text(&w);
    if (options->json)
        print_json(canonical, system ? system->name : NULL, &result);
    else if (result.code < EXIT_REFUSED)
        (lines ? print_line : print_table)(canonical, system ? system->name : NULL, &result);
    if (result.code >= EXIT_REFUSED) fprintf(stderr, "burst: \"%s\": %s\n", canonical, result.message);
    free(canonical);
    word_free(&w);
    return bad ? bad : result.code;
}

typedef struct tally {
    int passed, failed, code;
} tally;

static void count(tally *t, int code) {
    if (code)
        t->failed++;
    else
        t->passed++;
    if (code > t->code) t->code = code;
}

static int check_list(const command_options *options, tally *t) {
    FILE *file = fopen(options->list, "r");
    if (!file) {
        fprintf(stderr, "burst: cannot read \"%s\": %s\n", options->list, strerror(errno));
        return EXIT_REFUSED;
    }
    char *line = NULL;
    size_t room = 0;
    int words = 0;
    errno = 0;
    while (getline(&line, &room, file) >= 0) {
        char *text = line + strspn(line, " \t");
        text[strcspn(text, " \t\r\n#")] = '\0';
        if (!*text) continue;
        words++;
        count(t, check_text(options, text, 1));
    }
    int code = EXIT_FINE, error = ferror(file) ? errno : 0;
    if (error) {
        fprintf(stderr, "burst: cannot read \"%s\": %s\n", options->list, strerror(error));
        code = EXIT_REFUSED;
    } else if (!words) {
        fprintf(stderr, "burst: \"%s\" has no word; expected one a line\n", options->list);
        code = EXIT_REFUSED;
    }
    free(line);
    fclose(file);
    return code;
}

int command_check(const command_options *options) {
    if (!options->word_count && !options->list) {
        fputs("burst: check needs a word or --list FILE; see burst --help\n", stderr);
        return EXIT_REFUSED;
    }
    tally t = {0, 0, 0};
    for (int i = 0; i < options->word_count; i++) count(&t, check_text(options, options->words[i], 0));
    if (options->list) {
        const int bad = check_list(options, &t);
        if (bad > t.code) t.code = bad;
    }
    if (!options->json && (options->list || options->word_count > 1))
        printf("%d passed, %d failed\n", t.passed, t.failed);
    return t.code;
}
