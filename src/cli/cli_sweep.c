/* The letters that benchmarks of communication share, as settings of an experiment: they go
 * over the file and, being added last, over --set. */
#include "cli/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "config/batch.h"
#include "config/diag.h"
#include "config/tree.h"
#include "op/op.h"

/* Whether a file has the section that an operation's size is in. */
static bool has_section(const struct tree *tree, const struct operation *op)
{
    char section[64];

    snprintf(section, sizeof(section), "%.*s", (int)strcspn(op->size_key, "."), op->size_key);
    return tree->root != NULL && node_find(tree->root, section) != NULL;
}

/* The sizes of the operation that the first file has a section for. */
static const char *size_key(const struct cli *cli)
{
    struct tree tree = {.arena = arena_create(), .diag = diag_create()};
    const struct operation *op = NULL;

    if (cli->n_args > 0)
        batch_read_tree(&tree, cli->arg[0], NULL, 0);
    for (uint32_t i = 0; op == NULL && operation_at(i) != NULL; i++)
        if (has_section(&tree, operation_at(i)))
            op = operation_at(i);
    diag_destroy(tree.diag);
    arena_destroy(tree.arena);
    return (op != NULL ? op : operation_at(0))->size_key;
}

static enum epa_status sweep_tokens(struct cli *cli, struct sweep *out, struct epa_error *err)
{
    uint64_t least = cli->tokens_min != 0 ? cli->tokens_min : 1;
    uint64_t most = cli->tokens_max != 0 ? cli->tokens_max : least;
    uint64_t factor = cli->tokens_factor != 0 ? cli->tokens_factor : 2;
    size_t used = (size_t)snprintf(out->tokens, sizeof(out->tokens), "matrix.%s=[%" PRIu64,
                                   size_key(cli), least);

    if (cli->tokens_min == 0 && cli->tokens_max == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "-f %" PRIu64 " needs to know from where to where: -b 1 -e 128 -f "
                        "%" PRIu64,
                        factor, factor);
    if (least > most)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "-b %" PRIu64 " is more than -e %" PRIu64 ": sizes go up", least, most);
    for (uint64_t at = least * factor; at <= most; at *= factor)
        used += (size_t)snprintf(out->tokens + used, sizeof(out->tokens) - used, ", %" PRIu64, at);
    snprintf(out->tokens + used, sizeof(out->tokens) - used, "]");
    return EPA_OK;
}

enum epa_status cli_sweep(const struct command *command, struct cli *cli, const char **set,
                          struct sweep *out, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    if (cli->tokens_min != 0 || cli->tokens_max != 0 || cli->tokens_factor != 0) {
        status = sweep_tokens(cli, out, err);
        set[cli->n_sets++] = out->tokens;
    }
    if (cli->iterations != 0) {
        snprintf(out->iterations, sizeof(out->iterations), "%s.iterations=%" PRIu64, command->name,
                 cli->iterations);
        set[cli->n_sets++] = out->iterations;
    }
    if (cli->has_warmup) {
        snprintf(out->warmup, sizeof(out->warmup), "bench.warmup=%" PRIu64, cli->warmup);
        set[cli->n_sets++] = out->warmup;
    }
    return status;
}
