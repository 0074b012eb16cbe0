/* The command line, read by the tables of commands.h: what is known, who takes which option,
 * and which name is nearest. Options stand anywhere, are never abbreviated, and end at "--". */
#include "cli/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epa2a/plugin.h>

#include "base/text.h"
#include "cli/complete.h"
#include "cli/runs.h"
#include "cli/topics.h"
#include "config/batch.h"
#include "config/value.h"

/* Each run takes some memory before the first begins. */
enum { MAX_RUNS_MOST = 100000 };
#include "launch/process_id.h"

/* A command line being read. */
struct line {
    const struct command *command; /* NULL: none was named */
    struct cli cli;
    /* What cli points to; each has room for all of argv. */
    const char **arg, **set, **only, **context;
    char **plugin_path; /* made absolute; ends with NULL */
    uint32_t n_plugin_paths;
    bool given[OPTIONS];
    struct sweep sweep;
};

static enum epa_status unknown_option(const char *text, size_t bytes, struct epa_error *err)
{
    const char *names[OPTIONS], *nearest;
    char name[64];

    snprintf(name, sizeof(name), "%.*s", (int)(bytes < 60 ? bytes : 60), text);
    for (uint32_t i = 0; i < OPTIONS; i++) {
        names[i] = options[i].name;
        if (name[1] != '-' && name[2] == '\0' && name[1] == options[i].name[2])
            return epa_fail(err, EPA_ERR_CONFIG, "there is no option %s; is it %s?", name,
                            options[i].name);
    }
    nearest = text_nearest(name, names, OPTIONS);
    if (nearest != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "there is no option %s; is it %s?", name, nearest);
    return epa_fail(err, EPA_ERR_CONFIG, "there is no option %s; 'epa2a --help' lists them", name);
}

static enum epa_status add_plugin_path(struct line *line, const char *value, struct epa_error *err)
{
    char *cwd = value[0] == '/' ? strdup("") : getcwd(NULL, 0), *path;
    size_t bytes;

    if (cwd == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "the current folder is not to be found: %s",
                        strerror(errno));
    bytes = strlen(cwd) + strlen(value) + 2;
    path = malloc(bytes);
    if (path != NULL)
        snprintf(path, bytes, "%s%s%s", cwd, value[0] == '/' ? "" : "/", value);
    free(cwd);
    if (path == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a path");
    line->plugin_path[line->n_plugin_paths++] = path;
    return EPA_OK;
}

static enum epa_status set_timeout(struct line *line, const char *value, struct epa_error *err)
{
    struct value_error why;

    if (!value_duration(value, &line->cli.timeout_ns, &why))
        return epa_fail(err, EPA_ERR_CONFIG, "--timeout: '%s' %s%s%s", value, why.what,
                        why.hint[0] == '\0' ? "" : "; ", why.hint);
    if (line->cli.timeout_ns == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "--timeout: it must be longer than 0");
    return EPA_OK;
}

/* Above 0 and up to 1, or that as a percentage: "0.03", "3%"; `of`: what a bare number is
 * divided by. */
static enum epa_status set_number(const char *name, const char *value, double of, double *out,
                                  struct epa_error *err)
{
    char *end;
    double x = strtod(value, &end);

    if (end != value && strcmp(end, "%") == 0)
        x /= 100;
    else
        x /= of;
    if (end == value || (*end != '\0' && strcmp(end, "%") != 0) || !(x > 0 && x <= 1))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' is not a number above 0 and up to %g%s",
                        name, value, of, of > 1 ? " percent" : "");
    *out = x;
    return EPA_OK;
}

static enum epa_status set_count(const char *name, const char *value, uint64_t least, uint64_t most,
                                 uint64_t *out, struct epa_error *err)
{
    struct value_error why;

    if (!value_u64(value, out, &why))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' %s%s%s", name, value, why.what,
                        why.hint[0] == '\0' ? "" : "; ", why.hint);
    if (*out < least || *out > most)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: %s is out of range: %llu to %llu", name, value,
                        (unsigned long long)least, (unsigned long long)most);
    return EPA_OK;
}

static enum epa_status set_order(struct line *line, const char *value, struct epa_error *err)
{
    if (runs_order_find(value, &line->cli.order))
        return EPA_OK;
    return epa_fail(err, EPA_ERR_CONFIG,
                    "--order: '%s' is not one of declared, interleaved, shuffled", value);
}

static enum epa_status set_max_runs(struct line *line, const char *value, struct epa_error *err)
{
    uint64_t n = 0;
    enum epa_status status = set_count("--max-runs", value, 1, MAX_RUNS_MOST, &n, err);

    line->cli.max_runs = (uint32_t)n;
    return status;
}

/* Where a flag is kept; NULL: the option is none, or is not kept. */
static bool *flag_of(struct cli *cli, enum option_id id)
{
    switch (id) {
    case FORCE:
        return &cli->force;
    case QUIET:
        return &cli->quiet;
    case DRY_RUN:
        return &cli->dry_run;
    case FAIL_FAST:
        return &cli->fail_fast;
    case ORIGIN:
        return &cli->origin;
    case QUICK:
        return &cli->quick;
    case RESUME:
        return &cli->resume;
    case RESULTS:
        return &cli->results;
    default:
        return NULL;
    }
}

/* Where a value is kept that is taken as it is; NULL: it is not. */
static const char **text_of(struct cli *cli, enum option_id id)
{
    switch (id) {
    case JSON:
        return &cli->json;
    case MARKDOWN:
        return &cli->markdown;
    case CSV:
        return &cli->csv;
    case JSON_LINES:
        return &cli->json_lines;
    case OUT_DIR:
        return &cli->out_dir;
    case RUN_LABEL:
        return &cli->run;
    case OUT:
        return &cli->out;
    case KIND:
        return &cli->kind;
    case STAGE:
        return &cli->stage;
    default:
        return NULL;
    }
}

/* Where a count is kept, and the least that it may be; NULL: the option is none. */
static uint64_t *count_of(struct cli *cli, enum option_id id, uint64_t *least)
{
    *least = id == TOKENS_FACTOR ? 2 : id == WARMUP ? 0 : 1;
    switch (id) {
    case TOKENS_MIN:
        return &cli->tokens_min;
    case TOKENS_MAX:
        return &cli->tokens_max;
    case TOKENS_FACTOR:
        return &cli->tokens_factor;
    case ITERATIONS:
        return &cli->iterations;
    case WARMUP:
        cli->has_warmup = true;
        return &cli->warmup;
    default:
        return NULL;
    }
}

/* As enum progress_mode and enum colour_mode have them. */
static enum epa_status set_when(const char *name, const char *value, uint32_t *out,
                                struct epa_error *err)
{
    static const char *const words[] = {"auto", "always", "never"};
    const char *nearest = text_nearest(value, words, 3);

    for (*out = 0; *out < 3; ++*out)
        if (strcmp(value, words[*out]) == 0)
            return EPA_OK;
    *out = 0;
    return epa_fail(err, EPA_ERR_CONFIG, "%s: there is no '%s'; %s%s%s", name, value,
                    nearest != NULL ? "is it '" : "there is auto, always and never",
                    nearest != NULL ? nearest : "", nearest != NULL ? "'?" : "");
}

/* `value` is NULL for flags alone. */
static enum epa_status store(struct line *line, const struct option *option, const char *value,
                             struct epa_error *err)
{
    enum option_id id = (enum option_id)(option - options);
    struct cli *cli = &line->cli;
    enum epa_status status;
    uint32_t when = 0;
    uint64_t least, *count;

    if (line->given[id] && id != SET && id != ONLY && id != CONTEXT && id != PLUGIN_PATH &&
        value != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s is there twice", option->name);
    line->given[id] = true;
    if (flag_of(cli, id) != NULL)
        *flag_of(cli, id) = true;
    if (text_of(cli, id) != NULL)
        *text_of(cli, id) = value;
    count = count_of(cli, id, &least);
    if (count != NULL)
        return set_count(option->name, value, least, UINT32_MAX, count, err);
    cli->judges = cli->judges || id == THRESHOLD || id == ALPHA;
    switch (id) {
    case SET:
        line->set[cli->n_sets++] = value;
        return EPA_OK;
    case CONTEXT:
        line->context[line->cli.n_context++] = value;
        return cli_check_context(&line->context[0], line->cli.n_context, err);
    case ONLY:
        line->only[cli->n_only++] = value;
        return EPA_OK;
    case TIMEOUT:
        return set_timeout(line, value, err);
    case PLUGIN_PATH:
        return add_plugin_path(line, value, err);
    case SHUFFLE:
        cli->shuffle = true;
        return set_count(option->name, value, 0, INT64_MAX, &cli->shuffle_seed, err);
    case ORDER:
        return set_order(line, value, err);
    case PROGRESS:
        status = set_when(option->name, value, &when, err);
        cli->progress = (enum progress_mode)when;
        return status;
    case COLOR:
        status = set_when(option->name, value, &when, err);
        cli->color = (enum colour_mode)when;
        return status;
    case MAX_RUNS:
        return set_max_runs(line, value, err);
    case THRESHOLD:
        return set_number(option->name, value, 100, &cli->threshold, err);
    case ALPHA:
        return set_number(option->name, value, 1, &cli->alpha, err);
    default:
        return EPA_OK;
    }
}

/* `next` is the argument behind, or NULL; *used says whether it was this option's value. */
static enum epa_status read_option(struct line *line, const char *text, const char *next,
                                   bool *used, struct epa_error *err)
{
    size_t bytes = strcspn(text, "=");
    const char *value = text[bytes] == '=' ? text + bytes + 1 : NULL;
    const struct option *option = commands_option(text);

    *used = false;
    if (option == NULL)
        return unknown_option(text, bytes, err);
    if (option->value == NULL && value != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes no value", option->name);
    if (option->value != NULL && value == NULL && next != NULL && strncmp(next, "--", 2) != 0) {
        value = next;
        *used = true;
    }
    if (option == &options[JSON] && value == NULL &&
        (line->given[VERSION_OPTION] || (line->command != NULL && line->command->bit == STATUS)))
        value = "-"; /* --version --json, status PID --json */
    if (option->value != NULL && (value == NULL || *value == '\0'))
        return epa_fail(err, EPA_ERR_CONFIG, "%s needs a value: %s %s", option->name, option->name,
                        option->value);
    return store(line, option, value, err);
}

static enum epa_status find_command(const char *name, const struct command **out,
                                    struct epa_error *err)
{
    const char *names[COMMANDS_MOST], *nearest, *dot = strrchr(name, '.');
    uint32_t n = commands_count();

    for (uint32_t i = 0; i < n; i++) {
        names[i] = commands[i].name;
        if (strcmp(name, names[i]) == 0) {
            *out = &commands[i];
            return EPA_OK;
        }
    }
    nearest = text_nearest(name, names, n);
    if (nearest != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "there is no command '%s'; is it '%s'?", name,
                        nearest);
    if (dot != NULL && (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "put a command before the file: 'epa2a run %s' or 'epa2a bench %s'", name,
                        name);
    return epa_fail(err, EPA_ERR_CONFIG, "there is no command '%s'; 'epa2a --help' lists them",
                    name);
}

static enum epa_status read_line(struct line *line, int argc, char **argv, struct epa_error *err)
{
    bool options_ended = false;
    enum epa_status status = EPA_OK;

    for (int i = 1; i < argc && status == EPA_OK; i++) {
        const char *text = argv[i];
        bool used = false;

        if (!options_ended && strcmp(text, "--") == 0) {
            options_ended = true;
        } else if (!options_ended && text[0] == '-' && text[1] != '\0') {
            status = read_option(line, text, i + 1 < argc ? argv[i + 1] : NULL, &used, err);
            i += used;
        } else if (line->command == NULL) {
            status = find_command(text, &line->command, err);
        } else {
            line->arg[line->cli.n_args++] = text;
        }
    }
    return status;
}

/* A plugin's file or a socket must not get number 0, 1 or 2. What stands in for a closed
 * standard output refuses to be written, so the user learns of it. */
static void fill_standard_files(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

static int finish_stdout(int code)
{
    bool failed = ferror(stdout) != 0;

    errno = 0;
    if (fflush(stdout) == 0 && !failed)
        return code;
    /* An earlier write failed, of which no reason is left: the next one gives it. */
    if (errno == 0 && putc('\n', stdout) != EOF)
        (void)fflush(stdout);
    fprintf(stderr, "epa2a: standard output cannot be written%s%s\n", errno == 0 ? "" : ": ",
            errno == 0 ? "" : strerror(errno));
    return code == EXIT_OK ? EXIT_RESOURCE : code;
}

/* Where several of us were started, by rank 0 alone. */
static void warn_of_environment(const struct cli *cli)
{
    const char *path = secure_getenv("EPA2A_PLUGIN_PATH");
    struct epa_error ignored = {EPA_OK, ""};
    struct process_job job = {0};

    if (cli->quiet || (process_id_find(&job, &ignored) == EPA_OK && job.process_id.rank != 0))
        return;
    for (size_t bytes; path != NULL && *path != '\0'; path += bytes) {
        bytes = strcspn(path, ":");
        if (bytes != 0 && path[0] != '/')
            fprintf(stderr,
                    "epa2a: %swarning:%s EPA2A_PLUGIN_PATH is not absolute and not used: "
                    "%.*s\n",
                    colour_on(stderr, COLOUR_WARNING), colour_off(stderr), (int)bytes, path);
        bytes += path[bytes] == ':';
    }
    environment_warn(stderr);
}

static int run_line(struct line *line)
{
    struct epa_error err = {EPA_OK, ""};

    line->cli.arg = line->arg;
    line->cli.set = line->set;
    line->cli.only = line->only;
    line->cli.context = line->context;
    line->cli.plugin_path = (const char *const *)line->plugin_path;
    colour_choose(line->cli.color);
    if (line->given[HELP_OPTION]) {
        commands_print_help(line->command);
        return EXIT_OK;
    }
    if (line->given[VERSION_OPTION])
        return cmd_version(&line->cli);
    if (line->command == NULL) {
        fprintf(stderr, "usage: epa2a COMMAND [OPTION...]\n");
        commands_print(stderr);
        fprintf(stderr, "'epa2a --help' says more.\n");
        return EXIT_USAGE;
    }
    if (cli_check_options(line->command, line->given, &err) != EPA_OK ||
        cli_check_args(line->command, &line->cli, &err) != EPA_OK ||
        cli_sweep(line->command, &line->cli, line->set, &line->sweep, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return EXIT_USAGE;
    }
    warn_of_environment(&line->cli);
    return line->command->run(&line->cli);
}

static int read_and_run(int argc, char **argv)
{
    size_t room = (size_t)(argc > 0 ? argc : 1);
    struct line line = {
        .cli = {.threshold = 0.03, .alpha = 0.01, .max_runs = BATCH_RUNS_MOST, .line = argv},
        .arg = calloc(room, sizeof(char *)),
        .set = calloc(room, sizeof(char *)),
        .only = calloc(room, sizeof(char *)),
        .context = calloc(room, sizeof(char *)),
        .plugin_path = calloc(room + 1, sizeof(char *))};
    struct epa_error err = {EPA_OK, ""};
    int code;

    if (line.arg == NULL || line.set == NULL || line.only == NULL || line.context == NULL ||
        line.plugin_path == NULL)
        epa_fail(&err, EPA_ERR_NOMEM, "no memory for %d arguments", argc);
    else
        read_line(&line, argc, argv, &err);
    if (err.status == EPA_OK) {
        code = run_line(&line);
    } else {
        fprintf(stderr, "epa2a: %s\n", err.text);
        code = exit_code(err.status, SIGINT);
    }
    for (uint32_t i = 0; i < line.n_plugin_paths; i++)
        free(line.plugin_path[i]);
    free(line.plugin_path);
    free(line.arg);
    free(line.set);
    free(line.only);
    free(line.context);
    return code;
}

int cli_main(int argc, char **argv)
{
    bool asked_by_shell = argc > 1 && strcmp(argv[1], "__complete") == 0;

    fill_standard_files();
    signal(SIGPIPE, SIG_IGN); /* a write that fails is told in words instead */
    return finish_stdout(asked_by_shell ? complete_main(argc - 2, argv + 2)
                                        : read_and_run(argc, argv));
}
