/* The tables, and --help. */
#include "cli/cli.h"

#include <signal.h>
#include <string.h>

#include "base/file.h"
#include "report/plot.h"

enum { LEFT = 26 };          /* columns of what is explained */
enum { MANY = 1u << 30 };    /* arguments */
enum { RUNS_MOST = 100000 }; /* each run takes some memory before the first begins */

static enum epa_status check_runs(const struct cli *cli, struct epa_error *err)
{
    if (cli->order == RUNS_DECLARED && cli->shuffle)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--order declared has no use for a seed: leave --shuffle out, or "
                        "write --order shuffled");
    if (cli->resume && cli->out_dir == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--resume needs the folder of the batch: --resume --out-dir DIR");
    return EPA_OK;
}

#define EXPERIMENTS 1, MANY, "a file or more, such as configs/ll_v2-shm.yaml", check_runs

const struct command commands[] = {
    {"run", "FILE...", "run experiments: stage times, traffic, routing", RUN, cmd_run, EXPERIMENTS},
    {"bench", "FILE...", "measure experiments: percentiles and bandwidths of every stage", BENCH,
     cmd_bench, EXPERIMENTS},
    {"verify", "FILE...", "run experiments and check every element of every iteration", VERIFY,
     cmd_verify, EXPERIMENTS},
    {"list", "[KIND]", "plugins, their requirements, and why one cannot be loaded", LIST, cmd_list,
     0, 1, "one argument at most", NULL},
    {"help", "[TOPIC]", "explain a key, a plugin, its options, bandwidth or exit-codes", HELP,
     cmd_help, 0, 1, "one argument at most", NULL},
    {"config", "show|check|schema FILE...",
     "print resolved experiments, check them, or print their JSON Schema", CONFIG, cmd_config, 0,
     MANY, "", cmd_config_check},
    {"best", "RESULTS...", "which run is fastest for each shape and number of tokens", BEST,
     cmd_best, 1, MANY, "results: files of --json or folders of --out-dir", cmd_best_check},
    {"compare", "A.json B.json",
     "compare two results, or run two experiments in turns: what became slower", COMPARE,
     cmd_compare, 2, 2,
     "two results, files of --json or folders of --out-dir, or two experiments with --run",
     cmd_compare_check},
    {"rerun", "RESULT.json", "run the experiment of a result again and compare the two", RERUN,
     cmd_rerun, 1, 1, "one file that --json wrote", NULL},
    {"plot", "RESULTS...", "charts of results: latency against tokens, samples, ranks, stages",
     PLOT, cmd_plot, 0, MANY, "", cmd_plot_check},
    {"doctor", "", "hardware, usable plugins and link peak of this machine", DOCTOR, cmd_doctor, 0,
     0, "no argument", NULL},
    {"status", "[PID]", "state of the ranks of a running or hanging command", STATUS, cmd_status, 0,
     1, "one argument at most", NULL},
    {"trace", "check|summary|merge|view FILE...",
     "check, summarize, merge or draw the traces of profile:", TRACE, cmd_trace, 0, MANY, "",
     cmd_trace_check},
    {"completion", "bash|zsh|fish", "print the completion script of a shell", COMPLETION,
     cmd_completion, 1, 1, "the name of a shell", NULL},
    {0},
};

static const struct epa_choice orders[] = {
    {"declared", RUNS_DECLARED, NULL},
    {"interleaved", RUNS_INTERLEAVED, NULL},
    {"shuffled", RUNS_SHUFFLED, NULL},
    {0},
};
static const struct epa_choice charts[] = {
    {"auto", PLOT_AUTO, NULL},
    {"tokens", PLOT_TOKENS, NULL},
    {"distribution", PLOT_DISTRIBUTION, NULL},
    {"skew", PLOT_SKEW, NULL},
    {"stages", PLOT_STAGES, NULL},
    {0},
};
static const struct epa_choice whens[] = {
    {"auto", PROGRESS_AUTO, NULL},
    {"always", PROGRESS_ALWAYS, NULL},
    {"never", PROGRESS_NEVER, NULL},
    {0},
};
_Static_assert((int)PROGRESS_AUTO == (int)COLOUR_AUTO &&
                   (int)PROGRESS_ALWAYS == (int)COLOUR_ALWAYS &&
                   (int)PROGRESS_NEVER == (int)COLOUR_NEVER,
               "both are as `whens`");

/* Rows: a flag, a value within bounds or of choices, what may be repeated. */
#define FLAG(option, field, of, what) \
    { \
        .is = {.name = option, EPA_BOOL(struct cli, field), .help = what}, .commands = of \
    }
#define VALUE(option, type, field, called, of, short_form, what, ...) \
    { \
        .is = {.name = option, EPA_##type(struct cli, field), .help = what, __VA_ARGS__}, \
        .value = called, .commands = of, .letter = short_form \
    }
#define WORDS(option, field, n, called, of, what) \
    { \
        .is = {.name = option, \
               .type = EPA_OPTION_STRING, \
               .help = what, \
               .offset = EPA_FIELD(const char **, struct cli, field)}, \
        .value = called, .commands = of, .count = EPA_FIELD(uint32_t, struct cli, n) \
    }

const struct option options[] = {
    WORDS("--set", set, n_sets, "KEY=VALUE", FILES | CONFIG | RERUN | COMPARE,
          "set a key of the experiment; may be repeated"),
    WORDS("--context", context, n_context, "NAME=TEXT", FILES | RERUN,
          "note for all reports: --context switch=b; may be repeated"),
    VALUE("--json", STRING, json, "FILE", FILES | DOCTOR | RERUN | STATUS | BEST | COMPARE, 0,
          "write the results as JSON too; - is standard output", .min = 0),
    VALUE("--timeout", DURATION, timeout_ns, "DURATION", FILES | RERUN | COMPARE, 0,
          "longest wait, such as 500ms or 5s", .min = 1),
    WORDS("--plugin-path", plugin_path, n_plugin_paths, "DIR", ANY,
          "folder to search for plugins first; may be repeated"),
    FLAG("--force", force, FILES | COMPARE | TRACE | DOCTOR | PLOT | RERUN | STATUS | BEST,
         "overwrite an existing FILE or DIR; compare different experiments"),
    FLAG("--quiet", quiet, FILES | CONFIG | TRACE | RERUN,
         "only errors, and of a batch its table at the end"),
    FLAG("--dry-run", dry_run, FILES | RERUN, "check and list all runs without running them"),
    WORDS("--only", only, n_only, "GLOB", FILES | PLOT | RERUN | BEST | COMPARE | CONFIG,
          "only runs of this label or id; may be repeated"),
    VALUE("--order", CHOICE, order, "declared|interleaved|shuffled", FILES, 0,
          "order of runs; bench interleaves those that repeat", .choices = orders),
    VALUE("--shuffle", U64, shuffle_seed, "SEED", FILES, 0,
          "seed of --order shuffled, which it implies; default 1", .min = 0, .max = INT64_MAX),
    FLAG("--fail-fast", fail_fast, FILES | RERUN, "stop at the first run that fails"),
    VALUE("--max-runs", U32, max_runs, "N", FILES | CONFIG, 0,
          "maximum number of runs of a file; default 4096", .min = 1, .max = RUNS_MOST),
    VALUE("--markdown", STRING, markdown, "FILE", FILES | RERUN | BEST | COMPARE, 0,
          "write the table as Markdown, one line per run", .min = 0),
    VALUE("--csv", STRING, csv, "FILE", FILES | RERUN, 0, "write one line per run as CSV",
          .min = 0),
    VALUE("--json-lines", STRING, json_lines, "FILE", FILES, 0,
          "write the JSON of each run on one line when it ends; or -", .min = 0),
    VALUE("--out-dir", STRING, out_dir, "DIR", FILES, 0,
          "write all results to a folder; see 'help results'", .min = 0),
    FLAG("--resume", resume, FILES, "run what remains of the batch in --out-dir"),
    FLAG("--run", turns, COMPARE, "compare: run two experiments in turns until it is decided"),
    VALUE("--budget", DURATION, budget_ns, "DURATION", COMPARE, 0,
          "longest time of compare --run; default 60s", .min = 1),
    FLAG("--origin", origin, CONFIG, "show the source of each value of 'config show'"),
    VALUE("--threshold", REAL, threshold, "PERCENT", COMPARE | RERUN | BEST, 0,
          "tolerated change or loss of a median; default 3%", .least = 1e-9, .most = 100),
    VALUE("--alpha", REAL, alpha, "P", COMPARE | RERUN, 0,
          "compare: significance level, such as 0.01", .least = 1e-9, .most = 1),
    WORDS("--across", across, n_across, "layout|rows|outputs|fused", BEST,
          "best: compare also runs that differ in this; may be repeated"),
    FLAG("--quick", quick, DOCTOR, "doctor: leave out measuring links"),
    VALUE("--out", STRING, out, "FILE", TRACE | PLOT, 'o',
          "output of trace merge, view and plot; - is standard output", .min = 0),
    VALUE("--kind", CHOICE, kind, "auto|tokens|distribution|skew|stages", PLOT, 0,
          "plot: kind of chart; auto: chosen from the results", .choices = charts),
    VALUE("--stage", STRING, stage, "NAME", PLOT | BEST, 0, "times of this stage; default total",
          .min = 0),
    FLAG("--results", results, CONFIG, "config schema: the schema of --json's output"),
    VALUE("--tokens-min", U64, tokens_min, "N", FILES, 'b',
          "smallest number of tokens of a sweep, one run each", .min = 1, .max = UINT32_MAX),
    VALUE("--tokens-max", U64, tokens_max, "N", FILES, 'e', "largest number of tokens of a sweep",
          .min = 1, .max = UINT32_MAX),
    VALUE("--tokens-factor", U64, tokens_factor, "N", FILES, 'f',
          "factor between two numbers of tokens; default 2", .min = 2, .max = UINT32_MAX),
    VALUE("--iterations", U64, iterations, "N", FILES, 'n',
          "short for --set bench.iterations=N, run. or verify.", .min = 1, .max = UINT32_MAX),
    VALUE("--warmup", U64, warmup, "N", BENCH, 'w', "short for --set bench.warmup=N", .min = 0,
          .max = UINT32_MAX),
    VALUE("--progress", CHOICE, progress, "auto|always|never", FILES | RERUN | COMPARE, 0,
          "progress line; auto: on a terminal", .choices = whens),
    VALUE("--color", CHOICE, color, "auto|always|never", ANY, 0,
          "colour; auto: on a terminal, unless NO_COLOR is set", .choices = whens),
    FLAG("--help", help, ANY, "print this"),
    FLAG("--version", version, ANY, "print the version and the plugin ABI"),
    {.is = {.name = NULL}},
};
_Static_assert(sizeof(options) / sizeof(options[0]) <= OPTIONS_MOST, "room for what was given");

const struct option *commands_option(const char *word)
{
    size_t bytes = strcspn(word, "=");

    for (const struct option *o = options; o->is.name != NULL; o++) {
        bool is_short = bytes == 2 && word[0] == '-' && word[1] == o->letter;

        if (is_short || (strlen(o->is.name) == bytes && memcmp(o->is.name, word, bytes) == 0))
            return o;
    }
    return NULL;
}

int cli_fail(const struct epa_error *err)
{
    fprintf(stderr, "epa2a: %s\n", err->text);
    return exit_code(err->status, SIGINT);
}

enum epa_status cli_write_json(const struct cli *cli, json_t *document, struct epa_error *err)
{
    struct text out = {0};
    enum epa_status status;

    if (!json_write(&out, document, JSON_INDENT(2)))
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the JSON of %s", cli->json);
    text_add(&out, "\n");
    status = file_write("--json", cli->json, cli->force, &out, err);
    text_free(&out);
    return status;
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
    for (const struct option *o = options; o->is.name != NULL; o++) {
        char left[80];

        if ((o->commands & of) == 0)
            continue;
        snprintf(left, sizeof(left), "%s%s%s%s%s",
                 o->letter == 0 ? "" : (const char[]){'-', o->letter, 0},
                 o->letter == 0 ? "" : ", ", o->is.name, o->value == NULL ? "" : " ",
                 o->value == NULL ? "" : o->value);
        print_line(to, left, o->is.help);
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
