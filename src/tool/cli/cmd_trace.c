/* `epa2a trace`: checks, merges, summarizes and draws the traces of `profile:`. */
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
    bool view = strcmp(word, "view") == 0, writes = view || strcmp(word, "merge") == 0;

    if (view && cli->n_args > 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "trace %s takes one file; 'epa2a trace merge' merges several", word);
    if (writes && cli->out == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "trace %s needs --out FILE; - is standard output",
                        word);
    if (cli->stage != NULL && strcmp(word, "merge") != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "trace %s does not take --stage", word);
    if (!writes && cli->out != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "trace %s prints to standard output and does not take --out", word);
    return EPA_OK;
}

static bool print_trace_flaws(const struct trace_file *f, bool quiet)
{
    fputs(f->flaws.data != NULL ? f->flaws.data : "", stdout);
    if (!quiet)
        printf("%s: %zu events, %u finding%s\n", f->path, f->n, f->n_flaws,
               f->n_flaws == 1 ? "" : "s");
    return f->n_flaws == 0;
}

/* Rejects traces of other programs: they have no iterations and stages to summarize. */
static enum epa_status check_written_by_epa2a(const struct trace_file *f, uint32_t n,
                                              struct epa_error *err)
{
    for (uint32_t i = 0; i < n; i++)
        if (!f[i].ours)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: not written by epa2a, so it has no iterations to summarize; trace "
                            "check and trace view take Chrome traces of any program",
                            f[i].path);
    return EPA_OK;
}

/* Runs the subcommand and writes to --out or standard output. Sets *sound to false if check has
 * findings. */
static enum epa_status run_trace_command(const struct cli *cli, struct trace_file *f, uint32_t n,
                                         bool *sound, struct epa_error *err)
{
    const char *word = cli->arg[0];
    text_auto out = {0};

    if (strcmp(word, "view") == 0)
        trace_view(f, &out);
    else if (strcmp(word, "merge") == 0 && trace_merge(f, n, cli->stage, &out, err) != EPA_OK)
        return err->status;
    else if (strcmp(word, "summary") == 0 && check_written_by_epa2a(f, n, err) != EPA_OK)
        return err->status;
    for (uint32_t i = 0; i < n && strcmp(word, "summary") == 0; i++)
        trace_summary(&f[i], &out);
    for (uint32_t i = 0; i < n && strcmp(word, "check") == 0; i++)
        *sound = print_trace_flaws(&f[i], cli->quiet) && *sound;
    return file_write("--out", cli->out != NULL ? cli->out : "-", cli->force, &out, err);
}

int cmd_trace(const struct cli *cli)
{
    uint32_t n = cli->n_args - 1;
    struct trace_file *f = memory_alloc(n, sizeof(*f));
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;
    bool sound = true;

    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        status = trace_read(cli->arg[i + 1], &f[i], &err);
    if (status == EPA_OK)
        status = run_trace_command(cli, f, n, &sound, &err);
    for (uint32_t i = 0; i < n; i++)
        trace_free(&f[i]);
    free(f);
    if (status != EPA_OK)
        return cli_fail(&err);
    return sound ? EXIT_OK : EXIT_WRONG;
}
