/* `epa2a trace`: merges and summarizes the traces of `profile:`. */
#include "cli/cmd_trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "trace/read.h"
#include "trace/summary.h"
#include "trace/trace.h"

enum epa_status cmd_trace_check(const struct cli *cli, struct epa_error *err)
{
    const char *word = cli->arg[0];
    bool merge = strcmp(word, "merge") == 0;

    if (merge && cli->out == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "trace %s needs --out FILE; - is standard output",
                        word);
    if (cli->stage != NULL && !merge)
        return epa_fail(err, EPA_ERR_CONFIG, "trace %s does not take --stage", word);
    if (!merge && cli->out != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "trace %s prints to standard output and does not take --out", word);
    return EPA_OK;
}

/* Runs the subcommand and writes to --out or standard output. */
static enum epa_status run_trace_command(const struct cli *cli, const struct trace_file *f,
                                         uint32_t n, struct epa_error *err)
{
    text_auto out = {0};

    if (strcmp(cli->arg[0], "merge") == 0 && trace_merge(f, n, cli->stage, &out, err) != EPA_OK)
        return err->status;
    for (uint32_t i = 0; i < n && strcmp(cli->arg[0], "summary") == 0; i++)
        trace_summary(&f[i], &out);
    return file_write("--out", cli->out != NULL ? cli->out : "-", cli->force, &out, err);
}

int cmd_trace(const struct cli *cli)
{
    uint32_t n = cli->n_args - 1;
    struct trace_file *f = memory_alloc(n, sizeof(*f));
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        status = trace_read(cli->arg[i + 1], &f[i], &err);
    if (status == EPA_OK)
        status = run_trace_command(cli, f, n, &err);
    for (uint32_t i = 0; i < n; i++)
        trace_free(&f[i]);
    free(f);
    return status == EPA_OK ? EXIT_OK : cli_fail(&err);
}
