/* info.c - the commands that only tell: help, `burst info`, `burst plan`. */
#include "command.h"
#include "json.h"
#include "need.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void command_usage(void) {
    fputs(
        "burst - exact softmax attention on CPUs: check it, measure it, look at its plan\n"
        "\n"
        "usage: burst COMMAND [OPTION...] [WORD...]\n"
        "\n"
        "  check WORD...   compare forward and backward with a double-precision oracle\n"
        "  bench WORD...   measure GFLOP/s beside this machine's FMA peak\n"
        "  plan WORD...    print the plan: kernels, tiles, threads, memory; with --ranks also who has and sends what\n"
        "  info            version, CPU, instruction sets, cores\n"
        "  demo [WORD]     one long causal attention over ranks: forward, backward, checked on sampled rows\n"
        "\n"
        "  --threads N     threads of a rank (default: the cores this process may use, shared out among its ranks)\n"
        "  --isa NAME      auto, scalar, avx2, avx512, avx512bf16, amx or neon\n"
        "  --seed N        of the data and of blocks= (default 1)\n"
        "  --dtype TYPE    f32, bf16, f16 or f64, instead of the word's\n"
        "  --memory BYTES  limit of the plan's workspace; 4k, 4m and 4g are KiB, MiB and GiB. With bench\n"
        "                  --system: of all that a rank holds, tensors too; a system that needs more says so\n"
        "  --q-tile N, --k-tile N   queries and keys of a forward tile (default: chosen)\n"
        "  --forward-only  no backward pass\n"
        "  --from-lse      check: backward from the plain lse instead of the statistics\n"
        "  --list FILE     check: one word per line, # begins a comment\n"
        "  --repeat N      bench: rounds (default 10, fewer or more to fit the time)\n"
        "\n"
        "Over several ranks, for check, bench, plan and demo. `mpirun -n 4 burst check WORD` makes every process a "
        "rank:\n"
        "  --ranks P       ranks that are threads of this process; bench: a list P,P,... to take turns\n"
        "  --transport T   auto, threads or mpi\n"
        "  --partition T   auto, contiguous, zigzag or striped: which tokens a rank has\n"
        "  --side-forward S, --side-backward S   auto, q or k: which side travels\n"
        "  --no-overlap    wait for every message before computing on\n"
        "  --strategy T    auto, ring, gather (all-gather of K and V) or ulysses (all-to-all over heads)\n"
        "  --send-o        with --side-backward q: o travels instead of D\n"
        "  --narrow-gradients  gradients travel in 16 bits (16-bit words only)\n"
        "  --timeout S     seconds to wait for a rank that shows no sign of life (default 300; 0: for ever)\n"
        "\n"
        "  --system NAME   for check, bench and plan: a way to distribute attention; bench: a list, in turn, each "
        "compared\n"
        "                  with the oracle first (not with --unchecked). One of flash, rsa, ring, ring-zigzag, "
        "ring-striped,\n"
        "                  burst, burst-q, burst-o, burst-gao, burst-serial, gather, ulysses\n"
        "\n"
        "  --json          one JSON object per line (not for demo)\n"
        "  --help, --version\n"
        "\n"
        "A word: b1h8g2n4096k8192d64v128:part:part... (batch, query heads, kv heads, query tokens, key tokens,\n"
        "head dim, value dim; g, k and v default to h, n and d). Parts, in any order:\n"
        "  f32 bf16 f16 f64  causal  window=L/R  prefix=P  sinktokens=S  align=start|end  docs=A/B/...  kdocs=A/B/...\n"
        "  blocks=SIZE/PROBABILITY  lengths=A/B/...  klengths=A/B/...  shared=QUESTION/ANSWER/...\n"
        "  slices=q0-q1xk0-k1@lo..hi,...  softcap=C  alibi  sink  scale=X  amp=X  layout=bnhd|bhnd|qkv\n"
        "\n"
        "Exit codes: 0 fine, 1 check failed, 2 usage or a refused problem, 3 run-time error.\n",
        stdout);
}

/* The CPU's name as Linux tells it; "unknown" elsewhere. */
static void cpu_name(char *name, size_t size) {
    snprintf(name, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "model name", 10) != 0) continue;
        char *value = strchr(line, ':');
        if (!value) continue;
        value += strspn(value, ": ");
        value[strcspn(value, "\n")] = '\0';
        snprintf(name, size, "%s", value);
        break;
    }
    if (file) fclose(file);
}

static int cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* Only a plan says what "auto" comes to. */
static burst_status chosen(const command_options *options, burst_dtype dtype, burst_isa *isa, int *threads) {
    burst_problem problem = BURST_PROBLEM_INIT;
    problem.dtype = dtype;
    problem.q_tokens = problem.k_tokens = 1;
    problem.head_dim = 1;
    burst_plan *plan = NULL;
    burst_status status = burst_plan_create(&problem, NULL, &options->plan, &plan);
    if (status != BURST_OK) return status;
    *isa = burst_plan_isa(plan);
    *threads = burst_plan_threads(plan);
    burst_plan_free(plan);
    return BURST_OK;
}

static void supported(char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int isa = BURST_ISA_SCALAR; isa <= BURST_ISA_AVX512BF16; isa++)
        if (burst_isa_supported((burst_isa)isa) && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? " " : "", burst_isa_name((burst_isa)isa));
}

int command_info(const command_options *options) {
    char cpu[200], isas[100];
    burst_isa isa, brief;
    int threads;
    if (options->word_count) {
        fprintf(stderr, "burst: info takes no word, but \"%s\" is given; see burst --help\n", options->words[0]);
        return EXIT_REFUSED;
    }
    burst_status status = chosen(options, BURST_BF16, &brief, &threads);
    if (status == BURST_OK) status = chosen(options, BURST_F32, &isa, &threads);
    if (status != BURST_OK) return command_complain(options, "info", status), EXIT_REFUSED;
    cpu_name(cpu, sizeof cpu);
    supported(isas, sizeof isas);
    if (options->json) {
        json *object = json_new();
        json_text(object, "version", burst_version());
        json_text(object, "cpu", cpu);
        json_text(object, "isas", isas);
        json_text(object, "isa", burst_isa_name(isa));
        json_text(object, "isa_bf16", burst_isa_name(brief));
        json_number(object, "cores", cores());
        json_number(object, "threads", threads);
        json_print(object);
        return EXIT_FINE;
    }
    printf("burst     %s\ncpu       %s\nisas      %s (built in and run by this CPU)\nisa       %s, for bf16 %s\n"
           "cores     %d\nthreads   %d\n",
           burst_version(), cpu, isas, burst_isa_name(isa), burst_isa_name(brief), cores(), threads);
    return EXIT_FINE;
}

static void plan_json(const char *canonical, const burst_plan *plan, int ranks, const char *description) {
    json *object = json_new();
    json_text(object, "word", canonical);
    json_number(object, "ranks", ranks);
    for (int pass = 0; pass < 2 && ranks > 1; pass++) {
        const unsigned flag = pass ? BURST_PASS_BACKWARD : BURST_PASS_FORWARD;
        json *bytes = json_child(object, pass ? "backward_bytes" : "forward_bytes");
        json_number(bytes, "q_side", (double)burst_plan_wire_bytes(plan, flag, BURST_SIDE_Q));
        json_number(bytes, "k_side", (double)burst_plan_wire_bytes(plan, flag, BURST_SIDE_K));
        json_number(bytes, "chosen", (double)burst_plan_wire_bytes(plan, flag, BURST_SIDE_AUTO));
    }
    json_text(object, "isa", burst_isa_name(burst_plan_isa(plan)));
    json_number(object, "threads", burst_plan_threads(plan));
    json_number(object, "pairs", (double)burst_plan_pairs(plan));
    json_number(object, "workspace_bytes", (double)burst_plan_workspace_bytes(plan));
    json_number(object, "stats_bytes", (double)burst_plan_stats_bytes(plan));
    json_text(object, "description", description);
    json_print(object);
}

static int plan_word(const command_options *options, const char *text) {
    word w;
    int code = command_word(options, text, &w);
    if (code) return code;
    word_problem problem;
    burst_plan *plan = NULL;
    burst_options how = options->plan;
    if (options->forward_only) how.passes = BURST_PASS_FORWARD;
    const system_kind *system = options->system_count ? options->systems[0] : NULL;
    if (system && system->rival) {
        fprintf(stderr, "burst: %s is not the library's: it has no plan to print; see burst --help\n", system->name);
        word_free(&w);
        return EXIT_REFUSED;
    }
    if (system) system_apply(system, &how);
    const int ranks = system && system->alone ? 1 : command_ranks(options);
    burst_transport *dry = NULL; /* nothing is run: one process can speak for all ranks */
    burst_status status = word_problem_make(&w, options->seed, &problem);
    if (status == BURST_OK) status = burst_transport_create_dry(0, ranks, &dry);
    if (status == BURST_OK) status = burst_plan_create(&problem.problem, dry, &how, &plan);
    char *canonical = word_text(&w);
    if (status == BURST_OK) {
        size_t length = burst_plan_describe(plan, NULL, 0);
        char *description = need_bytes(length + 1);
        burst_plan_describe(plan, description, length + 1);
        if (options->json)
            plan_json(canonical, plan, ranks, description);
        else
            printf("%s\n%s%s", canonical, description, length && description[length - 1] == '\n' ? "" : "\n");
        free(description);
    } else {
        command_complain(options, canonical, status);
        code = EXIT_REFUSED;
    }
    free(canonical);
    burst_plan_free(plan);
    burst_transport_free(dry);
    word_problem_free(&problem);
    word_free(&w);
    return code;
}

int command_plan(const command_options *options) {
    int worst = EXIT_FINE;
    if (!options->word_count) {
        fputs("burst: plan needs a word; see burst --help\n", stderr);
        return EXIT_REFUSED;
    }
    for (int i = 0; i < options->word_count; i++) {
        int code = plan_word(options, options->words[i]);
        if (code > worst) worst = code;
    }
    return worst;
}
