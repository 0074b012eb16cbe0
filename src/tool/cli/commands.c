/* The tables of commands and options. */
#include "cli/commands.h"

#include <string.h>

#include "base/terminal.h"
#include "cli/cli.h"
#include "cli/cmd_bench.h"
#include "cli/cmd_best.h"
#include "cli/cmd_compare.h"
#include "cli/cmd_completion.h"
#include "cli/cmd_config.h"
#include "cli/cmd_doctor.h"
#include "cli/cmd_help.h"
#include "cli/cmd_import.h"
#include "cli/cmd_list.h"
#include "cli/cmd_plot.h"
#include "cli/cmd_predict.h"
#include "cli/cmd_routing.h"
#include "cli/cmd_run.h"
#include "cli/cmd_status.h"
#include "cli/cmd_trace.h"
#include "cli/cmd_tune.h"
#include "cli/cmd_verify.h"
#include "experiment/batch.h"
#include "report/results.h"

enum { MANY = 1u << 30 }; /* no limit on the number of arguments */

static enum epa_status check_run_options(const struct cli *cli, struct epa_error *err)
{
    if (cli->batch.order == RUNS_DECLARED && cli->batch.shuffle)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--order declared does not use a seed: leave --shuffle out, or use "
                        "--order shuffled");
    if (cli->resume && cli->out_dir == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--resume needs the folder of the batch: --resume --out-dir DIR");
    return EPA_OK;
}

#define EXPERIMENTS 0, MANY, "files, names of configurations, or one result", check_run_options

const struct command commands[] = {
    {"run", "[FILE...]", "run experiments: stage times, traffic, routing", RUN, cmd_run,
     EXPERIMENTS},
    {"bench", "[FILE...]",
     "measure experiments, or a result again: percentiles and bandwidths of every stage", BENCH,
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
    {"import", "FILE...",
     "convert output of other benchmarks to results, and routing of engines to a file", IMPORT,
     cmd_import, 1, MANY, "files with the output of these programs", NULL},
    {"plot", "RESULTS...", "draw charts of results: latency against tokens, samples, ranks, stages",
     PLOT, cmd_plot, 1, MANY, "results: files of --json or folders of --out-dir", cmd_plot_check},
    {"routing", "stats FILE", "print load, repeats and nearest generator of a captured routing",
     ROUTING, cmd_routing, 2, 2, "'stats' and one file, .npy or .jsonl", NULL},
    {"doctor", "", "report hardware, usable plugins and link peak of this machine", DOCTOR,
     cmd_doctor, 0, 0, "no argument", NULL},
    {"status", "[PID]", "print the state of the ranks of a running or hanging command", STATUS,
     cmd_status, 0, 1, "one argument at most", NULL},
    {"trace", "summary|merge FILE...", "summarize or merge the traces of profile:", TRACE,
     cmd_trace, 2, MANY, "summary or merge, and files of profile:", cmd_trace_check},
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
    WORDS(option, STRING, last.text, field, n, called, of, what, .min = 0)

const struct option options[] = {
    TEXTS("--set", set, n_sets, "KEY=VALUE", FILES | CONFIG | COMPARE | TUNE | PREDICT | IMPORT,
          "set a key of the experiment; may be repeated"),
    TEXTS("--model", settings.model, settings.n_models, "MODEL",
          FILES | CONFIG | COMPARE | TUNE | PREDICT,
          "shape of a model of 'list models'; several: a run each; NAME,NAME"),
    TEXTS("--context", batch.context, batch.n_context, "NAME=TEXT", FILES,
          "note to add to all reports: --context switch=b; may be repeated"),
    VALUE("--json", STRING, json, "FILE",
          FILES | DOCTOR | STATUS | BEST | COMPARE | ROUTING | TUNE | PREDICT | LIST | IMPORT, 0,
          "write the results as JSON too; - is standard output", .min = 0),
    VALUE("--timeout", DURATION, settings.timeout_ns, "DURATION", FILES | COMPARE | TUNE | PREDICT,
          0, "longest wait, such as 500ms or 5s", .min = 1),
    FLAG("--api", settings.api, FILES,
         "short for --set api=calls: call the public interface epa2a.h; see 'help calling'"),
    TEXTS("--plugin-path", plugin_path, n_plugin_paths, "DIR", ANY,
          "folder to search for plugins first; may be repeated"),
    FLAG("--force", force,
         FILES | COMPARE | TRACE | DOCTOR | PLOT | STATUS | BEST | ROUTING | TUNE | PREDICT | LIST |
             IMPORT,
         "overwrite an existing FILE or DIR"),
    FLAG("--quiet", quiet, FILES | CONFIG, "print only errors and the final table of a batch"),
    FLAG("--dry-run", batch.dry_run, FILES | PREDICT,
         "check and list all runs without running them; predict: count the traffic"),
    TEXTS("--only", only, n_only, "GLOB", FILES | PLOT | BEST | COMPARE | CONFIG | TUNE | PREDICT,
          "only runs of this label or id; may be repeated"),
    VALUE("--order", CHOICE, batch.order, "declared|interleaved|shuffled", FILES, 0,
          "order of runs; bench interleaves repetitions", .choices = orders),
    VALUE("--shuffle", U64, batch.shuffle_seed, "SEED", FILES, 0,
          "seed of --order shuffled, which it implies; default 1", .min = 0, .max = INT64_MAX),
    FLAG("--fail-fast", batch.fail_fast, FILES, "stop at the first run that fails"),
    FLAG("--thorough", batch.thorough, VERIFY,
         "verify: also variants of each run: shapes, ranks, orders, guards, 70,000 calls; minutes"),
    VALUE("--max-runs", U32, max_runs, "N", FILES | CONFIG | TUNE | PREDICT, 0,
          "maximum number of runs of a file; default 4096", .min = 1, .max = BATCH_RUNS_LIMIT),
    VALUE("--markdown", STRING, markdown, "FILE", FILES | BEST | COMPARE | PREDICT, 0,
          "write the table as Markdown, one line per run", .min = 0),
    VALUE("--csv", STRING, csv, "FILE", FILES | PREDICT, 0, "write one line per run as CSV",
          .min = 0),
    VALUE("--junit", STRING, batch.junit, "FILE", FILES, 0,
          "write a test case per run as JUnit XML, for CI", .min = 0),
    VALUE("--openmetrics", STRING, batch.openmetrics, "FILE", FILES, 0,
          "write percentiles and rates of all runs as OpenMetrics text", .min = 0),
    VALUE("--json-lines", STRING, batch.json_lines, "FILE", FILES, 0,
          "write the JSON of each run on one line when it ends; or -", .min = 0),
    VALUE("--out-dir", STRING, out_dir, "DIR", FILES, 0,
          "write all results to a folder; see 'help results'", .min = 0),
    FLAG("--resume", resume, FILES, "run what remains of the batch in --out-dir"),
    FLAG("--run", compare.turns, COMPARE,
         "compare: run two experiments in turns until it is decided"),
    FLAG("--allow-different", compare.different, COMPARE | FILES,
         "compare although experiments or machines differ, or a fault was injected"),
    VALUE("--budget", DURATION, budget_ns, "DURATION", COMPARE | TUNE, 0,
          "longest time of tune and of compare --run; default 60s", .min = 1),
    FLAG("--origin", config.origin, CONFIG, "show the source of each value of 'config show'"),
    VALUE("--threshold", REAL, threshold, "PERCENT", COMPARE | BENCH | BEST, 0,
          "tolerated change or loss of a median; default 3%; bench: of a repeated result",
          .least = 1e-9, .most = 100),
    VALUE("--alpha", REAL, alpha, "P", COMPARE | BENCH, 0,
          "significance level of a comparison, such as 0.01", .least = 1e-9, .most = 1),
    WORDS("--across", CHOICE, last.choice, across, n_across, "layout|rows|outputs|fused|unknown",
          BEST | TUNE, "best, tune: also compare runs that differ in this; may be repeated",
          .choices = across),
    TEXTS("--keys", tune.keys, tune.n_keys, "GLOB", TUNE,
          "tune: try only these options, such as 'algorithm.*'; may be repeated"),
    VALUE("--algorithms", STRING, tune.algorithms, "NAME,NAME", TUNE, 0,
          "tune: also try these algorithms and their options", .min = 0),
    VALUE("--link", STRING, predict.link, "RATE,LATENCY", PREDICT, 0,
          "predict: link between nodes: per rank 50GB/s,2us or per node 400GB/s,2us,node",
          .min = 0),
    VALUE("--cores", U32, predict.cores, "N", PREDICT, 0,
          "predict: cores of a node; default: those of this machine", .min = 1, .max = 65536),
    VALUE("--sweep", STRING, predict.sweep, "ranks=LOW:HIGH", PREDICT, 0,
          "predict: a row for each number of ranks, doubled", .min = 0),
    FLAG("--check", predict.check, PREDICT, "predict: also measure the predicted world"),
    VALUE("--measured", STRING, predict.measured, "RESULTS", PREDICT, 0,
          "predict: measured results to compare with the prediction", .min = 0),
    FLAG("--quick", doctor.quick, DOCTOR, "doctor: do not measure links"),
    VALUE("--out", STRING, out, "FILE", TRACE | PLOT | TUNE | PREDICT, 'o',
          "output of trace merge, plot, tune and predict; - is standard output", .min = 0),
    VALUE("--kind", CHOICE, plot.kind, "auto|tokens|distribution|skew|stages|ratio|trend|nights",
          PLOT, 0, "plot: kind of chart; auto: chosen from the results", .choices = plot_kinds),
    VALUE("--baseline", STRING, plot.baseline, "RUN", PLOT, 0,
          "plot --kind ratio: name or label of the baseline; default: the first run", .min = 0),
    VALUE("--columns", U32, plot.columns, "N", PLOT, 0,
          "plot: width of text; default: of the terminal", .min = 40, .max = 1000),
    VALUE("--stage", STRING, stage, "NAME", PLOT | BEST | TRACE, 0,
          "times of this stage, default total; trace merge: events of this stage alone", .min = 0),
    VALUE("--figure", STRING, figure, "FIGURE", BEST | COMPARE, 0,
          "figure of a stage to compare, such as p99 or goodput; default: median", .min = 0),
    VALUE("--routing", STRING, import.routing, "FILE", IMPORT, 0,
          "import: write the routed experts of vLLM's or SGLang's responses: .jsonl or .npy",
          .min = 0),
    VALUE("--layers", U32, import.layers, "N", IMPORT, 0,
          "import: MoE layers of a routing without a shape, as of SGLang", .min = 1, .max = 65536),
    VALUE("--topk", U32, import.topk, "N", IMPORT, 0,
          "import: choices of a token of such a routing", .min = 1, .max = 65536),
    VALUE("--layer", U32, routing.layer, "N", ROUTING, 0, "layer of a file with several layers",
          .min = 0, .max = 65535),
    VALUE("--experts", U32, routing.experts, "N", ROUTING, 0,
          "number of experts; default: from the file's meta line, or from its largest expert",
          .min = 1, .max = 4096),
    FLAG("--results", config.results, CONFIG, "config schema: the schema of --json's output"),
    VALUE("--tokens-min", U64, settings.tokens_min, "N", FILES, 'b',
          "smallest number of tokens of a sweep, one run each", .min = 1, .max = UINT32_MAX),
    VALUE("--tokens-max", U64, settings.tokens_max, "N", FILES, 'e',
          "largest number of tokens of a sweep", .min = 1, .max = UINT32_MAX),
    VALUE("--tokens-factor", U64, settings.tokens_factor, "N", FILES, 'f',
          "factor between two numbers of tokens; default 2", .min = 2, .max = UINT32_MAX),
    VALUE("--iterations", U64, settings.iterations, "N", FILES, 'n',
          "short for --set bench.iterations=N (run., verify.)", .min = 1, .max = UINT32_MAX),
    VALUE("--warmup", U64, settings.warmup, "N", BENCH, 'w', "short for --set bench.warmup=N",
          .min = 0, .max = UINT32_MAX),
    VALUE("--progress", CHOICE, progress, "auto|always|never", FILES | COMPARE | TUNE | PREDICT, 0,
          "progress line; auto: on a terminal", .choices = whens),
    VALUE("--color", CHOICE, color, "auto|always|never", ANY, 0,
          "colour; auto: on a terminal, unless NO_COLOR is set", .choices = whens),
    LETTER('h', "--help", help, ANY, "print this help"),
    VALUE("--html", STRING, batch.html, "FILE", FILES, 0,
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
