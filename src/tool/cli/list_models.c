/* `epa2a list models`: a row for each model of `--model NAME` and `include: model/NAME`. */
#include "cli/list_models.h"

#include "base/exit_code.h"
#include "base/json.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "config/diag.h"
#include "config/model.h"
#include "config/node.h"
#include "report/table_json.h"
#include "report/summary.h"

/* Columns of the table. The keys are also the keys of --json. */
static const struct column {
    struct table_column is;
    const char *section;
} columns[] = {
    {{"name", "model", .digits = 16}, "model"},
    {{"hidden", "hidden", NULL, 0, 0, 6}, "moe"},
    {{"ffn", "ffn", NULL, 0, 0, 5}, "expert"},
    {{"experts", "experts", NULL, 0, 0, 7}, "moe"},
    {{"topk", "top-k", NULL, 0, 0, 5}, "moe"},
    {{"layers", "layers", NULL, 0, 0, 6}, "model"},
    {{"moe_layers", "MoE", NULL, 0, 0, 4}, "model"},
    {{"shared_experts", "shared", NULL, 0, 0, 6}, "model"},
    {{"dtype", "tokens", NULL, 0, 0, 6}, "moe"},
    {{"weights", "weights", NULL, 0, 0, 7}, "expert"},
};
enum { COLUMNS = sizeof(columns) / sizeof(columns[0]) };
static const char *const others[] = {"shared_ffn", "checkpoint", "source"};

static json_t *node_json(const struct node *node)
{
    json_t *number;

    if (node == NULL)
        return json_null();
    number = node->quoted ? NULL : json_loads(node->text, JSON_DECODE_ANY, NULL);
    if (json_is_integer(number))
        return number;
    json_decref(number);
    return json_text(node->text);
}

/* Returns the facts of a model. Reports a file that cannot be read to `diag`. */
static json_t *model_json(struct arena *arena, const char *name, struct diag *diag)
{
    const struct source_location nowhere = {.file = name};
    const struct node *model = model_read(arena, tree_word(arena, name, &nowhere), diag);
    const struct node *about = node_find(model, "model");
    json_t *out = json_object();

    for (uint32_t i = 0; i < COLUMNS; i++)
        json_object_set_new(
            out, columns[i].is.key,
            node_json(node_find(node_find(model, columns[i].section), columns[i].is.key)));
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        json_object_set_new(out, others[i], node_json(node_find(about, others[i])));
    if (model != NULL)
        json_object_set_new(out, "file", json_text(model->location.file));
    return out;
}

int list_models(const struct cli *cli)
{
    struct arena *arena = arena_create();
    struct diag *diag = diag_create();
    struct epa_error err = {EPA_OK, ""};
    struct table_column shown[COLUMNS + 1] = {{0}};
    json_t *models = json_array();
    const char **names;
    uint32_t n = model_names(arena, &names);
    int code = EXIT_OK;

    for (uint32_t i = 0; i < COLUMNS; i++)
        shown[i] = columns[i].is;
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(models, model_json(arena, names[i], diag));
    diag_print(diag, stderr);
    if (diag_errors(diag) > 0)
        code = EXIT_USAGE;
    if (n > 0 && !cli_has_stdout(cli))
        table_json_text(stdout, shown, models);
    if (n == 0) {
        fprintf(stderr, "epa2a: no models: the folder models of the installation is missing or "
                        "empty\n");
        code = EXIT_RESOURCE;
    }
    if (cli_write_json(cli,
                       json_object_of("schema", json_integer(1), "program", json_text("epa2a"),
                                      "models", models, NULL),
                       &err) != EPA_OK)
        code = cli_fail(&err);
    diag_destroy(diag);
    arena_destroy(arena);
    return code;
}
