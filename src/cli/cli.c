/* The program: parses the command line by the tables of commands.c and runs the command. Only main()
 * ends the process. */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/file.h"
#include "base/fold.h"
#include "base/text.h"
#include "cli/config_name.h"
#include "config/model.h"
#include "config/diag.h"
#include "config/node.h"
#include "config/options.h"
#include "experiment/batch.h"
#include "launch/process.h"
#include "op/op.h"

static enum epa_status read_line(struct line *line, int argc, char **argv, struct epa_error *err)
{
    struct cli *cli = &line->cli;
    enum epa_status status = EPA_OK;

    for (int i = 1; i < argc && status == EPA_OK; i++) {
        bool used;

        status = line_take(line, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &used, err);
        i += used;
    }
    for (uint32_t i = 0; i < cli->n_plugin_paths && status == EPA_OK; i++) {
        char *cwd = cli->plugin_path[i][0] == '/' ? NULL : getcwd(NULL, 0);

        if (cwd != NULL)
            cli->plugin_path[i] = arena_printf(line->arena, "%s/%s", cwd, cli->plugin_path[i]);
        else if (cli->plugin_path[i][0] != '/')
            status = epa_fail(err, EPA_ERR_SYSTEM, "cannot find the current folder: %s",
                              strerror(errno));
        free(cwd);
    }
    cli->shuffle = cli->shuffle_seed != UINT64_MAX;
    cli->judges = cli->threshold >= 0 || cli->alpha >= 0;
    cli->threshold = cli->threshold >= 0 ? cli->threshold : 0.03;
    cli->alpha = cli->alpha >= 0 ? cli->alpha : 0.01;
    return status;
}

/* ---- checks ---- */

/* Checks that the command accepts all given options. */
static enum epa_status check_options(const struct line *line, struct epa_error *err)
{
    for (const struct option *o = options; o->is.name != NULL; o++) {
        text_auto takers = {0};

        if (!line->given[o - options] || (o->commands & line->command->bit) != 0)
            continue;
        for (const struct command *c = commands; c->name != NULL; c++)
            if ((o->commands & c->bit) != 0)
                text_add(&takers, "%s%s", takers.bytes == 0 ? "" : ", ", c->name);
        epa_fail(err, EPA_ERR_CONFIG, "%s does not take %s, only %s", line->command->name,
                 o->is.name, takers.data);
        return EPA_ERR_CONFIG;
    }
    return EPA_OK;
}

/* Checks the first argument of a command such as config, "show|check|schema FILE...". */
static enum epa_status check_subcommand(const struct line *line, struct epa_error *err)
{
    const char *at = line->command->args, *want = line->cli.arg[0];
    struct nearest nearest = {.want = want};
    text_auto all = {0};
    char hint[NEAREST_ROOM];

    for (size_t n = 1; islower((unsigned char)*at) && n > 0; at += n) {
        const char *word = arena_strndup(line->arena, at, strcspn(at, "| "));

        if (strcmp(word, want) == 0)
            return EPA_OK;
        nearest_try(&nearest, word);
        text_add(&all, "%s%s", all.bytes == 0 ? "known: " : ", ", word);
        n = at[strlen(word)] == '|' ? strlen(word) + 1 : 0;
    }
    return epa_fail(err, EPA_ERR_CONFIG, "%s does not know '%.64s'; %s", line->command->name, want,
                    nearest_hint(&nearest, hint, all.data));
}

static enum epa_status check_arguments(const struct line *line, struct epa_error *err)
{
    const struct command *c = line->command;
    const char *more = line->cli.n_args > c->most ? line->cli.arg[c->most] : NULL;

    if (islower((unsigned char)c->args[0]) && line->cli.n_args > 0 &&
        check_subcommand(line, err) != EPA_OK)
        return EPA_ERR_CONFIG;
    if (line->cli.n_args < c->least || more != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes %s%s%s%s: 'epa2a %s%s%s'", c->name, c->takes,
                        more != NULL ? ", and not '" : "", more != NULL ? more : "",
                        more != NULL ? "'" : "", c->name, c->args[0] != '\0' ? " " : "", c->args);
    return c->check != NULL ? c->check(&line->cli, err) : EPA_OK;
}

/* ---- configurations by name ---- */

/* Returns the index of the first argument that is an experiment; n_args: none. */
static uint32_t first_experiment(const struct line *line)
{
    const struct cli *cli = &line->cli;

    switch (line->command->bit) {
    case RUN:
    case BENCH:
    case VERIFY:
    case TUNE:
    case PREDICT:
        return 0;
    case CONFIG: /* after show, check or schema */
        return 1;
    case COMPARE:
        return cli->turns ? 0 : cli->n_args;
    default:
        return cli->n_args;
    }
}

/* Copies standard input to memory, since a command may read its file more than once. */
static enum epa_status keep_stdin(struct epa_error *err)
{
    int fd = memfd_create("epa2a-stdin", MFD_CLOEXEC);
    bool good = fd >= 0;
    char piece[1 << 14];
    ssize_t n = 1;

    while (good && n != 0) {
        n = read(STDIN_FILENO, piece, sizeof(piece));
        good = n >= 0 ? write_whole(fd, piece, (size_t)n) : errno == EINTR;
    }
    good = good && dup2(fd, STDIN_FILENO) >= 0;
    if (!good)
        epa_fail(err, EPA_ERR_SYSTEM, "standard input: %s", strerror(errno));
    if (fd >= 0)
        close(fd);
    return good ? EPA_OK : EPA_ERR_SYSTEM;
}

/* Replaces the FILE - by standard input, for commands that read files. */
static enum epa_status replace_stdin_argument(struct line *line, struct epa_error *err)
{
    const unsigned readers =
        FILES | CONFIG | COMPARE | TRACE | PLOT | RERUN | BEST | ROUTING | TUNE | PREDICT | IMPORT;
    struct epa_error ignored = {EPA_OK, ""};
    struct process_job job = {0};
    uint32_t n = 0;

    for (uint32_t i = 0; i < line->cli.n_args && (line->command->bit & readers) != 0; i++)
        if (strcmp(line->cli.arg[i], "-") == 0) {
            line->cli.arg[i] = "/dev/stdin";
            n++;
        }
    if (n == 0)
        return EPA_OK;
    if (n > 1)
        return epa_fail(err, EPA_ERR_CONFIG, "- is standard input; only one FILE can be -");
    if (process_id_find(&job, &ignored) == EPA_OK && job.process_id.size > 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "- is standard input, which only one of %u processes receives (%s); give "
                        "a file that all processes can read",
                        job.process_id.size, job.process_id.source);
    return keep_stdin(err);
}

/* Replaces names of configurations by their paths. Without an argument run, bench and verify use the
 * default configuration. */
static enum epa_status resolve_names(struct line *line, struct epa_error *err)
{
    struct cli *cli = &line->cli;
    enum epa_status status = EPA_OK;
    bool has_default = (line->command->bit & FILES) != 0 && cli->n_args == 0;

    if (has_default)
        cli->arg[cli->n_args++] = CONFIG_NAME_DEFAULT;
    for (uint32_t i = first_experiment(line); i < cli->n_args && status == EPA_OK; i++)
        status = config_name_resolve(line->arena, cli->arg[i], &cli->arg[i], err);
    if (has_default && status == EPA_OK && !cli->quiet)
        fprintf(stderr, "epa2a: no FILE given; using %s\n", cli->arg[0]);
    return status;
}

/* ---- options for settings of an experiment, such as -b, -e and -n, which communication benchmarks
 * share. These settings follow --set, so they override both the file and --set. ---- */

/* Returns the key of the number of tokens, for the operation of the first file. */
static const char *size_key(const struct cli *cli)
{
    struct tree tree = {.arena = arena_create(), .diag = diag_create()};
    const struct operation *op = NULL;

    if (cli->n_args > 0)
        batch_read_tree(&tree, cli->arg[0], NULL, 0);
    for (uint32_t i = 0; op == NULL && operation_at(i) != NULL; i++) {
        const char *key = operation_at(i)->size_key;

        if (node_find(tree.root, arena_strndup(tree.arena, key, strcspn(key, "."))) != NULL)
            op = operation_at(i);
    }
    diag_destroy(tree.diag);
    arena_destroy(tree.arena);
    return (op != NULL ? op : operation_at(0))->size_key;
}

static enum epa_status add_token_sweep(struct line *line, struct epa_error *err)
{
    struct cli *cli = &line->cli;
    uint64_t least = cli->tokens_min != 0 ? cli->tokens_min : 1;
    uint64_t most = cli->tokens_max != 0 ? cli->tokens_max : least;
    uint64_t factor = cli->tokens_factor != 0 ? cli->tokens_factor : 2;
    const char *set;

    if (cli->tokens_min == 0 && cli->tokens_max == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "-f %" PRIu64 " needs the range of the sweep: -b 1 -e 128 -f %" PRIu64,
                        factor, factor);
    if (least > most)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "-b %" PRIu64 " is larger than -e %" PRIu64 ": sizes increase", least,
                        most);
    set = arena_printf(line->arena, "matrix.%s=[%" PRIu64, size_key(cli), least);
    for (uint64_t at = least * factor; at <= most; at *= factor)
        set = arena_printf(line->arena, "%s, %" PRIu64, set, at);
    cli->set[cli->n_sets++] = arena_printf(line->arena, "%s]", set);
    return EPA_OK;
}

/* Inserts --model A as model=A before all other settings; several models become a matrix. */
static enum epa_status add_models(struct line *line, struct epa_error *err)
{
    struct cli *cli = &line->cli;
    const char *all = "";
    uint32_t n = 0;

    for (uint32_t i = 0; i < cli->n_models; i++)
        for (const char *at = cli->model[i]; at != NULL;) {
            const char *name = arena_strndup(line->arena, at, strcspn(at, ","));
            char path[PATH_MAX], hint[2 * NEAREST_ROOM];

            if (!model_find(name, path, sizeof(path), hint))
                return epa_fail(err, EPA_ERR_CONFIG, "--model: there is no model '%.64s'; %s", name,
                                hint);
            all = arena_printf(line->arena, "%s%s%s", all, n++ > 0 ? ", " : "", name);
            at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL;
        }
    if (n > 1 && line->command->bit == CONFIG && strcmp(cli->arg[0], "show") == 0 &&
        cli->n_only == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "config show takes one --model; with --only '*' it shows the runs of all "
                        "models");
    if (n == 0)
        return EPA_OK;
    memmove(&cli->set[1], &cli->set[0], cli->n_sets++ * sizeof(*cli->set));
    cli->set[0] = arena_printf(line->arena, n > 1 ? "matrix.model=[%s]" : "model=%s", all);
    return EPA_OK;
}

static enum epa_status add_settings(struct line *line, struct epa_error *err)
{
    struct cli *cli = &line->cli;
    enum epa_status status = add_models(line, err);

    if (status == EPA_OK &&
        (cli->tokens_min != 0 || cli->tokens_max != 0 || cli->tokens_factor != 0))
        status = add_token_sweep(line, err);
    if (cli->iterations != 0)
        cli->set[cli->n_sets++] = arena_printf(line->arena, "%s.iterations=%" PRIu64,
                                               line->command->name, cli->iterations);
    if (cli->warmup != UINT64_MAX)
        cli->set[cli->n_sets++] = arena_printf(line->arena, "bench.warmup=%" PRIu64, cli->warmup);
    if (cli->timeout_ns != 0)
        cli->set[cli->n_sets++] =
            arena_printf(line->arena, "timeout=%" PRIu64 "ns", cli->timeout_ns);
    return status;
}

/* ---- running ---- */

/* Opens the closed descriptors of 0, 1 and 2, so that no file of a plugin and no socket gets these
 * numbers. The replacement of a closed standard output is read-only: writing fails, and the user
 * sees an error. */
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
    /* An earlier write failed and its errno is lost; the next write fails for the same reason. */
    if (errno == 0 && putc('\n', stdout) != EOF)
        (void)fflush(stdout);
    if (stdout_is_unread())
        return code == EXIT_OK ? EXIT_SIGPIPE : code;
    fprintf(stderr, "epa2a: cannot write standard output%s%s\n", errno == 0 ? "" : ": ",
            errno == 0 ? "" : strerror(errno));
    return code == EXIT_OK ? EXIT_RESOURCE : code;
}

/* Warns about variables of the environment. Of several processes, only rank 0 prints warnings. */
static void warn_about_environment(const struct cli *cli)
{
    const char *path = secure_getenv("EPA2A_PLUGIN_PATH");
    struct epa_error ignored = {EPA_OK, ""};
    struct process_job job = {0};

    if (cli->quiet || (process_id_find(&job, &ignored) == EPA_OK && job.process_id.rank != 0))
        return;
    for (size_t bytes; path != NULL && *path != '\0'; path += bytes) {
        bytes = strcspn(path, ":");
        if (bytes != 0 && path[0] != '/')
            text_warn("EPA2A_PLUGIN_PATH: ignoring a folder that is not absolute: %.*s", (int)bytes,
                      path);
        bytes += path[bytes] == ':';
    }
    environment_warn();
}

static int run_line(struct line *line)
{
    struct epa_error err = {EPA_OK, ""};
    text_auto page = {0};

    colour_choose((enum colour_mode)line->cli.color);
    if (line->cli.help) {
        commands_add_help(line->command, &page);
        fold_print(stdout, page.data, FOLD_LINES);
        return EXIT_OK;
    }
    if (line->cli.version)
        return cli_check_documents(&line->cli, &err) == EPA_OK ? cmd_version(&line->cli)
                                                               : cli_fail(&err);
    if (line->command == NULL) {
        text_add(&page, "usage: epa2a COMMAND [OPTION...]\n");
        commands_add(&page);
        text_add(&page, "See 'epa2a --help'.\n");
        fold_print(stderr, page.data, FOLD_LINES);
        return EXIT_USAGE;
    }
    if (check_options(line, &err) != EPA_OK || check_arguments(line, &err) != EPA_OK ||
        replace_stdin_argument(line, &err) != EPA_OK || resolve_names(line, &err) != EPA_OK ||
        add_settings(line, &err) != EPA_OK) {
        fprintf(stderr, "epa2a: %s\n", err.text);
        return EXIT_USAGE;
    }
    /* Commands that run experiments check their documents in the reporting process only. */
    if ((line->command->bit & (FILES | RERUN)) == 0 &&
        cli_check_documents(&line->cli, &err) != EPA_OK)
        return cli_fail(&err);
    warn_about_environment(&line->cli);
    return line->command->run(&line->cli);
}

static int read_and_run(int argc, char **argv)
{
    struct line line;
    struct epa_error err = {EPA_OK, ""};
    int code;

    line_init(&line, argc, argv);
    code = read_line(&line, argc, argv, &err) == EPA_OK ? run_line(&line) : cli_fail(&err);
    arena_destroy(line.arena);
    return code;
}

/* Raises the stack limit to at least 256 KiB. Ranks and workers inherit the limit; too small a stack
 * would cause SIGSEGV. */
static bool raise_stack_limit(void)
{
    const rlim_t least = 256u << 10;
    struct rlimit stack;

    if (getrlimit(RLIMIT_STACK, &stack) != 0 || stack.rlim_cur >= least)
        return true;
    stack.rlim_cur = stack.rlim_max < 8u << 20 ? stack.rlim_max : 8u << 20;
    if (stack.rlim_cur >= least && setrlimit(RLIMIT_STACK, &stack) == 0)
        return true;
    fprintf(stderr,
            "epa2a: the stack limit is %llu KiB (RLIMIT_STACK), and epa2a needs 256; raise it: "
            "ulimit -s 8192\n",
            (unsigned long long)stack.rlim_max >> 10);
    return false;
}

/* jansson's allocator: exhausted memory ends the program with a message. */
static void *allocate_json(size_t bytes)
{
    return memory_grow(NULL, bytes > 0 ? bytes : 1);
}

int main(int argc, char **argv)
{
    bool asked_by_shell = argc > 1 && strcmp(argv[1], "__complete") == 0;
    int code;

    fill_standard_files();
    terminal_guard();
    json_set_alloc_funcs(allocate_json, free);
    signal(SIGPIPE,
           SIG_IGN); /* sockets of ranks report EPIPE; finish_stdout() sets the exit code */
    signal(SIGXFSZ, SIG_IGN); /* a write beyond RLIMIT_FSIZE reports EFBIG */
    signal(SIGCHLD, SIG_DFL); /* if the parent ignored it, waitpid() would lose exit codes */
    if (!raise_stack_limit())
        return EXIT_RESOURCE;
    code = finish_stdout(asked_by_shell ? complete_main(argc - 2, argv + 2)
                                        : read_and_run(argc, argv));
    (void)stdout_lend(); /* libraries print while they are unloaded */
    return code;
}
