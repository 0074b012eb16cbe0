/* `epa2a status [PID]`: state of the ranks of running commands. Reads their status pages through /proc
 * without their help, so it also works for a command that hangs or is stopped. */
#include "cli/cmd_status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "cli/status_json.h"
#include "options/value.h"
#include "registry/registry.h"
#include "session/status.h"
#include "session/status_text.h"

struct commands {
    struct status *command; /* [n], owned */
    uint32_t n;
};

static void add_command(void *arg, const struct status *s)
{
    struct commands *to = arg;
    struct status *copy;

    to->command = memory_grow(to->command, (to->n + 1) * sizeof(*to->command));
    copy = &to->command[to->n++];
    *copy = *s;
    copy->rank = memory_alloc_aligned(_Alignof(struct status_rank), s->n, sizeof(*s->rank));
    if (s->n > 0)
        memcpy(copy->rank, s->rank, s->n * sizeof(*s->rank));
}

static enum epa_status read_process(const char *word, struct commands *out, struct epa_error *err)
{
    struct value_error why;
    enum epa_status status;
    struct status s;
    uint64_t pid = 0;

    if (!value_u64(word, &pid, &why) || pid == 0 || pid > INT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "'%s' is not the number of a process; 'epa2a status' lists the processes "
                        "that run an experiment",
                        word);
    status = status_read_pid((pid_t)pid, &s, err);
    if (status != EPA_OK)
        return status;
    add_command(out, &s);
    status_finish(&s);
    return EPA_OK;
}

/* Prints the ranks of one process, or a line for each command. */
static void print_commands(const struct commands *commands, bool with_ranks)
{
    text_auto text = {0};

    for (uint32_t i = 0; i < commands->n && with_ranks; i++)
        status_print(&commands->command[i], "", &text);
    for (uint32_t i = 0; i < commands->n && !with_ranks; i++) {
        status_print_head(&commands->command[i], &text);
        text_add(&text, "\n");
    }
    if (text.bytes > 0)
        fputs(text.data, stdout);
    else
        fputs("epa2a: no command of this user runs an experiment here\n", stderr);
}

int cmd_status(const struct cli *cli)
{
    struct epa_error err = {EPA_OK, ""};
    struct commands commands = {0};
    enum epa_status status = EPA_OK;

    if (cli->n_args == 1)
        status = read_process(cli->arg[0], &commands, &err);
    else
        status = status_each(add_command, &commands, &err);
    if (status == EPA_OK)
        status = cli_write_json(cli, status_json(commands.command, commands.n), &err);
    if (status == EPA_OK && !cli_has_stdout(cli))
        print_commands(&commands, cli->n_args == 1);
    for (uint32_t i = 0; i < commands.n; i++)
        status_finish(&commands.command[i]);
    free(commands.command);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}
