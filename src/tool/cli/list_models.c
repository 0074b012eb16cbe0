/* `epa2a list models`: a row for each model of `--model NAME` and `include: model/NAME`. */
#include "cli/list_models.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "cli/cli.h"
#include "cli/cli_fail.h"
#include "cli/documents.h"
#include "cli/list_json.h"
#include "config/diag.h"
#include "config/model.h"
#include "config/node.h"
#include "options/value.h"
#include "report/table.h"

#define WORD(member) offsetof(struct listed_model, member), true
#define NUMBER(member) offsetof(struct listed_model, member), false

/* Facts of a model: its section and key in the file, and its member. The first MODEL_COLUMNS facts are columns
 * of the table. */
static const struct fact {
    struct table_column is;
    const char *section;
    size_t at; /* in struct listed_model: a text if is_text, otherwise a double */
    bool is_text;
} facts[] = {
    {{"name", "model", .digits = 16}, "model", WORD(name)},
    {{"hidden", "hidden", NULL, 0, 0, 6}, "moe", NUMBER(hidden)},
    {{"ffn", "ffn", NULL, 0, 0, 5}, "expert", NUMBER(ffn)},
    {{"experts", "experts", NULL, 0, 0, 7}, "moe", NUMBER(experts)},
    {{"topk", "top-k", NULL, 0, 0, 5}, "moe", NUMBER(topk)},
    {{"layers", "layers", NULL, 0, 0, 6}, "model", NUMBER(layers)},
    {{"moe_layers", "MoE", NULL, 0, 0, 4}, "model", NUMBER(moe_layers)},
    {{"shared_experts", "shared", NULL, 0, 0, 6}, "model", NUMBER(shared_experts)},
    {{"dtype", "tokens", NULL, 0, 0, 6}, "moe", WORD(dtype)},
    {{"weights", "weights", NULL, 0, 0, 7}, "expert", WORD(weights)},
    {{"shared_ffn"}, "model", NUMBER(shared_ffn)},
    {{"checkpoint"}, "model", WORD(checkpoint)},
    {{"source"}, "model", WORD(source)},
};
enum { FACTS = sizeof(facts) / sizeof(facts[0]), MODEL_COLUMNS = FACTS - 3 };

/* Reads a model. Reports a file that cannot be read to `diag`. */
static void read_model(struct arena *arena, const char *name, struct diag *diag,
                       struct listed_model *out)
{
    const struct source_location nowhere = {.file = name};
    const struct node *model = model_read(arena, tree_word(arena, name, &nowhere), diag);

    if (model != NULL)
        out->file = model->location.file;
    for (size_t i = 0; i < FACTS; i++) {
        const struct node *node = node_find(node_find(model, facts[i].section), facts[i].is.key);
        const char *text = node != NULL ? node->text : NULL;
        struct value_error ignored;
        uint64_t whole;
        double number = NAN;

        if (text != NULL && !facts[i].is_text && value_u64(text, &whole, &ignored))
            number = (double)whole;
        if (facts[i].is_text)
            memcpy((char *)out + facts[i].at, &text, sizeof(text));
        else
            memcpy((char *)out + facts[i].at, &number, sizeof(number));
    }
}

static void print_models(struct arena *arena, const struct listed_model *model, uint32_t n)
{
    struct table_column column[MODEL_COLUMNS + 1] = {{0}};
    struct table_row *row = arena_alloc(arena, n * sizeof(*row));

    for (size_t k = 0; k < MODEL_COLUMNS; k++)
        column[k] = facts[k].is;
    for (uint32_t i = 0; i < n; i++) {
        struct table_cell *cell = arena_alloc(arena, MODEL_COLUMNS * sizeof(*cell));

        for (size_t k = 0; k < MODEL_COLUMNS; k++) {
            const char *at = (const char *)&model[i] + facts[k].at;

            cell[k].number = NAN;
            if (facts[k].is_text)
                memcpy(&cell[k].text, at, sizeof(cell[k].text));
            else
                memcpy(&cell[k].number, at, sizeof(cell[k].number));
        }
        row[i].cell = cell;
    }
    table_text(stdout, column, row, n);
}

int list_models(const struct cli *cli)
{
    struct arena *arena = arena_create();
    struct diag *diag = diag_create();
    struct epa_error err = {EPA_OK, ""};
    const char **names;
    uint32_t n = model_names(arena, &names);
    struct listed_model *models = arena_alloc(arena, n * sizeof(*models));
    int code = EXIT_OK;

    for (uint32_t i = 0; i < n; i++)
        read_model(arena, names[i], diag, &models[i]);
    diag_print(diag, stderr);
    if (diag_errors(diag) > 0)
        code = EXIT_USAGE;
    if (n > 0 && !cli_has_stdout(cli))
        print_models(arena, models, n);
    if (n == 0) {
        fprintf(stderr, "epa2a: no models: the folder models of the installation is missing or "
                        "empty\n");
        code = EXIT_RESOURCE;
    }
    if (cli_write_json(cli, list_models_json(models, n), &err) != EPA_OK)
        code = cli_fail(&err);
    diag_destroy(diag);
    arena_destroy(arena);
    return code;
}
