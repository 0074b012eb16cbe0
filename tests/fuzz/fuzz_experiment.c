/* Fuzzes YAML and whole experiments with arbitrary bytes. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "config/tree.h"
#include "config/diag.h"
#include "config/expand.h"
#include "config/experiment_show.h"
#include "config/node.h"
#include "config/yaml.h"
#include "experiment/batch.h"
#include "fuzz.h"
#include "options/options_from_text.h"
#include "registry/registry.h"

/* ---- YAML: the parser returns a tree or errors. In a tree no key repeats, every scalar has a
 * text, and locations lie in the text. ---- */

/* The parser limits the depth; this limit is part of the test. */
static void check(const struct node *node, uint32_t depth)
{
    demand(depth <= 64 && node->text != NULL);
    demand(node->location.line != 0 && node->location.column != 0 && node->location.width != 0);
    demand(node->kind != NODE_SCALAR || node->n == 0);
    for (uint32_t i = 0; i < node->n; i++) {
        demand(node->kind != NODE_MAP || node->key[i]->kind == NODE_SCALAR);
        demand(node->kind != NODE_MAP || node_find(node, node->key[i]->text) == node->item[i] ||
               node->n > 1000);
        check(node->item[i], depth + 1);
    }
}

/* Expands the tree like a file. Each refusal is reported, and an escaped text expands to itself. */
static void expand(struct arena *arena, struct diag *diag, struct node *node)
{
    struct text escaped = {0};

    if (node->kind == NODE_SCALAR && !node->refused) {
        struct node copy = *node;

        expand_escape(node->text, &escaped);
        copy.text = escaped.data;
        demand(expand_scalar(arena, diag, &copy) && strcmp(copy.text, node->text) == 0);
        demand(expand_scalar(arena, diag, node) != node->refused);
    }
    for (uint32_t i = 0; i < node->n; i++)
        expand(arena, diag, node->item[i]);
    text_free(&escaped);
}

void fuzz_yaml(const uint8_t *data, size_t bytes)
{
    struct arena *arena = arena_create();
    struct diag *diag = diag_create();
    FILE *null = fopen("/dev/null", "w");
    struct node *root;
    enum epa_status status;

    status = yaml_parse(arena, "fuzz", (const char *)data, bytes, 0, false, diag, &root);
    demand((status == EPA_OK) == (diag_errors(diag) == 0));
    demand(status != EPA_OK || root != NULL);
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
}

/* ---- a whole experiment with --set: lines before the first "===" line are sets, the file follows.
 * An accepted experiment must be accepted again after it was shown, with the same text. ---- */

enum { SETS = 16 };

struct input {
    char *text; /* the whole input; sets are cut out of its lines */
    const char *set[SETS];
    uint32_t n_sets;
    const char *yaml;
    size_t yaml_bytes;
};

static struct input cut(const uint8_t *data, size_t bytes)
{
    struct input in = {.text = malloc(bytes + 1)};
    char *line, *mark;

    memcpy(in.text, data, bytes);
    in.text[bytes] = 0;
    in.yaml = in.text;
    in.yaml_bytes = bytes;
    mark = strstr(in.text, "===\n");
    if (mark == NULL)
        return in;
    *mark = 0;
    in.yaml = mark + 4;
    in.yaml_bytes = bytes - (size_t)(in.yaml - in.text);
    for (line = strtok(in.text, "\n"); line != NULL && in.n_sets < SETS; line = strtok(NULL, "\n"))
        in.set[in.n_sets++] = line;
    return in;
}

static const struct batch_pick all;

static enum epa_status read_bytes(const char *text, size_t bytes, const char *const *sets,
                                  uint32_t n_sets, struct batch **out)
{
    struct diag *diag = diag_create();
    enum epa_status status =
        batch_read(fuzz_file(text, bytes), NULL, sets, n_sets, &all, 0, NULL, diag, out);
    char *said = NULL;
    size_t n = 0;
    FILE *file;

    demand((status == EPA_OK) == (diag_errors(diag) == 0));
    file = open_memstream(&said, &n);
    diag_print(diag, file);
    fclose(file);
    free(said);
    diag_destroy(diag);
    return status;
}

/* Reads the runs of the file, if it has any: each name is unique and selects one experiment. */
static void read_runs(const struct input *in)
{
    const char *path = fuzz_file(in->yaml, in->yaml_bytes);
    struct diag *diag = diag_create();
    struct batch *batch = NULL;

    if (batch_read(path, NULL, in->set, in->n_sets, &all, 64, NULL, diag, &batch) == EPA_OK) {
        demand(batch->n > 0 && batch->n <= 64 && (batch->n > 1 || diag_errors(diag) == 0));
        for (uint32_t i = 0; i < batch->n; i++) {
            const struct batch_run *run = &batch->run[i];

            demand(run->label != NULL && (run->x == NULL) != (run->absent.status == EPA_OK) &&
                   (run->x == NULL || strlen(run->x->id) == 12));
        }
        batch_destroy(batch);
    } else {
        demand(diag_errors(diag) != 0);
    }
    diag_destroy(diag);
}

/* Reads a text as options of a table with every type. */
static void read_option_text(const char *text)
{
    struct epa_error err = {EPA_OK, ""};
    struct options_memory memory = {0};
    const struct epa_plugin *plugin;
    enum epa_status status;
    void *config;

    demand(registry_find(NULL, EPA_PLUGIN_TRANSPORT, "shm", &plugin, &err) == EPA_OK);
    config = calloc(1, plugin->options.size);
    demand(config != NULL);
    status = options_from_text(&plugin->options, text, &memory, config, &err);
    demand(status == err.status && (status == EPA_OK || status == EPA_ERR_CONFIG));
    free(config);
    options_memory_free(&memory);
}

void fuzz_options(const uint8_t *data, size_t bytes)
{
    struct input in = cut(data, bytes);
    struct text first = {0}, second = {0};
    struct batch *base = NULL;

    if (read_bytes(in.yaml, in.yaml_bytes, in.set, in.n_sets, &base) == EPA_OK) {
        experiment_show(base->run[0].x, false, &first);
        batch_destroy(base);
        demand(read_bytes(first.data, first.bytes, NULL, 0, &base) == EPA_OK);
        experiment_show(base->run[0].x, false, &second);
        batch_destroy(base);
        demand(strcmp(first.data, second.data) == 0);
    }
    read_runs(&in);
    for (uint32_t i = 0; i < in.n_sets; i++)
        read_option_text(in.set[i]);
    read_option_text(in.yaml);
    text_free(&first);
    text_free(&second);
    free(in.text);
}
