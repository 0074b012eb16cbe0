/* The tables, and --help. */
#include "cli/commands.h"

#include <string.h>

enum { LEFT = 26 }; /* columns of what is explained */

const struct command commands[] = {
    {"run", "FILE...", "run experiments: stage times, traffic, routing", RUN, cmd_run},
    {"bench", "FILE...",
     "measure experiments: percentiles and bandwidths of every "
     "stage",
     BENCH, cmd_bench},
    {"verify", "FILE...", "run experiments and check every element of every iteration", VERIFY,
     cmd_verify},
    {"list", "[KIND]", "plugins, their requirements, and why one cannot be loaded", LIST, cmd_list},
    {"help", "[TOPIC]", "explain a key, a plugin, its options, bandwidth or exit-codes", HELP,
     cmd_help},
    {"config", "show|check|schema FILE...",
     "print resolved experiments, check them, or print their JSON Schema", CONFIG, cmd_config},
    {"compare", "A.json B.json", "compare two results and report significant changes", COMPARE,
     cmd_compare},
    {"rerun", "RESULT.json", "run the experiment of a result again and compare the two", RERUN,
     cmd_rerun},
    {"plot", "RESULTS...", "charts of results: latency against tokens, samples, ranks, stages",
     PLOT, cmd_plot},
    {"doctor", "", "hardware, usable plugins and link peak of this machine", DOCTOR, cmd_doctor},
    {"status", "[PID]", "state of the ranks of a running or hanging command", STATUS, cmd_status},
    {"trace", "check|summary|merge|view FILE...",
     "check, summarize, merge or draw the traces of profile:", TRACE, cmd_trace},
    {"completion", "bash|zsh|fish", "print the completion script of a shell", COMPLETION,
     cmd_completion},
    {0},
};

const struct option options[OPTIONS] = {
    [SET] = {"--set", "KEY=VALUE", "set a key of the experiment; may be repeated",
             FILES | CONFIG | RERUN},
    [CONTEXT] = {"--context", "NAME=TEXT",
                 "note for all reports: --context switch=b; may be repeated", FILES | RERUN},
    [JSON] = {"--json", "FILE", "write the results as JSON too; - is standard output",
              FILES | DOCTOR | RERUN | STATUS},
    [TIMEOUT] = {"--timeout", "DURATION", "longest wait, such as 500ms or 5s", FILES | RERUN},
    [PLUGIN_PATH] = {"--plugin-path", "DIR", "folder to search for plugins first; may be repeated",
                     ANY},
    [FORCE] = {"--force", NULL, "overwrite an existing FILE or DIR; compare different experiments",
               FILES | COMPARE | TRACE | DOCTOR | PLOT | RERUN | STATUS},
    [QUIET] = {"--quiet", NULL, "no table, no warnings, only errors",
               FILES | CONFIG | TRACE | RERUN},
    [DRY_RUN] = {"--dry-run", NULL, "check and list all runs without running them", FILES | RERUN},
    [ONLY] = {"--only", "GLOB", "only runs of this label or id; may be repeated",
              FILES | PLOT | RERUN},
    [ORDER] = {"--order", "declared|interleaved|shuffled",
               "order of runs; bench interleaves those that repeat", FILES},
    [SHUFFLE] = {"--shuffle", "SEED",
                 "seed of --order shuffled, which it implies; "
                 "default 1",
                 FILES},
    [FAIL_FAST] = {"--fail-fast", NULL, "stop at the first run that fails", FILES | RERUN},
    [MAX_RUNS] = {"--max-runs", "N", "maximum number of runs of a file; default 4096",
                  FILES | CONFIG},
    [MARKDOWN] = {"--markdown", "FILE", "write one line per run as Markdown", FILES | RERUN},
    [CSV] = {"--csv", "FILE", "write one line per run as CSV", FILES | RERUN},
    [JSON_LINES] = {"--json-lines", "FILE",
                    "write the JSON of each run on one line when it ends; or -", FILES},
    [OUT_DIR] = {"--out-dir", "DIR", "write all results to a folder; see 'help results'", FILES},
    [RESUME] = {"--resume", NULL, "run what remains of the batch in --out-dir", FILES},
    [RUN_LABEL] = {"--run", "LABEL", "config show: this run, by label or id", CONFIG},
    [ORIGIN] = {"--origin", NULL, "show the source of each value of 'config show'", CONFIG},
    [THRESHOLD] = {"--threshold", "PERCENT", "compare: tolerated change of a median, such as 3%",
                   COMPARE | RERUN},
    [ALPHA] = {"--alpha", "P", "compare: significance level, such as 0.01", COMPARE | RERUN},
    [QUICK] = {"--quick", NULL, "doctor: leave out measuring links", DOCTOR},
    [OUT] = {"--out", "FILE", "output of trace merge, view and plot; - is standard output",
             TRACE | PLOT, 'o'},
    [KIND] = {"--kind", "auto|tokens|distribution|skew|stages",
              "plot: kind of chart; auto: chosen from the results", PLOT},
    [STAGE] = {"--stage", "NAME", "plot: times of this stage; default total", PLOT},
    [RESULTS] = {"--results", NULL, "config schema: the schema of --json's output", CONFIG},
    [TOKENS_MIN] = {"--tokens-min", "N", "smallest number of tokens of a sweep, one run each",
                    FILES, 'b'},
    [TOKENS_MAX] = {"--tokens-max", "N", "largest number of tokens of a sweep", FILES, 'e'},
    [TOKENS_FACTOR] = {"--tokens-factor", "N",
                       "factor between two numbers of tokens; "
                       "default 2",
                       FILES, 'f'},
    [ITERATIONS] = {"--iterations", "N", "short for --set bench.iterations=N, run. or verify.",
                    FILES, 'n'},
    [WARMUP] = {"--warmup", "N", "short for --set bench.warmup=N", BENCH, 'w'},
    [PROGRESS] = {"--progress", "auto|always|never", "progress line; auto: on a terminal",
                  FILES | RERUN},
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

        if (is_short || (strlen(option->name) == bytes && memcmp(option->name, word, bytes) == 0))
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
                 option->letter == 0 ? "" : ", ", option->name, option->value == NULL ? "" : " ",
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
        printf("usage: epa2a %s %s [OPTION...]\n\n%s\n\nOptions:\n", command->name, command->args,
               command->help);
        print_options(stdout, command->bit);
        return;
    }
    printf("epa2a runs, verifies and measures the communication of mixture-of-experts "
           "layers.\n\nusage: epa2a COMMAND [OPTION...]\n\nCommands:\n");
    commands_print(stdout);
    printf("\nOptions, before or behind the command; 'epa2a COMMAND --help' lists its own:\n");
    print_options(stdout, ANY);
    printf("\nResults go to standard output, everything else to standard error. "
           "'epa2a help exit-codes'\nsays what the exit codes mean.\n");
}
