/* Any bytes as YAML: a tree or errors, and the tree keeps its promises: no key twice, every
 * scalar with a text, places within the text. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "config/diag.h"
#include "config/tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* Depth is limited by the parser, which is part of what is tested here. */
static void check(const struct node *node, uint32_t depth)
{
    must(depth <= 64 && node->text != NULL);
    must(node->location.line != 0 && node->location.column != 0 && node->location.width != 0);
    must(node->kind != NODE_SCALAR || node->n == 0);
    for (uint32_t i = 0; i < node->n; i++) {
        must(node->kind != NODE_MAP || node->key[i]->kind == NODE_SCALAR);
        must(node->kind != NODE_MAP || node_find(node, node->key[i]->text) == node->item[i] ||
             node->n > 1000);
        check(node->item[i], depth + 1);
    }
}

/* As if it were a file: what is refused is told, and what was escaped comes out as it was. */
static void expand(struct arena *arena, struct diag *diag, struct node *node)
{
    struct text escaped = {0};

    if (node->kind == NODE_SCALAR && !node->refused) {
        struct node copy = *node;

        expand_escape(node->text, &escaped);
        copy.text = escaped.data;
        must(expand_scalar(arena, diag, &copy) && strcmp(copy.text, node->text) == 0);
        must(expand_scalar(arena, diag, node) != node->refused);
    }
    for (uint32_t i = 0; i < node->n; i++)
        expand(arena, diag, node->item[i]);
    text_free(&escaped);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct arena *arena = arena_create();
    struct diag *diag = diag_create();
    FILE *null = fopen("/dev/null", "w");
    struct node *root;
    enum epa_status status;

    status = yaml_parse(arena, "fuzz", (const char *)data, bytes, diag, &root);
    must((status == EPA_OK) == (diag_errors(diag) == 0));
    must(status != EPA_OK || root != NULL);
    if (root != NULL)
        check(root, 1);
    if (root != NULL)
        expand(arena, diag, root);
    if (null != NULL) {
        diag_print(diag, null);
        fclose(null);
    }
    diag_destroy(diag);
    arena_destroy(arena);
    return 0;
}
