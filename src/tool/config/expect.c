/* Expectations: bounds of the figures of a result. */
#include "config/expect.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "config/diag.h"
#include "config/node.h"
#include "config/options.h"
#include "config/option_text.h"

/* Limit of bounds; the search for keys takes quadratic time. */
enum { MOST_BOUNDS = 1000 };

double expect_bound(const struct epa_option *figure, const struct expect_bounds *bounds)
{
    const void *field = (const char *)bounds + figure->offset;

    if (!option_is_set(figure, bounds))
        return NAN;
    return figure->type == EPA_OPTION_DURATION ? (double)*(const uint64_t *)field
                                               : *(const double *)field;
}

const struct expect_bounds *expect_row_at(const struct expect_options *x, uint32_t i,
                                          const char **name)
{
    *name = i > 0 && i <= x->n_rows ? x->row[i - 1].name : "";
    return i == 0 ? &x->last : i <= x->n_rows ? &x->row[i - 1].bounds : NULL;
}

bool expect_wrong_is_set(const struct expect_options *x)
{
    return option_is_set(&expect_table[0], x);
}

bool expect_is_set(const struct expect_options *x)
{
    for (const struct epa_option *o = expect_figures; o->name != NULL; o++)
        if (option_is_set(o, x))
            return true;
    return x->n_rows > 0 || expect_wrong_is_set(x);
}

struct node *expect_flatten(struct arena *arena, const struct node *map)
{
    struct node *flat = node_make(arena, NODE_MAP, &map->location);

    for (uint32_t i = 0; i < map->n && flat->n <= MOST_BOUNDS; i++) {
        struct node *key = map->key[i], *item = map->item[i];

        if (item->kind != NODE_MAP)
            node_set(arena, flat, key, item);
        for (uint32_t k = 0; item->kind == NODE_MAP && k < item->n && flat->n <= MOST_BOUNDS; k++)
            node_set(arena, flat,
                     tree_word(arena, arena_printf(arena, "%s.%s", key->text, item->key[k]->text),
                               &item->key[k]->location),
                     item->item[k]);
    }
    return flat;
}

void expect_read(const struct node *map, struct arena *arena, struct diag *diag,
                 struct expect_options *out)
{
    const struct epa_options figures = {.table = expect_figures};
    const struct section *section = section_find("expect");
    struct node *others = node_make(arena, NODE_MAP, &map->location);
    struct expect_row *row = arena_alloc(arena, (map->n + 1) * sizeof(*row));
    uint32_t n = 0;

    if (map->n > MOST_BOUNDS) {
        diag_error(diag, &map->location, NULL, "expect: more than %d bounds", MOST_BOUNDS);
        return;
    }
    for (uint32_t i = 0; i < map->n; i++) {
        const char *key = map->key[i]->text, *dot = strrchr(key, '.');
        const struct epa_option *option = dot != NULL ? option_find(&figures, dot + 1) : NULL;
        uint32_t at = 0;

        if (option == NULL) {
            node_append(arena, others, map->key[i], map->item[i]);
            continue;
        }
        key = arena_strndup(arena, key, (size_t)(dot - key));
        while (at < n && strcmp(row[at].name, key) != 0)
            at++;
        if (at == n)
            row[n++] = (struct expect_row){key, EXPECT_ANY};
        option_read(option, arena_printf(arena, "expect.%s", map->key[i]->text), map->item[i],
                    arena, diag, &row[at].bounds);
    }
    options_read(&section->options, section->name, NULL, others, arena, diag, out);
    out->row = row;
    out->n_rows = n;
}
