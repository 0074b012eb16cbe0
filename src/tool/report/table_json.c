/* Reads the cells of a table from JSON objects. */
#include "report/table_json.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

static struct table_cell cell_of(const json_t *row, const char *key)
{
    const json_t *whole = json_object_get(row, key);
    const json_t *value = whole != NULL ? whole : json_at(row, key);

    if (value == NULL)
        return (struct table_cell){.text = ""};
    return (struct table_cell){json_string_value(value),
                               json_is_number(value) ? json_number_value(value) : NAN};
}

static enum table_colour colour_of(const json_t *row)
{
    const char *colour = json_text_at(row, "colour");

    return colour[0] == '\0' ? TABLE_PLAIN : strcmp(colour, "bad") == 0 ? TABLE_BAD : TABLE_GOOD;
}

static const struct table_row *rows_of(struct arena *arena, const struct table_column *columns,
                                       const json_t *rows)
{
    struct table_row *out = arena_alloc(arena, json_array_size(rows) * sizeof(*out));
    size_t n = 0;

    while (columns[n].key != NULL)
        n++;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        struct table_cell *cell = arena_alloc(arena, n * sizeof(*cell));

        for (size_t k = 0; k < n; k++)
            cell[k] = cell_of(row, columns[k].key);
        out[i] = (struct table_row){cell, colour_of(row)};
    }
    return out;
}

void table_json_text(FILE *file, const struct table_column *columns, const json_t *rows)
{
    struct arena *arena = arena_create();

    table_text(file, columns, rows_of(arena, columns, rows), json_array_size(rows));
    arena_destroy(arena);
}

void table_json_add(struct text *out, enum table_form how, const struct table_column *columns,
                    const json_t *rows)
{
    struct arena *arena = arena_create();

    table_add(out, how, columns, rows_of(arena, columns, rows), json_array_size(rows));
    arena_destroy(arena);
}
