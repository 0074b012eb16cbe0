/* The tables of commands and options, the parser of command lines, and --help. */
#include "cli/cli.h"

#include <ctype.h>
#include <signal.h>
#include <string.h>

#include "base/text.h"
#include "config/options.h"
#include "report/results.h"
#include "report/findings.h"

enum { LEFT = 26 };       /* columns of the left part of a line of help */
enum { MANY = 1u << 30 }; /* no limit on the number of arguments */
enum { CONTEXT_NAME = 64, CONTEXT_MOST = 64, SWEEP_SETS = 5 };

static enum epa_status check_run_options(const struct cli *cli, struct epa_error *err)
{
    if (cli->order == RUNS_DECLARED && cli->shuffle)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--order declared does not use a seed: leave --shuffle out, or use "
                        "--order shuffled");
    if (cli->resume && cli->out_dir == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--resume needs the folder of the batch: --resume --out-dir DIR");
    return EPA_OK;
}

#define EXPERIMENTS 0, MANY, "files or names of configurations", check_run_options

const struct command commands[] = {
    {"run", "[FILE...]", "run experiments: stage times, traffic, routing", RUN, cmd_run,
     EXPERIMENTS},
    {"bench", "[FILE...]", "measure experiments: percentiles and bandwidths of every stage", BENCH,
     cmd_bench, EXPERIMENTS},
    {"verify", "[FILE...]", "run experiments and check every element of every iteration", VERIFY,
     cmd_verify, EXPERIMENTS},
    {"list", "[KIND]", "list plugins, and why one cannot be loaded; `list models`, `list configs`",
     LIST, cmd_list, 0, 1, "one argument at most", NULL},
    {"help", "[TOPIC]",
     "explain a key or a part of it, a plugin, its options, bandwidth or exit-codes", HELP,
     cmd_help, 0, 1, "one argument at most", NULL},
    {"config", "show|check|schema FILE...",
     "print resolved experiments, check them, or print their JSON Schema", CONFIG, cmd_config, 1,
     MANY, "show, check or schema, and files except for schema", cmd_config_check},
    {"best", "RESULTS...", "find the fastest run for each shape and number of tokens", BEST,
     cmd_best, 1, MANY, "results: files of --json or folders of --out-dir", NULL},
    {"tune", "FILE", "search the fastest options for an experiment on this machine", TUNE, cmd_tune,
     1, 1, "one file, such as configs/ll_v2-shm.yaml", check_run_options},
    {"predict", "FILE", "predict the times of a larger cluster from short runs here and a link",
     PREDICT, cmd_predict, 1, 1, "one file, such as configs/ll_v2-shm.yaml", cmd_predict_check},
    {"compare", "A.json B.json",
     "find slowdowns between two results, or between two experiments run in turns", COMPARE,
     cmd_compare, 2, 2,
     "two results, files of --json or folders of --out-dir, or two experiments with --run",
     cmd_compare_check},
    {"rerun", "RESULT.json", "run the experiment of a result again and compare the two", RERUN,
     cmd_rerun, 1, 1, "one file that --json wrote", NULL},
    {"import", "FILE...", "convert output of nccl-tests, ep_bench and DeepEP's tests to results",
     IMPORT, cmd_import, 1, MANY, "files with the output of these programs", NULL},
    {"plot", "RESULTS...", "draw charts of results: latency against tokens, samples, ranks, stages",
     PLOT, cmd_plot, 1, MANY, "results: files of --json or folders of --out-dir", cmd_plot_check},
    {"routing", "stats FILE", "print load, repeats and nearest generator of a captured routing",
     ROUTING, cmd_routing, 2, 2, "'stats' and one file, .npy or .jsonl", NULL},
    {"doctor", "", "report hardware, usable plugins and link peak of this machine", DOCTOR,
     cmd_doctor, 0, 0, "no argument", NULL},
    {"status", "[PID]", "print the state of the ranks of a running or hanging command", STATUS,
     cmd_status, 0, 1, "one argument at most", NULL},
    {"trace", "check|summary|merge|view FILE...",
     "check, summarize, merge or draw the traces of profile:", TRACE, cmd_trace, 2, MANY,
     "check, summary, merge or view, and files of profile:", cmd_trace_check},
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
static const struct epa_choice across[] = {{"layout", 0, NULL},  {"rows", 1, NULL},
                                           {"outputs", 2, NULL}, {"fused", 3, NULL},
                                           {"unknown", 4, NULL}, {0}};
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
               "`whens` serves both options");

/* Rows of the table: a flag, a flag with a letter, a value, a repeatable value. */
#define FLAG(option, field, of, what) \
    { \
        .is = {.name = option, EPA_BOOL(struct cli, field), .help = what}, .commands = of \
    }
#define LETTER(short_form, option, field, of, what) \
    { \
        .is = {.name = option, EPA_BOOL(struct cli, field), .help = what}, .commands = of, \
        .letter = short_form \
    }
#define VALUE(option, type, field, called, of, short_form, what, ...) \
    { \
        .is = {.name = option, EPA_##type(struct cli, field), .help = what, __VA_ARGS__}, \
        .value = called, .commands = of, .letter = short_form \
    }
#define WORDS(option, type, last, field, n, called, of, what, ...) \
    { \
        .is = {.name = option, EPA_##type(struct cli, last), .help = what, __VA_ARGS__}, \
        .value = called, .commands = of, .list = EPA_FIELD(const char **, struct cli, field), \
        .count = EPA_FIELD(uint32_t, struct cli, n) \
    }
#define TEXTS(option, field, n, called, of, what) \
    WORDS(option, STRING, last_text, field, n, called, of, what, .min = 0)

const struct option options[] = {
    TEXTS("--set", set, n_sets, "KEY=VALUE",
          FILES | CONFIG | RERUN | COMPARE | TUNE | PREDICT | IMPORT,
          "set a key of the experiment; may be repeated"),
    TEXTS("--model", model, n_models, "MODEL", FILES | CONFIG | COMPARE | TUNE | PREDICT,
          "shape of a model of 'list models'; several: a run each; NAME,NAME"),
    TEXTS("--context", context, n_context, "NAME=TEXT", FILES | RERUN,
          "note to add to all reports: --context switch=b; may be repeated"),
    VALUE("--json", STRING, json, "FILE",
          FILES | DOCTOR | RERUN | STATUS | BEST | COMPARE | ROUTING | TUNE | PREDICT | LIST |
              IMPORT,
          0, "write the results as JSON too; - is standard output", .min = 0),
    VALUE("--timeout", DURATION, timeout_ns, "DURATION", FILES | RERUN | COMPARE | TUNE | PREDICT,
          0, "longest wait, such as 500ms or 5s", .min = 1),
    TEXTS("--plugin-path", plugin_path, n_plugin_paths, "DIR", ANY,
          "folder to search for plugins first; may be repeated"),
    FLAG("--force", force,
         FILES | COMPARE | TRACE | DOCTOR | PLOT | RERUN | STATUS | BEST | ROUTING | TUNE |
             PREDICT | LIST | IMPORT,
         "overwrite an existing FILE or DIR; compare different experiments"),
    FLAG("--quiet", quiet, FILES | CONFIG | TRACE | RERUN,
         "print only errors and the final table of a batch"),
    FLAG("--dry-run", dry_run, FILES | RERUN, "check and list all runs without running them"),
    TEXTS("--only", only, n_only, "GLOB",
          FILES | PLOT | RERUN | BEST | COMPARE | CONFIG | TUNE | PREDICT,
          "only runs of this label or id; may be repeated"),
    VALUE("--order", CHOICE, order, "declared|interleaved|shuffled", FILES, 0,
          "order of runs; bench interleaves repetitions", .choices = orders),
    VALUE("--shuffle", U64, shuffle_seed, "SEED", FILES, 0,
          "seed of --order shuffled, which it implies; default 1", .min = 0, .max = INT64_MAX),
    FLAG("--fail-fast", fail_fast, FILES | RERUN, "stop at the first run that fails"),
    FLAG("--thorough", thorough, VERIFY,
         "verify: also variants of each run: shapes, ranks, orders, guards, 70,000 calls; minutes"),
    VALUE("--max-runs", U32, max_runs, "N", FILES | CONFIG | TUNE | PREDICT, 0,
          "maximum number of runs of a file; default 4096", .min = 1, .max = BATCH_RUNS_LIMIT),
    VALUE("--markdown", STRING, markdown, "FILE", FILES | RERUN | BEST | COMPARE | PREDICT, 0,
          "write the table as Markdown, one line per run", .min = 0),
    VALUE("--csv", STRING, csv, "FILE", FILES | RERUN | PREDICT, 0, "write one line per run as CSV",
          .min = 0),
    VALUE("--junit", STRING, junit, "FILE", FILES, 0,
          "write a test case per run as JUnit XML, for CI", .min = 0),
    VALUE("--openmetrics", STRING, openmetrics, "FILE", FILES, 0,
          "write percentiles and rates of all runs as OpenMetrics text", .min = 0),
    VALUE("--json-lines", STRING, json_lines, "FILE", FILES, 0,
          "write the JSON of each run on one line when it ends; or -", .min = 0),
    VALUE("--out-dir", STRING, out_dir, "DIR", FILES | TUNE, 0,
          "write all results to a folder; see 'help results'", .min = 0),
    FLAG("--resume", resume, FILES | TUNE, "run what remains of the batch or search in --out-dir"),
    FLAG("--run", turns, COMPARE, "compare: run two experiments in turns until it is decided"),
    VALUE("--budget", DURATION, budget_ns, "DURATION", COMPARE | TUNE, 0,
          "longest time of tune and of compare --run; default 60s", .min = 1),
    FLAG("--origin", origin, CONFIG, "show the source of each value of 'config show'"),
    VALUE("--threshold", REAL, threshold, "PERCENT", COMPARE | RERUN | BEST, 0,
          "tolerated change or loss of a median; default 3%", .least = 1e-9, .most = 100),
    VALUE("--alpha", REAL, alpha, "P", COMPARE | RERUN, 0,
          "compare: significance level, such as 0.01", .least = 1e-9, .most = 1),
    WORDS("--across", CHOICE, last_choice, across, n_across, "layout|rows|outputs|fused|unknown",
          BEST | TUNE, "best, tune: also compare runs that differ in this; may be repeated",
          .choices = across),
    TEXTS("--keys", keys, n_keys, "GLOB", TUNE,
          "tune: try only these options, such as 'algorithm.*'; may be repeated"),
    VALUE("--algorithms", STRING, algorithms, "NAME,NAME", TUNE, 0,
          "tune: also try these algorithms and their options", .min = 0),
    VALUE("--link", STRING, link, "RATE,LATENCY", PREDICT, 0,
          "predict: link between nodes: per rank 50GB/s,2us or per node 400GB/s,2us,node",
          .min = 0),
    VALUE("--cores", U32, cores, "N", PREDICT, 0,
          "predict: cores of a node; default: those of this machine", .min = 1, .max = 65536),
    VALUE("--sweep", STRING, sweep, "ranks=LOW:HIGH", PREDICT, 0,
          "predict: a row for each number of ranks, doubled", .min = 0),
    FLAG("--check", check, PREDICT, "predict: also measure the predicted world"),
    VALUE("--measured", STRING, measured, "RESULTS", PREDICT, 0,
          "predict: measured results to compare with the prediction", .min = 0),
    FLAG("--quick", quick, DOCTOR, "doctor: do not measure links"),
    VALUE("--out", STRING, out, "FILE", TRACE | PLOT | TUNE | PREDICT, 'o',
          "output of trace merge, view, plot, tune and predict; - is standard output", .min = 0),
    VALUE("--kind", CHOICE, kind, "auto|tokens|distribution|skew|stages", PLOT, 0,
          "plot: kind of chart; auto: chosen from the results", .choices = charts),
    VALUE("--stage", STRING, stage, "NAME", PLOT | BEST | TRACE, 0,
          "times of this stage, default total; trace merge: events of this stage alone", .min = 0),
    VALUE("--layer", U32, layer, "N", ROUTING, 0, "layer of a file with several layers", .min = 0,
          .max = 65535),
    VALUE("--experts", U32, experts, "N", ROUTING, 0,
          "number of experts; default: from the file's meta line, or from its largest expert",
          .min = 1, .max = 4096),
    FLAG("--results", results, CONFIG, "config schema: the schema of --json's output"),
    VALUE("--tokens-min", U64, tokens_min, "N", FILES, 'b',
          "smallest number of tokens of a sweep, one run each", .min = 1, .max = UINT32_MAX),
    VALUE("--tokens-max", U64, tokens_max, "N", FILES, 'e', "largest number of tokens of a sweep",
          .min = 1, .max = UINT32_MAX),
    VALUE("--tokens-factor", U64, tokens_factor, "N", FILES, 'f',
          "factor between two numbers of tokens; default 2", .min = 2, .max = UINT32_MAX),
    VALUE("--iterations", U64, iterations, "N", FILES, 'n',
          "short for --set bench.iterations=N (run., verify.)", .min = 1, .max = UINT32_MAX),
    VALUE("--warmup", U64, warmup, "N", BENCH, 'w', "short for --set bench.warmup=N", .min = 0,
          .max = UINT32_MAX),
    VALUE("--progress", CHOICE, progress, "auto|always|never",
          FILES | RERUN | COMPARE | TUNE | PREDICT, 0, "progress line; auto: on a terminal",
          .choices = whens),
    VALUE("--color", CHOICE, color, "auto|always|never", ANY, 0,
          "colour; auto: on a terminal, unless NO_COLOR is set", .choices = whens),
    LETTER('h', "--help", help, ANY, "print this help"),
    VALUE("--html", STRING, html, "FILE", FILES, 0,
          "write one page with the fastest run, tables, charts and machine", .min = 0),
    LETTER('V', "--version", version, ANY, "print the version and the plugin ABI"),
    {.is = {.name = NULL}},
};
_Static_assert(sizeof(options) / sizeof(options[0]) <= OPTIONS_MOST, "size of line.given");

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

/* ---- the parser ---- */

/* Checks the last --context: NAME=TEXT of one line, with a new name. */
static enum epa_status check_context(const struct cli *cli, struct epa_error *err)
{
    const char *word = cli->context[cli->n_context - 1], *at = strchr(word, '=');
    int bytes = at == NULL ? 0 : (int)(at - word);
    uint32_t point = 0;

    if (bytes == 0 || bytes > CONTEXT_NAME || (!isalpha((unsigned char)*word) && *word != '_'))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--context %.80s: expected NAME=TEXT with a name of 1 to %d letters, "
                        "digits, '_', '.' and '-': --context switch=b",
                        word, CONTEXT_NAME);
    for (const char *c = word; c < at; c++)
        if (!isalnum((unsigned char)*c) && strchr("_.-", *c) == NULL)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "--context %.*s: a name consists of letters, digits, '_', '.' and '-', "
                            "not '%c'",
                            bytes, word, *c);
    at = text_not_a_line(at + 1, &point);
    if (at != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--context %.*s: the text contains byte 0x%02x; it must be one line of "
                        "UTF-8",
                        bytes, word, (unsigned char)*at);
    for (uint32_t i = 0; i + 1 < cli->n_context; i++)
        if (strncmp(cli->context[i], word, (size_t)bytes + 1) == 0)
            return epa_fail(err, EPA_ERR_CONFIG, "--context %.*s is given more than once", bytes,
                            word);
    if (cli->n_context > CONTEXT_MOST)
        return epa_fail(err, EPA_ERR_CONFIG, "--context is given more than %d times", CONTEXT_MOST);
    return EPA_OK;
}

static enum epa_status unknown_option(const char *text, struct epa_error *err)
{
    struct nearest nearest = {.want = text};
    char name[64], hint[NEAREST_ROOM];

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
    nearest.want = name;
    for (const struct option *o = options; o->is.name != NULL && nearest.name == NULL; o++)
        if (name[1] != '-' && name[2] == '\0' && name[1] == o->is.name[2])
            nearest.name = o->is.name;
    if (nearest.name == NULL)
        nearest_try_table(&nearest, options, sizeof(*options));
    return epa_fail(err, EPA_ERR_CONFIG, "unknown option %s; %s", name,
                    nearest_hint(&nearest, hint, "'epa2a --help' lists them"));
}

static void *field_of(struct line *line, size_t offset)
{
    return (char *)&line->cli + offset;
}

/* Stores the value of an option in `line`. `value` is NULL only for flags. */
static enum epa_status store_value(struct line *line, const struct option *o, const char *value,
                                   struct epa_error *err)
{
    bool *given = &line->given[o - options];
    struct value_error why = {"", ""};

    if (*given && value != NULL && o->count == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s is given more than once", o->is.name);
    *given = true;
    if (value == NULL) {
        *(bool *)field_of(line, o->is.offset) = true;
    } else if (!option_parse(&o->is, value, &line->cli, &why)) {
        return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' %s; %s", o->is.name, value, why.what,
                        why.hint);
    } else if (o->count != 0) {
        const char ***list = field_of(line, o->list);
        uint32_t *n = field_of(line, o->count);

        (*list)[(*n)++] = value;
        if (list == &line->cli.context)
            return check_context(&line->cli, err);
    } else if (o->is.offset == offsetof(struct cli, threshold)) {
        line->cli.threshold /= strchr(value, '%') == NULL ? 100 : 1;
        if (line->cli.threshold > 1)
            return epa_fail(err, EPA_ERR_CONFIG, "%s: %s is out of range: above 0 to 100 %%",
                            o->is.name, value);
    }
    return EPA_OK;
}

/* Parses an option. `next` is the following argument or NULL; sets *used if `next` is the value. */
static enum epa_status read_option(struct line *line, const char *text, const char *next,
                                   bool *used, struct epa_error *err)
{
    const char *value = strchr(text, '=') != NULL ? strchr(text, '=') + 1 : NULL;
    const struct option *o = commands_option(text);

    *used = false;
    if (o == NULL)
        return unknown_option(text, err);
    if (o->value == NULL && value != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes no value", o->is.name);
    if (o->value != NULL && value == NULL && next != NULL && strncmp(next, "--", 2) != 0) {
        value = next;
        *used = true;
    }
    if (o->is.offset == offsetof(struct cli, json) && value == NULL &&
        (line->cli.version ||
         (line->command != NULL && (line->command->bit & (STATUS | LIST)) != 0)))
        value = "-"; /* --version --json, status PID --json, list models --json */
    if (o->value != NULL && (value == NULL || *value == '\0'))
        return epa_fail(err, EPA_ERR_CONFIG, "%s needs a value: %s %s", o->is.name, o->is.name,
                        o->value);
    return store_value(line, o, value, err);
}

static enum epa_status find_command(const char *name, const struct command **out,
                                    struct epa_error *err)
{
    struct nearest nearest = {.want = name};
    const char *dot = strrchr(name, '.');
    char hint[NEAREST_ROOM];

    for (const struct command *c = commands; c->name != NULL; c++) {
        if (strcmp(name, c->name) == 0) {
            *out = c;
            return EPA_OK;
        }
        nearest_try(&nearest, c->name);
    }
    if (nearest.name == NULL && dot != NULL &&
        (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "put a command before the file: 'epa2a run %s' or 'epa2a bench %s'", name,
                        name);
    return epa_fail(err, EPA_ERR_CONFIG, "unknown command '%s'; %s", name,
                    nearest_hint(&nearest, hint, "'epa2a --help' lists them"));
}

void line_init(struct line *line, int argc, char **argv)
{
    *line = (struct line){.cli = {.threshold = -1,
                                  .alpha = -1,
                                  .max_runs = BATCH_RUNS_MOST,
                                  .shuffle_seed = UINT64_MAX,
                                  .warmup = UINT64_MAX,
                                  .layer = UINT32_MAX,
                                  .line = argv},
                          .arena = arena_create()};
    /* Each list has room for all words of argv, the settings of a sweep and NULL. */
    line->cli.arg = arena_alloc(line->arena, (size_t)(argc > 0 ? argc : 1) * sizeof(char *));
    for (const struct option *o = options; o->is.name != NULL; o++)
        if (o->count != 0)
            *(const char ***)field_of(line, o->list) = arena_alloc(
                line->arena, ((size_t)(argc > 0 ? argc : 1) + SWEEP_SETS) * sizeof(char *));
}

enum epa_status line_take(struct line *line, const char *word, const char *next, bool *used,
                          struct epa_error *err)
{
    *used = false;
    if (!line->options_ended && strcmp(word, "--") == 0)
        line->options_ended = true;
    else if (!line->options_ended && word[0] == '-' && word[1] != '\0')
        return read_option(line, word, next, used, err);
    else if (line->command == NULL)
        return find_command(word, &line->command, err);
    else
        line->cli.arg[line->cli.n_args++] = word;
    return EPA_OK;
}

int cli_fail(const struct epa_error *err)
{
    fprintf(stderr, "epa2a: %s%s\n", err->text, text_remedy(err->text));
    return exit_code(err->status, SIGINT);
}

/* Adds an entry of help. A left part that is too long for its column gets a line of its own. */
static void add_help_line(struct text *out, const char *left, const char *help)
{
    if (strlen(left) >= LEFT) {
        text_add(out, "  %s\n", left);
        left = "";
    }
    text_add(out, "  %-*s %s\n", LEFT, left, help);
}

static void add_option_help(struct text *out, unsigned of)
{
    for (const struct option *o = options; o->is.name != NULL; o++) {
        char left[80];

        if ((o->commands & of) == 0)
            continue;
        snprintf(left, sizeof(left), "%s%s%s%s%s",
                 o->letter == 0 ? "" : (const char[]){'-', o->letter, 0},
                 o->letter == 0 ? "" : ", ", o->is.name, o->value == NULL ? "" : " ",
                 o->value == NULL ? "" : o->value);
        add_help_line(out, left, o->is.help);
    }
}

void commands_add(struct text *out)
{
    for (const struct command *command = commands; command->name != NULL; command++) {
        char left[80];

        snprintf(left, sizeof(left), "%s %s", command->name, command->args);
        add_help_line(out, left, command->help);
    }
}

void commands_add_help(const struct command *command, struct text *out)
{
    if (command != NULL) {
        text_add(out, "usage: epa2a %s %s [OPTION...]\n\n%s\n", command->name, command->args,
                 command->help);
        if ((command->bit & (FILES | CONFIG | TUNE | PREDICT)) != 0)
            text_add(out, "\nFILE is an experiment: a file, or a name of 'epa2a list configs'%s.\n",
                     (command->bit & FILES) != 0 ? "; without FILE: small" : "");
        text_add(out, "\nOptions:\n");
        add_option_help(out, command->bit);
        return;
    }
    text_add(out, "epa2a runs, verifies and measures the communication of mixture-of-experts "
                  "layers.\n\nusage: epa2a COMMAND [OPTION...]\n\nCommands:\n");
    commands_add(out);
    text_add(out,
             "\nOptions, before or after the command; 'epa2a COMMAND --help' lists the options of "
             "a command:\n");
    add_option_help(out, ANY);
    text_add(out, "\nA FILE of - is standard input; for an output option it is standard output.\n"
                  "Results go to standard output, everything else to standard error. "
                  "'epa2a help exit-codes' lists the exit codes.\n");
}
