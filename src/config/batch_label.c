/* What runs are called: by what the file says of them for people, and by a hash of all that
 * they are for files and scripts. */
#include "config/batch.h"

#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "config/experiment_table.h"

enum { LABEL_MOST = 200 };

static void add_text(struct text *out, const struct node *node)
{
    if (node->kind == NODE_SCALAR) {
        bool plain = *node->text != 0 && strpbrk(node->text, " ,{}[]:") == NULL;

        text_add(out, plain ? "%s" : "\"%s\"", node->text);
        return;
    }
    text_add(out, node->kind == NODE_LIST ? "[" : "{");
    for (uint32_t i = 0; i < node->n; i++) {
        if (i > 0)
            text_add(out, ", ");
        if (node->kind == NODE_MAP)
            text_add(out, "%s: ", node->key[i]->text);
        add_text(out, node->item[i]);
    }
    text_add(out, node->kind == NODE_LIST ? "]" : "}");
}

static void add_point(struct text *out, const struct node *point)
{
    for (uint32_t i = 0; i < point->n; i++) {
        text_add(out, "%s%s=", out->bytes == 0 ? "" : " ", point->key[i]->text);
        add_text(out, point->item[i]);
    }
}

/* One line that a terminal shows and does not obey. */
static const char *clean_label(struct arena *arena, const struct text *text)
{
    size_t n = text->bytes;
    char *label;

    if (n > LABEL_MOST)
        for (n = LABEL_MOST; n > 0 && ((unsigned char)text->data[n] & 0xc0) == 0x80; n--)
            ;
    label = arena_printf(arena, "%.*s%s", (int)n, text->data, n < text->bytes ? "..." : "");
    for (char *c = label; *c != 0; c++)
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
    return label;
}

const char *batch_label(struct arena *arena, const char *name, const struct node *matrix,
                        const struct node *zip, uint32_t repetition)
{
    struct text text = {0};
    const char *label = NULL;

    if (name != NULL)
        text_add(&text, "%s", name);
    add_point(&text, matrix);
    add_point(&text, zip);
    if (repetition > 0)
        text_add(&text, "%s#%u", text.bytes == 0 ? "" : " ", repetition);
    if (text.bytes > 0)
        label = clean_label(arena, &text);
    text_free(&text);
    return label;
}

struct hashing {
    const struct experiment *x;
    uint64_t hash;
};

/* FNV-1a. */
static void hash_text(uint64_t *hash, const char *text)
{
    do
        *hash = (*hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    while (*text++ != 0);
}

/* A path counts as it was written: what it leads to stands elsewhere on each machine. */
static void hash_value(void *arg, const char *key, const char *value, bool quoted)
{
    struct hashing *h = arg;
    bool path = strcmp(key, "routing.path") == 0 || strcmp(key, "routing.hidden_states") == 0;
    const struct node *written = path ? origin_find(h->x, key) : NULL;

    (void)quoted;
    if (strcmp(key, "name") == 0 || strncmp(key, "profile.", 8) == 0 ||
        strncmp(key, "expect.", 7) == 0)
        return; /* what it is called, who watches, and what they hope for */
    hash_text(&h->hash, key);
    hash_text(&h->hash, written != NULL ? written->text : value);
}

uint64_t batch_hash(const struct experiment *x)
{
    struct hashing h = {x, UINT64_C(14695981039346656037)};

    experiment_visit(x, hash_value, &h);
    return (h.hash ^ h.hash >> 48) & UINT64_C(0xffffffffffff);
}
