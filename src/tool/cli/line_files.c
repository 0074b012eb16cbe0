/* Files of a command line: names of configurations, and standard input. */
#include "cli/line_files.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/config_name.h"
#include "boot/process_id.h"

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
        return cli->compare.turns ? 0 : cli->n_args;
    default:
        return cli->n_args;
    }
}

/* Replaces the pipe or socket of a descriptor by a copy in memory, since a command may read its file more
 * than once. */
static enum epa_status keep_input(int from, const char *path, struct epa_error *err)
{
    int fd = memfd_create("epa2a-input", MFD_CLOEXEC);
    bool good = fd >= 0;
    char piece[1 << 14];
    uint64_t bytes = 0;
    ssize_t n = 1;

    /* The reader of the file rejects more than FILE_MOST bytes. */
    for (; good && n != 0 && bytes <= FILE_MOST; bytes += n > 0 ? (uint64_t)n : 0) {
        n = read(from, piece, sizeof(piece));
        good = n >= 0 ? write_whole(fd, piece, (size_t)n) : errno == EINTR;
    }
    good = good && dup2(fd, from) >= 0;
    if (!good)
        epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return good ? EPA_OK : EPA_ERR_SYSTEM;
}

/* Keeps the content of pipes, except standard input for a FILE of -. */
static enum epa_status keep_pipes(const struct cli *cli, bool reads_stdin, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < cli->n_args && status == EPA_OK; i++) {
        int fd = file_descriptor(cli->arg[i]);
        struct stat at;

        if ((fd > STDERR_FILENO || (fd == STDIN_FILENO && !reads_stdin)) && fstat(fd, &at) == 0 &&
            (S_ISFIFO(at.st_mode) || S_ISSOCK(at.st_mode)))
            status = keep_input(fd, cli->arg[i], err);
    }
    return status;
}

enum epa_status line_replace_stdin(struct line *line, struct epa_error *err)
{
    const unsigned readers =
        FILES | CONFIG | COMPARE | TRACE | PLOT | BEST | ROUTING | TUNE | PREDICT | IMPORT;
    struct epa_error ignored = {EPA_OK, ""};
    struct process_job job = {0};
    uint32_t n = 0;

    for (uint32_t i = 0; i < line->cli.n_args && (line->command->bit & readers) != 0; i++)
        if (strcmp(line->cli.arg[i], "-") == 0) {
            line->cli.arg[i] = "/dev/stdin";
            n++;
        }
    if ((line->command->bit & readers) != 0 && keep_pipes(&line->cli, n > 0, err) != EPA_OK)
        return err->status;
    if (n == 0)
        return EPA_OK;
    if (n > 1)
        return epa_fail(err, EPA_ERR_CONFIG, "- is standard input; only one FILE can be -");
    if (process_id_find(&job, &ignored) == EPA_OK && job.process_id.size > 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "- is standard input, which only one of %u processes receives (%s); give "
                        "a file that all processes can read",
                        job.process_id.size, job.process_id.source);
    return keep_input(STDIN_FILENO, "standard input", err);
}

enum epa_status line_resolve_names(struct line *line, struct epa_error *err)
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
