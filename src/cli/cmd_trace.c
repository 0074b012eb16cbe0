/* trace: what `profile:` wrote, checked, made one, put into words and drawn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "base/file.h"
#include "trace/read.h"

static const struct action {
    const char *name;
    bool writes; /* into --out */
    bool one;    /* takes one file */
} actions[] = {
    {"check", false, false},
    {"summary", false, false},
    {"merge", true, false},
    {"view", true, true},
};

static const struct action *find_action(const char *name)
{
    for (size_t i = 0; i < sizeof(actions) / sizeof(actions[0]); i++) {
        if (strcmp(actions[i].name, name) == 0)
            return &actions[i];
    }
    return NULL;
}

enum epa_status cmd_trace_check(const struct cli *cli, struct epa_error *err)
{
    const char *word = cli->n_args == 0 ? "" : cli->arg[0];
    const struct action *action = find_action(word);

    if (action == NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "there is no trace '%s'; there is check, summary, merge, view", word);
    if (cli->n_args < 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "trace %s needs a file that profile: wrote: 'epa2a trace %s "
                        "FILE.json'",
                        word, word);
    if (action->one && cli->n_args > 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "trace %s takes one file; 'epa2a trace merge' makes several one", word);
    if (action->writes && cli->out == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "trace %s needs --out FILE; - is standard output",
                        word);
    if (!action->writes && cli->out != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "trace %s prints and does not take --out", word);
    return EPA_OK;
}

/* ---- what goes to standard output ---- */

static enum epa_status check_one(struct trace_file *f, bool quiet, bool *sound,
                                 struct epa_error *err)
{
    enum epa_status status = trace_check(f, err);

    if (status != EPA_OK)
        return status;
    if (f->flaws.data != NULL)
        fputs(f->flaws.data, stdout);
    if (!quiet)
        printf("%s: %zu events, %u finding%s\n", f->path, f->n, f->n_flaws,
               f->n_flaws == 1 ? "" : "s");
    *sound = f->n_flaws == 0;
    return EPA_OK;
}

static enum epa_status summarise(const struct trace_file *f, struct epa_error *err)
{
    struct text out = {0};
    enum epa_status status = trace_summary(f, &out, err);

    if (status == EPA_OK && out.data != NULL)
        fputs(out.data, stdout);
    text_free(&out);
    return status;
}

/* ---- what goes to a file ---- */

static enum epa_status write_out(const struct cli *cli, const struct trace_file *f, uint32_t n,
                                 struct epa_error *err)
{
    const char *word = cli->arg[0];
    struct text out = {0};
    enum epa_status status =
        strcmp(word, "merge") == 0 ? trace_merge(f, n, &out, err) : trace_view(f, &out, err);

    if (status == EPA_OK)
        status = file_write("--out", cli->out, cli->force, &out, err);
    text_free(&out);
    return status;
}

/* ---- the command ---- */

static enum epa_status work(const struct cli *cli, struct trace_file *f, uint32_t n, bool *sound,
                            struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    bool one = true;

    if (find_action(cli->arg[0])->writes)
        return write_out(cli, f, n, err);
    for (uint32_t i = 0; i < n && status == EPA_OK; i++) {
        if (strcmp(cli->arg[0], "summary") == 0) {
            status = summarise(&f[i], err);
        } else {
            status = check_one(&f[i], cli->quiet, &one, err);
            *sound = *sound && one;
        }
    }
    return status;
}

int cmd_trace(const struct cli *cli)
{
    uint32_t n = cli->n_args - 1, read = 0;
    struct trace_file *f = calloc(n, sizeof(*f));
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;
    bool sound = true;

    if (f == NULL)
        status = epa_fail(&err, EPA_ERR_NOMEM, "no memory for %u traces", n);
    if (status == EPA_OK && cli->out != NULL)
        status = file_check("--out", cli->out, cli->force, &err);
    for (; read < n && status == EPA_OK; read++)
        status = trace_read(cli->arg[read + 1], &f[read], &err);
    if (status == EPA_OK)
        status = work(cli, f, n, &sound, &err);
    for (uint32_t i = 0; i < read; i++)
        trace_free(&f[i]);
    free(f);
    if (status != EPA_OK)
        return cli_fail(&err);
    return sound ? EXIT_OK : EXIT_WRONG;
}
