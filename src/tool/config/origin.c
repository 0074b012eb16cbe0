/* Source locations of the values of an experiment, and of the option that an error names. */
#include "config/origin.h"

#include <stdio.h>
#include <string.h>

#include "config/experiment.h"
#include "config/node.h"
#include "options/option.h"

const struct node *origin_find(const struct experiment *x, const char *key)
{
    const struct node *map = x->origin; /* NULL: built in code, not read from a file */
    const char *dot;
    char part[64];

    /* A key of expect may contain a dot. */
    while (map != NULL && node_find(map, key) == NULL && (dot = strchr(key, '.')) != NULL) {
        snprintf(part, sizeof(part), "%.*s", (int)(dot - key), key);
        map = node_find(map, part);
        key = dot + 1;
    }
    return node_find(map, key);
}

/* Returns the node of the first key that the user has set, in a file if `in_file`; NULL: none.
 * `name`: looks for the names of the plugins instead, "transport.name" for "transport.depth". */
static const struct node *find_first(const struct experiment *x, const char *keys, bool in_file,
                                     bool name)
{
    char key[sizeof(((struct epa_error *)NULL)->key)];

    for (size_t n; *keys != '\0'; keys += n + strspn(keys + n, " ")) {
        const struct node *node;

        n = strcspn(keys, " ");
        if (name)
            snprintf(key, sizeof(key), "%.*s.name", (int)strcspn(keys, ". "), keys);
        else
            snprintf(key, sizeof(key), "%.*s", (int)n, keys);
        node = origin_find(x, key);
        if (node != NULL && !(in_file && strcmp(node->location.file, "--set") == 0))
            return node;
    }
    return NULL;
}

const struct node *origin_in_file(const struct experiment *x, const struct epa_error *err)
{
    return find_first(x, err->key, true, false);
}

struct source_location origin_of_error(const struct experiment *x, const struct epa_error *err)
{
    const struct node *node = find_first(x, err->key, false, false);

    if (node == NULL) /* the option has its default */
        node = find_first(x, err->key, false, true);
    if (node == NULL)
        node = origin_find(x, "algorithm.name");
    return node != NULL ? node->location : (struct source_location){.file = x->file};
}
