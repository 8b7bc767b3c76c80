/* options.c - the command line: options stand before or after words, with "--name value" or "--name=value". */
#include "command.h"
#include "json.h"
#include "need.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 1, 2))) static int refuse(const char *format, ...) {
    va_list args;
    fputs("burst: ", stderr);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputs("; see burst --help\n", stderr);
    return EXIT_REFUSED;
}

static int read_unsigned(const char *name, const char *text, uint64_t least, uint64_t most, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || value < least || value > most)
        return refuse("%s expects a whole number from %llu to %llu, not \"%s\"", name, (unsigned long long)least,
                      (unsigned long long)most, text);
    *out = value;
    return 0;
}

static int set_threads(command_options *o, const char *text) {
    uint64_t value = 0;
    int bad = read_unsigned("--threads", text, 1, 4096, &value);
    if (!bad) o->plan.threads = (int)value;
    return bad;
}
static int set_repeat(command_options *o, const char *text) {
    uint64_t value = 0;
    int bad = read_unsigned("--repeat", text, 1, 1000000, &value);
    if (!bad) o->repeat = (int)value;
    return bad;
}
static int set_q_tile(command_options *o, const char *text) {
    uint64_t value = 0;
    int bad = read_unsigned("--q-tile", text, 1, INT_MAX, &value);
    if (!bad) o->plan.q_tile = (int64_t)value;
    return bad;
}
static int set_k_tile(command_options *o, const char *text) {
    uint64_t value = 0;
    int bad = read_unsigned("--k-tile", text, 1, INT_MAX, &value);
    if (!bad) o->plan.k_tile = (int64_t)value;
    return bad;
}
static int set_seed(command_options *o, const char *text) {
    return read_unsigned("--seed", text, 0, UINT64_MAX, &o->seed);
}
/* Bytes, or with k, m or g behind it so many KiB, MiB or GiB. */
static int set_memory(command_options *o, const char *text) {
    static const char units[] = "kmg";
    char *copy = need_bytes(strlen(text) + 1), *unit;
    uint64_t value = 0;
    strcpy(copy, text);
    unit = copy + strspn(copy, "0123456789");
    const char *found = *unit && !unit[1] ? strchr(units, *unit | 32) : NULL;
    const int shift = found ? 10 * (int)(found - units + 1) : 0;
    if (found) *unit = '\0';
    int bad = read_unsigned("--memory", copy, 1, SIZE_MAX >> shift, &value);
    if (!bad) o->plan.memory_limit = (size_t)value << shift;
    free(copy);
    return bad;
}
static int set_dtype(command_options *o, const char *text) {
    o->has_dtype = 1;
    if (word_dtype_parse(text, &o->dtype) == 0) return 0;
    return refuse("--dtype expects f32, bf16, f16 or f64, not \"%s\"", text);
}
static int set_isa(command_options *o, const char *text) {
    if (strcmp(text, "auto") == 0) return o->plan.isa = BURST_ISA_AUTO, 0;
    for (int isa = BURST_ISA_SCALAR; isa <= BURST_ISA_AVX512BF16; isa++) {
        const char *name = burst_isa_name((burst_isa)isa);
        if (name && strcmp(name, text) == 0) return o->plan.isa = (burst_isa)isa, 0;
    }
    return refuse("--isa expects auto, scalar, avx2, avx512, avx512bf16, amx or neon, not \"%s\"", text);
}
/* A list of numbers; a benchmark takes them in turn. */
static int set_ranks(command_options *o, const char *text) {
    char *copy = need_bytes(strlen(text) + 1), *rest = copy;
    int bad = 0;
    strcpy(copy, text);
    o->rank_counts = 0;
    while (!bad && rest) {
        char *item = rest, *comma = strchr(rest, ',');
        uint64_t value = 0;
        rest = comma ? comma + 1 : NULL;
        if (comma) *comma = '\0';
        bad = read_unsigned("--ranks", item, 1, 1 << 20, &value);
        if (!bad && o->rank_counts == RANKS_LIST_MAX) bad = refuse("--ranks takes %d numbers at most", RANKS_LIST_MAX);
        if (!bad) o->ranks[o->rank_counts++] = (int)value;
    }
    free(copy);
    return bad;
}
static int set_transport(command_options *o, const char *text) {
    static const char *const names[] = {"auto", "threads", "mpi"};
    for (int n = 0; n < 3; n++)
        if (strcmp(text, names[n]) == 0) return o->transport = (crew_kind)n, 0;
    return refuse("--transport expects auto, threads or mpi, not \"%s\"", text);
}
static int set_partition(command_options *o, const char *text) {
    static const char *const names[] = {"auto", "contiguous", "zigzag", "striped"};
    for (int n = 0; n < 4; n++)
        if (strcmp(text, names[n]) == 0) return o->plan.partition = (burst_partition)n, 0;
    return refuse("--partition expects auto, contiguous, zigzag or striped, not \"%s\"", text);
}
static int read_side(const char *name, const char *text, burst_side *out) {
    static const char *const names[] = {"auto", "q", "k"};
    for (int n = 0; n < 3; n++)
        if (strcmp(text, names[n]) == 0) return *out = (burst_side)n, 0;
    return refuse("%s expects auto, q or k, not \"%s\"", name, text);
}
static int set_side_forward(command_options *o, const char *text) {
    return read_side("--side-forward", text, &o->plan.side_forward);
}
static int set_side_backward(command_options *o, const char *text) {
    return read_side("--side-backward", text, &o->plan.side_backward);
}
static int set_system(command_options *o, const char *text) {
    o->system_count = 0;
    while (1) {
        const size_t length = strcspn(text, ",");
        const system_kind *s = system_find(text, length);
        if (!s) {
            fprintf(stderr, "burst: --system \"%.*s\" is none of", (int)length, text);
            for (int n = 0; n < SYSTEMS; n++) fprintf(stderr, "%s %s", n ? "," : "", systems[n].name);
            fputs("; see burst --help\n", stderr);
            return EXIT_REFUSED;
        }
        for (int n = 0; n < o->system_count; n++)
            if (o->systems[n] == s) return refuse("--system names %s twice", s->name);
        o->systems[o->system_count++] = s;
        if (!text[length]) return 0;
        text += length + 1;
    }
}
static int set_unchecked(command_options *o, const char *text) { return (void)text, o->unchecked = 1, 0; }
static int set_strategy(command_options *o, const char *text) {
    static const char *const names[] = {"auto", "ring", "gather", "ulysses"};
    for (int n = 0; n < 4; n++)
        if (strcmp(text, names[n]) == 0) return o->plan.strategy = (burst_strategy)n, 0;
    return refuse("--strategy expects auto, ring, gather or ulysses, not \"%s\"", text);
}
static int set_send_o(command_options *o, const char *text) { return (void)text, o->plan.send_o = 1, 0; }
static int set_timeout(command_options *o, const char *text) {
    char *end;
    o->plan.timeout = strtod(text, &end);
    if (end != text && !*end && o->plan.timeout >= 0 && o->plan.timeout <= 1e9) return 0;
    return refuse("--timeout expects seconds from 0 (for ever) to 1e9, not \"%s\"", text);
}
static int set_no_overlap(command_options *o, const char *text) { return (void)text, o->plan.no_overlap = 1, 0; }
static int set_narrow(command_options *o, const char *text) { return (void)text, o->plan.narrow_gradients = 1, 0; }
static int set_list(command_options *o, const char *text) { return o->list = text, 0; }
static int set_json(command_options *o, const char *text) {
    (void)text;
    o->json = 1;
    return json_available() ? 0 : refuse("--json is not built into this command");
}
static int set_forward_only(command_options *o, const char *text) { return (void)text, o->forward_only = 1, 0; }
static int set_from_lse(command_options *o, const char *text) { return (void)text, o->from_lse = 1, 0; }
static int set_help(command_options *o, const char *text) { return (void)text, o->help = 1, 0; }
static int set_version(command_options *o, const char *text) { return (void)text, o->version = 1, 0; }

static const struct {
    const char *name;
    int has_value;
    int (*set)(command_options *o, const char *text);
} known[] = {
    {"--threads", 1, set_threads},
    {"--isa", 1, set_isa},
    {"--seed", 1, set_seed},
    {"--dtype", 1, set_dtype},
    {"--repeat", 1, set_repeat},
    {"--memory", 1, set_memory},
    {"--q-tile", 1, set_q_tile},
    {"--k-tile", 1, set_k_tile},
    {"--ranks", 1, set_ranks},
    {"--transport", 1, set_transport},
    {"--partition", 1, set_partition},
    {"--side-forward", 1, set_side_forward},
    {"--side-backward", 1, set_side_backward},
    {"--system", 1, set_system},
    {"--unchecked", 0, set_unchecked},
    {"--strategy", 1, set_strategy},
    {"--send-o", 0, set_send_o},
    {"--timeout", 1, set_timeout},
    {"--no-overlap", 0, set_no_overlap},
    {"--narrow-gradients", 0, set_narrow},
    {"--list", 1, set_list},
    {"--json", 0, set_json},
    {"--forward-only", 0, set_forward_only},
    {"--from-lse", 0, set_from_lse},
    {"--help", 0, set_help},
    {"-h", 0, set_help},
    {"--version", 0, set_version},
};

/* *next is moved on when the value is an argument of its own. */
static int read_option(command_options *o, const char *argument, char **rest, int *next) {
    size_t length = strcspn(argument, "=");
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strlen(known[i].name) != length || strncmp(known[i].name, argument, length) != 0) continue;
        const char *value = argument[length] ? argument + length + 1 : NULL;
        if (!known[i].has_value && value) return refuse("%s takes no value", known[i].name);
        if (known[i].has_value && !value) {
            value = rest[*next];
            if (!value) return refuse("%s needs a value", known[i].name);
            ++*next;
        }
        return known[i].set(o, value);
    }
    return refuse("unknown option \"%s\"", argument);
}

int command_parse(int count, char **arguments, command_options *out) {
    memset(out, 0, sizeof *out);
    out->plan = (burst_options)BURST_OPTIONS_INIT;
    out->seed = 1;
    out->words = need_array((size_t)count + 1, sizeof *out->words);
    int words_only = 0;
    for (int i = 1; i < count;) {
        const char *argument = arguments[i++];
        if (!words_only && strcmp(argument, "--") == 0) {
            words_only = 1;
        } else if (!words_only && argument[0] == '-' && argument[1]) {
            int bad = read_option(out, argument, arguments, &i);
            if (bad) return bad;
        } else if (!out->command) {
            out->command = argument;
        } else {
            out->words[out->word_count++] = argument;
        }
    }
    int checks = out->command && strcmp(out->command, "check") == 0;
    if (out->list && !checks) return refuse("--list is for burst check");
    if (out->from_lse && !checks) return refuse("--from-lse is for burst check");
    int benches = out->command && strcmp(out->command, "bench") == 0;
    if (out->repeat && !benches) return refuse("--repeat is for burst bench");
    if (out->rank_counts > 1 && !benches) return refuse("several numbers of --ranks are for burst bench");
    if (out->unchecked && !(benches && out->system_count)) return refuse("--unchecked is for burst bench --system");
    const burst_options *p = &out->plan;
    if (out->system_count &&
        (p->partition || p->side_forward || p->side_backward || p->strategy || p->send_o || p->narrow_gradients))
        return refuse("a system is a partition, a strategy and its sides: --system takes none of their options");
    const int plans = out->command && strcmp(out->command, "plan") == 0;
    if (out->system_count && !checks && !benches && !plans)
        return refuse("--system is for burst check, bench and plan");
    if (out->system_count && !benches && out->plan.memory_limit)
        return refuse("--memory with --system is for burst bench, which counts all that a rank holds");
    if (out->system_count > 1 && !benches) return refuse("several systems are for burst bench");
    if (out->system_count && out->from_lse) return refuse("--from-lse is the library's; --system takes it not");
    if (out->from_lse && out->forward_only) return refuse("--from-lse is about backward; --forward-only has none");
    return 0;
}

void command_free(command_options *options) {
    free(options->words);
    memset(options, 0, sizeof *options);
}

/* A word, an object, also for one that is refused: whoever reads them can count. */
static void print_refusal(const command_options *options, const char *text, burst_status status, const char *message) {
    if (!options->json) return;
    json *object = json_new();
    json_text(object, "word", text);
    json_bool(object, "ok", 0);
    json_text(object, "status", burst_status_name(status));
    json_text(object, "message", message);
    json_print(object);
}

int command_word(const command_options *options, const char *text, word *out) {
    char error[WORD_ERROR_SIZE];
    if (word_parse(text, out, error)) {
        fprintf(stderr, "burst: \"%s\": %s\n", text, error);
        print_refusal(options, text, BURST_INVALID, error);
        return EXIT_REFUSED;
    }
    if (options->has_dtype) out->dtype = options->dtype;
    return 0;
}

int command_ranks(const command_options *options) {
    if (options->rank_counts) return options->ranks[0];
    return crew_processes();
}

void command_complain(const command_options *options, const char *text, burst_status status) {
    fprintf(stderr, "burst: \"%s\": %s: %s\n", text, burst_status_name(status), burst_last_error());
    print_refusal(options, text, status, burst_last_error());
}
