/* The program: parses the command line by the tables of commands.c and runs the command. Only main()
 * ends the process. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/exit_code.h"
#include "base/file.h"
#include "base/fold.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/cmd_version.h"
#include "cli/commands.h"
#include "cli/complete.h"
#include "cli/documents.h"
#include "cli/environment.h"
#include "cli/line.h"
#include "cli/line_check.h"
#include "cli/line_files.h"
#include "cli/line_settings.h"
#include "cli/usage.h"
#include "boot/process_id.h"

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
            status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno,
                                    "cannot find the current folder: %s", strerror(errno));
        free(cwd);
    }
    cli->batch.shuffle = cli->batch.shuffle_seed != UINT64_MAX;
    cli->judges = cli->threshold >= 0 || cli->alpha >= 0;
    cli->threshold = cli->threshold >= 0 ? cli->threshold : 0.03;
    cli->alpha = cli->alpha >= 0 ? cli->alpha : 0.01;
    return status;
}

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
    if (line_check_options(line, &err) != EPA_OK || line_check_arguments(line, &err) != EPA_OK ||
        line_replace_stdin(line, &err) != EPA_OK || line_resolve_names(line, &err) != EPA_OK ||
        line_add_settings(line, &err) != EPA_OK) {
        (void)cli_fail(&err);
        return EXIT_USAGE;
    }
    /* Commands that run experiments check their documents in the reporting process only. */
    if ((line->command->bit & FILES) == 0 && cli_check_documents(&line->cli, &err) != EPA_OK)
        return cli_fail(&err);
    /* predict starts this program again, which then warns. */
    if (line->command->bit != PREDICT || line->cli.batch.dry_run)
        warn_about_environment(&line->cli);
    return line->command->run(&line->cli);
}

static int read_and_run(int argc, char **argv)
{
    struct line line;
    struct epa_error err = {EPA_OK, ""};
    int code;

    line_init(&line, argc);
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
    /* UCX installs handlers that print a backtrace after a crash. After a crash in set-up they can hang,
     * and the rank does not end. Launchers report the signal. UCX reads the variable on loading. */
    (void)setenv("UCX_HANDLE_ERRORS", "none", 0);
    if (!raise_stack_limit())
        return EXIT_RESOURCE;
    code = finish_stdout(asked_by_shell ? complete_main(argc - 2, argv + 2)
                                        : read_and_run(argc, argv));
    (void)stdout_lend(); /* libraries print while they are unloaded */
    return code;
}
