/* Selects plugins and reads their options. The texts are divided into entries, each entry is assigned
 * to a part (a plugin, or the keys of the selection itself), then each part reads its entries. */
#include "options/choose.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

/* ---- keys of the selection ---- */

struct head {
    const char *transport, *algorithm, *backend;
    uint64_t timeout_ns;
    uint32_t threads, ranks_per_node;
};

static const struct head head_defaults;
static const struct epa_option head_table[] = {
    {.name = "transport", EPA_STRING(struct head, transport), .help = "transport between ranks"},
    {.name = "algorithm", EPA_STRING(struct head, algorithm), .help = "algorithm of the operation"},
    {.name = "backend", EPA_STRING(struct head, backend), .help = "memory and execution of a rank"},
    {.name = "timeout",
     EPA_DURATION(struct head, timeout_ns),
     .min = 1000000,
     .help = "time-out of each wait for a peer"},
    {.name = "threads",
     EPA_U32(struct head, threads),
     .min = 1,
     .max = 256,
     .help = "number of workers of a rank on hosts, including the thread of the caller"},
    {.name = "ranks_per_node",
     EPA_U32(struct head, ranks_per_node),
     .min = 1,
     .max = 4096,
     .help = "number of ranks of a host that form a node, for algorithms that distinguish nodes"},
    {0},
};
static const struct epa_options head_options = {head_table, sizeof(struct head), &head_defaults};

/* ---- assignment of entries to parts ---- */

enum part { PART_TRANSPORT, PART_ALGORITHM, PART_BACKEND, PART_BETWEEN, PARTS, PART_HEAD = PARTS };

/* A key belongs to the last part that is a prefix of it. */
static const char *const part_names[PARTS] = {"transport", "algorithm", "backend",
                                              "transport.between_nodes"};
static const char between_option[] = "between_nodes"; /* names the plugin of PART_BETWEEN */

/* An entry of a text with its part. */
struct assigned {
    const struct choose_source *source;
    uint32_t number; /* of the source */
    enum part part;
    struct options_entry entry;
    const char *name; /* key without prefix */
    bool ignored;     /* the entry is for another operation */
};

struct choosing {
    struct registry *registry;
    const struct choose_params *params;
    struct options_memory *memory;
    struct epa_error *err;
    struct assigned *assigned;
    uint32_t n;
    struct head head;
    const struct epa_plugin *plugin[PARTS];
    void *config[PARTS];
    uint32_t first[PARTS]; /* entries of earlier sources belong to another plugin */
};

static enum epa_status fail_memory(const struct choosing *c)
{
    return epa_fail(c->err, EPA_ERR_NOMEM, "options: no memory");
}

static void assign_part(struct assigned *a)
{
    const char *key = a->entry.key;

    a->name = key;
    a->part = option_find(&head_options, key) != NULL ? PART_HEAD : PART_ALGORITHM;
    for (int p = 0; p < PARTS; p++) {
        size_t bytes = strlen(part_names[p]);

        if (strncmp(key, part_names[p], bytes) != 0 || key[bytes] != '.')
            continue;
        a->name = key + bytes + 1;
        a->part = (enum part)p;
        if (strcmp(a->name, "name") == 0) {
            a->name = p == PART_BETWEEN ? between_option : part_names[p];
            a->part = p == PART_BETWEEN ? PART_TRANSPORT : PART_HEAD;
        }
    }
}

static enum epa_status add_entry(struct choosing *c, uint32_t number,
                                 const struct options_entry *entry)
{
    struct assigned *a = &c->assigned[c->n];

    *a = (struct assigned){.source = &c->params->source[number], .number = number, .entry = *entry};
    assign_part(a);
    for (uint32_t i = 0; i < c->n; i++)
        if (c->assigned[i].number == number && c->assigned[i].part == a->part &&
            strcmp(c->assigned[i].name, a->name) == 0)
            return epa_fail(c->err, EPA_ERR_CONFIG,
                            "%s: key '%.64s' is set twice; keep one of them", a->source->name,
                            entry->key);
    c->n++;
    return EPA_OK;
}

static enum epa_status assign_entries(struct choosing *c)
{
    const struct options_entry *entry;
    enum epa_status status = EPA_OK;
    uint32_t n, room = c->params->sources * OPTIONS_ENTRIES;

    c->assigned = options_memory_alloc(c->memory, room * sizeof(*c->assigned));
    if (c->assigned == NULL)
        return fail_memory(c);
    for (uint32_t i = 0; i < c->params->sources && status == EPA_OK; i++) {
        const struct choose_source *source = &c->params->source[i];

        if (source->text == NULL)
            continue;
        status = options_split(source->name, source->text, c->memory, &entry, &n, c->err);
        for (uint32_t k = 0; status == EPA_OK && k < n; k++)
            status = add_entry(c, i, &entry[k]);
    }
    return status;
}

/* Returns true if the text is the name of an algorithm of another operation. Only the descriptor of
 * the plugin has the operation, so the plugin is loaded. */
static bool is_of_other_operation(const struct choosing *c, const char *name)
{
    struct epa_error ignored = {EPA_OK, ""};
    const struct epa_plugin *plugin;

    return registry_find(c->registry, EPA_PLUGIN_ALGORITHM, name, &plugin, &ignored) == EPA_OK &&
           ((const struct epa_algorithm_plugin *)(const void *)plugin)->op != c->params->op;
}

/* Ignores algorithms of other operations in shared texts, with their options. */
static void ignore_other_operations(struct choosing *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct assigned *a = &c->assigned[i];

        if (!a->source->shared || a->part != PART_HEAD || strcmp(a->name, "algorithm") != 0 ||
            a->entry.value.form != OPTION_SCALAR || !is_of_other_operation(c, a->entry.value.text))
            continue;
        a->ignored = true;
        for (uint32_t k = 0; k < c->n; k++)
            if (c->assigned[k].number == a->number && c->assigned[k].part == PART_ALGORITHM)
                c->assigned[k].ignored = true;
    }
}

static enum epa_status read_head(struct choosing *c)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < c->n && status == EPA_OK; i++) {
        const struct assigned *a = &c->assigned[i];

        if (a->part != PART_HEAD || a->ignored)
            continue;
        status = options_store(a->source->name, option_find(&head_options, a->name), &a->entry,
                               c->memory, &c->head, c->err);
        for (int p = 0; p < PARTS; p++)
            if (strcmp(a->name, part_names[p]) == 0)
                c->first[p] = a->number;
    }
    /* Options of a transport between nodes belong to the last transport that names one. */
    c->first[PART_BETWEEN] = c->first[PART_TRANSPORT];
    for (uint32_t i = 0; i < c->n; i++)
        if (c->assigned[i].part == PART_TRANSPORT &&
            strcmp(c->assigned[i].name, between_option) == 0 &&
            c->assigned[i].number > c->first[PART_BETWEEN])
            c->first[PART_BETWEEN] = c->assigned[i].number;
    return status;
}

/* ---- options of plugins ---- */

static enum epa_status fail_unknown(const struct choosing *c, const struct assigned *a)
{
    const struct epa_options *options = &c->plugin[a->part]->options;
    struct nearest nearest = {.want = a->name};
    char hint[OPTION_HINT_ROOM];
    bool prefixed = a->name != a->entry.key;

    if (!option_unknown_hint(options, prefixed ? "name" : NULL, a->name, hint, sizeof(hint)) &&
        !prefixed) {
        nearest_try_table(&nearest, head_table, sizeof(*head_table));
        if (nearest.name != NULL)
            nearest_hint(&nearest, hint, "");
        for (int p = 0; p < PARTS; p++)
            if (c->plugin[p] != NULL && option_find(&c->plugin[p]->options, a->name) != NULL)
                snprintf(hint, sizeof(hint), "did you mean '%s.%s'?", part_names[p], a->name);
    }
    return epa_fail(c->err, EPA_ERR_CONFIG, "%s: unknown key '%.64s' in %s '%s'; %s",
                    a->source->name, a->entry.key, part_names[a->part], c->plugin[a->part]->name,
                    hint);
}

/* Stores the options of a text that the plugin has. */
static enum epa_status store_preset(struct choosing *c, enum part part, const char *text)
{
    const struct options_entry *entry = NULL;
    enum epa_status status;
    uint32_t n = 0;

    status = options_split("preset", text, c->memory, &entry, &n, c->err);
    for (uint32_t i = 0; i < n && status == EPA_OK; i++) {
        const struct epa_option *option = option_find(&c->plugin[part]->options, entry[i].key);

        if (option != NULL)
            status = options_store("preset", option, &entry[i], c->memory, c->config[part], c->err);
    }
    return status;
}

/* Returns true if an unknown key may belong to another operation: see struct choose_source. */
static bool may_be_of_other_operation(const struct choosing *c, const struct assigned *a)
{
    return a->part == PART_ALGORITHM && a->source->shared && c->params->op != EPA_OP_MOE &&
           !(c->head.algorithm != NULL && c->first[PART_ALGORITHM] == a->number);
}

static enum epa_status read_plugin(struct choosing *c, enum part part, const char *preset)
{
    const struct epa_options *options = &c->plugin[part]->options;
    enum epa_status status = EPA_OK;

    c->config[part] = options_memory_alloc(c->memory, options->size);
    if (c->config[part] == NULL)
        return fail_memory(c);
    if (options->size != 0)
        memcpy(c->config[part], options->defaults, options->size);
    if (preset != NULL)
        status = store_preset(c, part, preset);
    for (uint32_t i = 0; i < c->n && status == EPA_OK; i++) {
        const struct assigned *a = &c->assigned[i];
        const struct epa_option *option = option_find(options, a->name);

        if (a->part != part || a->ignored || a->number < c->first[part])
            continue;
        if (option != NULL)
            status = options_store(a->source->name, option, &a->entry, c->memory, c->config[part],
                                   c->err);
        else if (!may_be_of_other_operation(c, a))
            status = fail_unknown(c, a);
    }
    return status;
}

/* ---- plugins ---- */

static struct selection selection_of(const struct choosing *c)
{
    return (struct selection){
        .algorithm = (const void *)c->plugin[PART_ALGORITHM],
        .backend = (const void *)c->plugin[PART_BACKEND],
        .transport = (const void *)c->plugin[PART_TRANSPORT],
        .between = (const void *)c->plugin[PART_BETWEEN],
    };
}

static bool has_several_nodes(const struct choosing *c)
{
    const struct epa_world *world = c->params->world;

    for (uint32_t r = 0; world != NULL && r < world->size; r++)
        if (!epa_same_node(world, r))
            return true;
    return false;
}

/* Finds the named plugin, or without a name the first of `usual` that can be loaded. The message is
 * about the first. */
static enum epa_status find_plugin(struct choosing *c, enum epa_plugin_kind kind, const char *name,
                                   const char *const usual[2], const struct epa_plugin **out)
{
    struct epa_error ignored = {EPA_OK, ""};
    enum epa_status status;

    status = registry_find(c->registry, kind, name != NULL ? name : usual[0], out, c->err);
    if (status != EPA_ERR_UNSUPPORTED || name != NULL || usual[1] == NULL ||
        registry_find(c->registry, kind, usual[1], out, &ignored) != EPA_OK)
        return status;
    *c->err = (struct epa_error){EPA_OK, ""};
    return EPA_OK;
}

static enum epa_status choose_backend(struct choosing *c)
{
    const char *const usual[2] = {c->params->cuda ? "cuda" : "host", NULL};
    char device[32] = "";
    const struct epa_plugin **plugin = &c->plugin[PART_BACKEND];
    const struct epa_option *workers;
    struct head *head = &c->head;
    enum epa_status status;
    bool host;

    status = find_plugin(c, EPA_PLUGIN_BACKEND, head->backend, usual, plugin);
    if (status != EPA_OK)
        return status;
    host = selection_of(c).backend->memory == EPA_MEMORY_HOST;
    if (host == c->params->cuda)
        return epa_fail(c->err, EPA_ERR_CONFIG,
                        host ? "options: backend '%s' has host memory, and the caller has a device"
                             : "options: backend '%s' needs a device of the caller",
                        (*plugin)->name);
    if (c->params->cuda)
        snprintf(device, sizeof(device), "device=%u", c->params->device);
    status = read_plugin(c, PART_BACKEND, device);
    if (status != EPA_OK || head->threads == 0)
        return status;
    workers = option_find(&(*plugin)->options, "workers");
    if (workers == NULL || workers->type != EPA_OPTION_U32)
        return epa_fail(c->err, EPA_ERR_CONFIG, "options: threads: backend '%s' has no workers",
                        (*plugin)->name);
    *(uint32_t *)(void *)((char *)c->config[PART_BACKEND] + workers->offset) = head->threads;
    return EPA_OK;
}

/* Names of transports to other nodes, in order of preference. */
static const char *const far_transports[2] = {"ucx", "verbs"};

/* Rejects options of a transport between nodes if the transport uses none. */
static enum epa_status reject_between_options(const struct choosing *c)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (c->assigned[i].part == PART_BETWEEN && c->assigned[i].number >= c->first[PART_BETWEEN])
            return epa_fail(
                c->err, EPA_ERR_CONFIG,
                "%s: '%.64s': transport '%s' uses no transport between nodes; leave the "
                "option out, or set transport=nvlink",
                c->assigned[i].source->name, c->assigned[i].entry.key,
                c->plugin[PART_TRANSPORT]->name);
    return EPA_OK;
}

/* Selects the transport that carries data between nodes for another one. */
static enum epa_status choose_between(struct choosing *c, bool several)
{
    const struct epa_transport_plugin *transport = selection_of(c).transport;
    const void *config = c->config[PART_TRANSPORT];
    const char *name = NULL;
    enum epa_status status;

    if (transport->between_nodes == NULL)
        return reject_between_options(c);
    name = transport->between_nodes(config);
    if (name == NULL && !several)
        return EPA_OK;
    status = find_plugin(c, EPA_PLUGIN_TRANSPORT, name, far_transports, &c->plugin[PART_BETWEEN]);
    if (status == EPA_OK)
        status = read_plugin(c, PART_BETWEEN, NULL);
    if (status != EPA_OK)
        return status;
    if (name == NULL) { /* the transport reads the name from its config */
        char text[128];

        snprintf(text, sizeof(text), "%s=%s", between_option, c->plugin[PART_BETWEEN]->name);
        status = store_preset(c, PART_TRANSPORT, text);
    }
    return status == EPA_OK ? selection_check_between(selection_of(c).between, c->err) : status;
}

static enum epa_status choose_transport(struct choosing *c)
{
    static const char *const gpu[2] = {"nvlink", NULL}, *const host[2] = {"shm", NULL};
    bool several = has_several_nodes(c);
    enum epa_status status;

    status = find_plugin(c, EPA_PLUGIN_TRANSPORT, c->head.transport,
                         c->params->cuda ? gpu
                         : several       ? far_transports
                                         : host,
                         &c->plugin[PART_TRANSPORT]);
    if (status == EPA_OK)
        status = read_plugin(c, PART_TRANSPORT, NULL);
    return status == EPA_OK ? choose_between(c, several) : status;
}

/* Checks the selection for the operation and the nodes of the ranks. */
static enum epa_status check_selection(const struct choosing *c, struct epa_error *err)
{
    const struct selection selected = selection_of(c);
    enum epa_op op = c->params->op;
    enum epa_status status;

    status = selection_check_operation(&selected, op, err);
    if (status == EPA_OK)
        status = selection_check_memory(&selected, err);
    if (status == EPA_OK)
        status = selection_check_flags(&selected, err);
    if (status == EPA_OK && has_several_nodes(c) &&
        !selection_spans_nodes(&selected, op == EPA_OP_AG_GEMM))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "transport '%s' connects the ranks of one node, and the ranks are on "
                        "several; such as transport=ucx",
                        selected.transport->plugin.name);
    return status;
}

/* Selects the first usual algorithm that can be loaded and fits; the error is about the first. */
static enum epa_status choose_usual_algorithm(struct choosing *c)
{
    static const char *const usual[][2] = {
        [EPA_OP_MOE] = {"ll_v2", "ll_v1"},
        [EPA_OP_AG_GEMM] = {"ag_gemm_2d", "ag_then_gemm"},
        [EPA_OP_ALLGATHER] = {"allgather", NULL},
    };
    static const char *const layers[2] = {"fused", "ll_v2"};
    const char *const *name = c->params->layer ? layers : usual[c->params->op];
    struct epa_error first = {EPA_OK, ""};

    for (int i = 0; i < 2 && name[i] != NULL; i++) {
        struct epa_error err = {EPA_OK, ""};

        if (registry_find(c->registry, EPA_PLUGIN_ALGORITHM, name[i], &c->plugin[PART_ALGORITHM],
                          &err) == EPA_OK &&
            check_selection(c, &err) == EPA_OK)
            return EPA_OK;
        if (i == 0)
            first = err;
    }
    return epa_fail_key(c->err, first.status, first.key, "%s", first.text);
}

static enum epa_status choose_algorithm(struct choosing *c)
{
    const char *name = c->head.algorithm;
    enum epa_status status;

    if (name == NULL)
        status = choose_usual_algorithm(c);
    else
        status = registry_find(c->registry, EPA_PLUGIN_ALGORITHM, name, &c->plugin[PART_ALGORITHM],
                               c->err);
    if (status == EPA_OK)
        status = check_selection(c, c->err);
    return status == EPA_OK ? read_plugin(c, PART_ALGORITHM, c->params->preset) : status;
}

/* Rejects options of a comm in the text of one object, which would have no effect. */
static enum epa_status check_objects(const struct choosing *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const struct assigned *a = &c->assigned[i];
        bool of_object = a->part == PART_TRANSPORT || a->part == PART_BETWEEN ||
                         a->part == PART_ALGORITHM || strcmp(a->name, "transport") == 0 ||
                         strcmp(a->name, "algorithm") == 0;

        if (!a->source->shared && !of_object)
            return epa_fail(c->err, EPA_ERR_CONFIG,
                            "%s: '%.64s' is an option of a comm; pass it to epa2a_comm_create()",
                            a->source->name, a->entry.key);
    }
    return EPA_OK;
}

enum epa_status choose(struct registry *registry, const struct choose_params *params,
                       struct choice *out, struct epa_error *err)
{
    struct options_memory memory = {0};
    struct choosing c = {.registry = registry, .params = params, .memory = &memory, .err = err};
    enum epa_status status;

    status = assign_entries(&c);
    if (status == EPA_OK) {
        ignore_other_operations(&c);
        status = read_head(&c);
    }
    if (status == EPA_OK)
        status = choose_backend(&c);
    if (status == EPA_OK)
        status = choose_transport(&c);
    if (status == EPA_OK)
        status = choose_algorithm(&c);
    if (status == EPA_OK)
        status = check_objects(&c);
    if (status != EPA_OK) {
        options_memory_free(&memory);
        return status;
    }
    *out = (struct choice){
        .backend = {c.plugin[PART_BACKEND], c.config[PART_BACKEND]},
        .transport = {c.plugin[PART_TRANSPORT], c.config[PART_TRANSPORT]},
        .algorithm = {c.plugin[PART_ALGORITHM], c.config[PART_ALGORITHM]},
        .between = {c.plugin[PART_BETWEEN], c.config[PART_BETWEEN]},
        .timeout_ns = c.head.timeout_ns,
        .threads = selection_of(&c).backend->threads(c.config[PART_BACKEND]),
        .ranks_per_node = c.head.ranks_per_node,
        .memory = memory,
    };
    return EPA_OK;
}

struct selection choice_selection(const struct choice *choice)
{
    return (struct selection){
        .algorithm = (const void *)choice->algorithm.plugin,
        .backend = (const void *)choice->backend.plugin,
        .transport = (const void *)choice->transport.plugin,
        .between = (const void *)choice->between.plugin,
    };
}

void choice_free(struct choice *choice)
{
    options_memory_free(&choice->memory);
    *choice = (struct choice){0};
}
