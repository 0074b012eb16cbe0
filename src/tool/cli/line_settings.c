/* Options for settings of an experiment, such as -b, -e and -n, which communication benchmarks share.
 * These settings follow --set, so they override both the file and --set. */
#include "cli/line_settings.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/repeat_result.h"
#include "config/diag.h"
#include "config/model.h"
#include "experiment/batch.h"
#include "op/operations.h"

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
    uint64_t least = cli->settings.tokens_min != 0 ? cli->settings.tokens_min : 1;
    uint64_t most = cli->settings.tokens_max != 0 ? cli->settings.tokens_max : least;
    uint64_t factor = cli->settings.tokens_factor != 0 ? cli->settings.tokens_factor : 2;
    const char *set;

    if (cli->n_args > 0 && is_result(cli->arg[0]))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "-b, -e and -f make runs of an experiment, but %s is a result",
                        cli->arg[0]);
    if (cli->settings.tokens_min == 0 && cli->settings.tokens_max == 0)
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

    for (uint32_t i = 0; i < cli->settings.n_models; i++)
        for (const char *at = cli->settings.model[i]; at != NULL;) {
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

enum epa_status line_add_settings(struct line *line, struct epa_error *err)
{
    struct cli *cli = &line->cli;
    enum epa_status status = add_models(line, err);

    if (status == EPA_OK && (cli->settings.tokens_min != 0 || cli->settings.tokens_max != 0 ||
                             cli->settings.tokens_factor != 0))
        status = add_token_sweep(line, err);
    if (cli->settings.api)
        cli->set[cli->n_sets++] = "api=calls";
    if (cli->settings.iterations != 0)
        cli->set[cli->n_sets++] = arena_printf(line->arena, "%s.iterations=%" PRIu64,
                                               line->command->name, cli->settings.iterations);
    if (cli->settings.warmup != UINT64_MAX)
        cli->set[cli->n_sets++] =
            arena_printf(line->arena, "bench.warmup=%" PRIu64, cli->settings.warmup);
    if (cli->settings.timeout_ns != 0)
        cli->set[cli->n_sets++] =
            arena_printf(line->arena, "timeout=%" PRIu64 "ns", cli->settings.timeout_ns);
    return status;
}
