/* The tables, and --help. */
#include "cli/commands.h"

#include <string.h>

enum { LEFT = 26 }; /* columns of what is explained */

const struct command commands[] = {
    {"run", "FILE...", "run experiments: stage times, traffic, routing", RUN, cmd_run},
    {"bench", "FILE...", "measure them: percentiles and bandwidths of every stage", BENCH,
     cmd_bench},
    {"verify", "FILE...", "check every element of every iteration", VERIFY, cmd_verify},
    {"list", "[KIND]", "plugins, what they need, and why one cannot be loaded", LIST,
     cmd_list},
    {"help", "[TOPIC]", "explain a key, a plugin, its options, bandwidth or exit-codes",
     HELP, cmd_help},
    {"config", "show|check|schema FILE...",
     "print experiments as they are resolved, check them, or print their JSON Schema",
     CONFIG, cmd_config},
    {"compare", "A.json B.json", "what became slower or faster from A to B", COMPARE,
     cmd_compare},
    {"rerun", "RESULT.json", "run what a result holds once more, and compare the two",
     RERUN, cmd_rerun},
    {"plot", "RESULTS...",
     "charts of results: latency against tokens, samples, ranks, stages", PLOT, cmd_plot},
    {"doctor", "", "what this machine has, what can run here, and how fast it is", DOCTOR,
     cmd_doctor},
    {"status", "[PID]", "where the ranks of a command that runs, or hangs, are", STATUS,
     cmd_status},
    {"trace", "check|summary|merge|pack|view FILE...",
     "what profile: wrote: check it, say where time went, make it one, pack or draw it",
     TRACE, cmd_trace},
    {"completion", "bash|zsh|fish", "print the script that makes a shell complete epa2a",
     COMPLETION, cmd_completion},
    {0},
};

const struct option options[OPTIONS] = {
    [SET] = {"--set", "KEY=VALUE", "set a key of the experiment; may be repeated",
             FILES | CONFIG | RERUN},
    [CONTEXT] = {"--context", "NAME=TEXT",
                 "a note for all reports: --context switch=b; may be repeated",
                 FILES | RERUN},
    [JSON] = {"--json", "FILE", "write the results as JSON too; - is standard output",
              FILES | DOCTOR | RERUN | STATUS},
    [TIMEOUT] = {"--timeout", "DURATION", "longest wait, such as 500ms or 5s",
                 FILES | RERUN},
    [PLUGIN_PATH] = {"--plugin-path", "DIR",
                     "look for plugins in this folder first; may be repeated", ANY},
    [FORCE] = {"--force", NULL, "write over an existing FILE or DIR; compare what differs",
               FILES | COMPARE | TRACE | DOCTOR | PLOT | RERUN | STATUS},
    [QUIET] = {"--quiet", NULL, "no table, no warnings, only errors",
               FILES | CONFIG | TRACE | RERUN},
    [DRY_RUN] = {"--dry-run", NULL, "check all and list the runs, and run none",
                 FILES | RERUN},
    [ONLY] = {"--only", "GLOB", "only runs of that label or id; may be repeated",
              FILES | PLOT | RERUN},
    [ORDER] = {"--order", "declared|interleaved|shuffled",
               "order of runs; bench interleaves those that repeat", FILES},
    [SHUFFLE] = {"--shuffle", "SEED", "seed of that order, else 1; alone: shuffled", FILES},
    [FAIL_FAST] = {"--fail-fast", NULL, "end with the first run that fails", FILES | RERUN},
    [MAX_RUNS] = {"--max-runs", "N", "runs that a file may ask for; else 4096",
                  FILES | CONFIG},
    [MARKDOWN] = {"--markdown", "FILE", "write a line for each run as Markdown",
                  FILES | RERUN},
    [CSV] = {"--csv", "FILE", "write a line for each run as CSV", FILES | RERUN},
    [JSON_LINES] = {"--json-lines", "FILE",
                    "write the JSON of each run when it ends, a line each; or -", FILES},
    [OUT_DIR] = {"--out-dir", "DIR", "keep all results in a folder; see 'help results'",
                 FILES},
    [RESUME] = {"--resume", NULL, "go on with the batch in --out-dir: what is not done",
                FILES},
    [RUN_LABEL] = {"--run", "LABEL", "of 'config show': this run, by label or id", CONFIG},
    [ORIGIN] = {"--origin", NULL, "say where each value of 'config show' came from",
                CONFIG},
    [THRESHOLD] = {"--threshold", "PERCENT",
                   "compare: by how much a median may move, such as 3%", COMPARE | RERUN},
    [ALPHA] = {"--alpha", "P", "compare: how likely chance may be, such as 0.01",
               COMPARE | RERUN},
    [QUICK] = {"--quick", NULL, "doctor: measure for a tenth of a second, on less memory",
               DOCTOR},
    [OUT] = {"--out", "FILE",
             "where trace merge, pack, view and plot write; - is standard output",
             TRACE | PLOT, 'o'},
    [KIND] = {"--kind", "auto|tokens|distribution|skew|stages",
              "plot: which chart; auto: by what the results hold", PLOT},
    [STAGE] = {"--stage", "NAME", "plot: times of this stage; else of total", PLOT},
    [RESULTS] = {"--results", NULL, "of 'config schema': of what --json writes", CONFIG},
    [TOKENS_MIN] = {"--tokens-min", "N",
                    "a run for each number of tokens, from this one up", FILES, 'b'},
    [TOKENS_MAX] = {"--tokens-max", "N", "to this one", FILES, 'e'},
    [TOKENS_FACTOR] = {"--tokens-factor", "N", "each so many times the one before; else 2",
                       FILES, 'f'},
    [ITERATIONS] = {"--iterations", "N",
                    "short for --set bench.iterations=N, run. or verify.", FILES, 'n'},
    [WARMUP] = {"--warmup", "N", "short for --set bench.warmup=N", BENCH, 'w'},
    [PROGRESS] = {"--progress", "auto|always|never",
                  "a line that says how far it is; auto: on a terminal", FILES | RERUN},
    [COLOR] = {"--color", "auto|always|never",
               "colour; auto: on a terminal, unless NO_COLOR is set", ANY},
    [HELP_OPTION] = {"--help", NULL, "print this", ANY},
    [VERSION_OPTION] = {"--version", NULL, "print the version and the plugin ABI", ANY},
};

uint32_t commands_count(void)
{
    uint32_t n = 0;

    while (commands[n].name != NULL)
        n++;
    return n;
}

const struct option *commands_option(const char *word)
{
    size_t bytes = strcspn(word, "=");

    for (const struct option *option = options; option < options + OPTIONS; option++) {
        bool is_short = bytes == 2 && word[0] == '-' && word[1] == option->letter;

        if (is_short ||
            (strlen(option->name) == bytes && memcmp(option->name, word, bytes) == 0))
            return option;
    }
    return NULL;
}

/* What is too long for its column has a line of its own. */
static void print_line(FILE *to, const char *left, const char *help)
{
    if (strlen(left) > LEFT) {
        fprintf(to, "  %s\n", left);
        left = "";
    }
    fprintf(to, "  %-*s %s\n", LEFT, left, help);
}

static void print_options(FILE *to, unsigned of)
{
    for (const struct option *option = options; option < options + OPTIONS; option++) {
        char left[80];

        if ((option->commands & of) == 0)
            continue;
        snprintf(left, sizeof(left), "%s%s%s%s%s",
                 option->letter == 0 ? "" : (const char[]){'-', option->letter, 0},
                 option->letter == 0 ? "" : ", ", option->name,
                 option->value == NULL ? "" : " ",
                 option->value == NULL ? "" : option->value);
        print_line(to, left, option->help);
    }
}

void commands_print(FILE *to)
{
    for (const struct command *command = commands; command->name != NULL; command++) {
        char left[80];

        snprintf(left, sizeof(left), "%s %s", command->name, command->args);
        print_line(to, left, command->help);
    }
}

void commands_print_help(const struct command *command)
{
    if (command != NULL) {
        printf("usage: epa2a %s %s [OPTION...]\n\n%s\n\nOptions:\n", command->name,
               command->args, command->help);
        print_options(stdout, command->bit);
        return;
    }
    printf("epa2a runs, verifies and measures the communication of mixture-of-experts "
           "layers.\n\nusage: epa2a COMMAND [OPTION...]\n\nCommands:\n");
    commands_print(stdout);
    printf(
        "\nOptions, before or behind the command; 'epa2a COMMAND --help' lists its own:\n");
    print_options(stdout, ANY);
    printf("\nResults go to standard output, everything else to standard error. "
           "'epa2a help exit-codes'\nsays what the exit codes mean.\n");
}
