/* A tree becomes the struct, section by section in the file's order; then come the checks
 * between values. Errors do not stop it before all were seen, a syntax error aside. */
#include "experiment/read.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "config/options.h"
#include "experiment/batch.h"
#include "launch/process_id.h"

struct building {
    struct experiment *x;
    struct registry *registry;
    struct arena *arena;
    struct diag *diag;
    struct node *root;
    uint32_t unloadable;     /* errors that are not the file's */
    uint32_t absent;         /* those, and of plugins that are not here at all */
    struct epa_error reason; /* of `absent` */
};

/* What `launcher: auto` stands for here; NULL: nobody can tell, and that was told. */
static const char *find_launcher(struct building *b, const struct source_location *location)
{
    struct epa_error err = {EPA_OK, ""}, ignored = {EPA_OK, ""};
    const struct epa_plugin *plugin;
    struct process_job job;

    if (process_id_find(&job, &err) != EPA_OK) {
        diag_error(b->diag, location, NULL, "launcher: auto: %s", err.text);
        return NULL;
    }
    if (job.process_id.size <= 1)
        return "fork";
    if (job.mpi &&
        registry_find(b->registry, EPA_PLUGIN_LAUNCHER, "mpi", &plugin, &ignored) == EPA_OK)
        return "mpi";
    return "env";
}

static void read_plugin(struct building *b, const struct section *section, struct node *map)
{
    const struct source_location nowhere = {.file = b->x->file};
    struct node *name = node_find(map, "name");
    struct chosen *chosen = (void *)((char *)b->x + section->offset);
    struct epa_error err = {EPA_OK, ""};
    const struct epa_plugin *plugin;
    const char *wanted;
    void *config;

    if (name != NULL && (name->kind != NODE_SCALAR || *name->text == 0)) {
        name->refused = true;
        diag_error(b->diag, &name->location, NULL, "%s.name: a plugin's name is expected",
                   section->name);
        return;
    }
    wanted = name == NULL ? section->chosen : name->text;
    if (section->kind == EPA_PLUGIN_LAUNCHER && strcmp(wanted, "auto") == 0)
        wanted = find_launcher(b, name == NULL ? &nowhere : &name->location);
    if (wanted == NULL)
        return;
    if (registry_find(b->registry, section->kind, wanted, &plugin, &err) != EPA_OK) {
        b->unloadable += err.status == EPA_ERR_UNSUPPORTED;
        /* What nobody knows at all weighs more than what cannot be loaded here. */
        if (b->absent++ == 0 || b->reason.status == EPA_ERR_UNSUPPORTED)
            b->reason = err;
        diag_error(b->diag, name == NULL ? &nowhere : &name->location, NULL, "%s", err.text);
        return;
    }
    config = arena_alloc(b->arena, plugin->options.size);
    options_read(&plugin->options, section->name, "name", map, b->arena, b->diag, config);
    *chosen = (struct chosen){plugin, config};
}

static void read_section(struct building *b, const struct section *section, struct node *value)
{
    if (value != NULL && value->refused)
        return;
    if (value != NULL && value->kind != NODE_MAP) {
        bool empty = value->kind == NODE_SCALAR && *value->text == 0;

        value->refused = true;
        diag_error(b->diag, &value->location, "such as bench: {warmup: 10, iterations: 100}",
                   "'%s' %s", section->name,
                   empty ? "is empty; it is a map of keys" : "must be a map of keys");
        return;
    }
    if (section->plugin)
        read_plugin(b, section, value);
    else
        options_read(&section->options, section->name, NULL, value, b->arena, b->diag,
                     (char *)b->x + section->offset);
}

/* A key of a section that stands at the top is told where it belongs. */
static void refuse_key(struct building *b, const struct node *key)
{
    struct nearest nearest = {.want = key->text};
    struct text places = {0};
    char hint[NEAREST_ROOM];

    nearest_try_table(&nearest, experiment_options.table, sizeof(struct epa_option));
    nearest_try_table(&nearest, experiment_sections, sizeof(struct section));
    nearest_try_table(&nearest, batch_keys, sizeof(struct batch_key));
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (nearest.name == NULL && option_find(&s->options, key->text) != NULL)
            text_add(&places, "%s%s.%s", places.bytes == 0 ? "did you mean " : " or ", s->name,
                     key->text);
    if (places.bytes != 0)
        text_add(&places, "?");
    diag_error(b->diag, &key->location,
               places.bytes != 0 ? places.data
                                 : nearest_hint(&nearest, hint, "`epa2a help` lists the keys"),
               "unknown key '%.64s'", key->text);
    text_free(&places);
}

static void read_version(struct building *b)
{
    struct source_location top = {
        .file = b->x->file, .source = b->root->location.source, .line = 1, .column = 1, .width = 1};
    struct node *version = node_find(b->root, "version");

    if (version == NULL)
        diag_error(b->diag, &top, "add the line", "no 'version: %d'", EXPERIMENT_VERSION);
    else if (!version->refused && b->x->version != EXPERIMENT_VERSION)
        diag_error(b->diag, &version->location, "newer files need a newer epa2a",
                   "version %u is not known; this program reads version %d", b->x->version,
                   EXPERIMENT_VERSION);
}

static void read_root(struct building *b)
{
    struct experiment *x = b->x;
    struct node *root = b->root;

    for (uint32_t i = 0; i < root->n; i++) {
        const char *key = root->key[i]->text;
        const struct section *section = section_find(key);
        const struct epa_option *option = option_find(&experiment_options, key);

        if (section != NULL) {
            root->item[i] = tree_whole(b->arena, section, root->item[i]);
            read_section(b, section, root->item[i]);
        } else if (option != NULL) {
            option_read(option, option->name, root->item[i], b->arena, b->diag, x);
        } else if (!option_is_note(key) && !batch_is_key(key)) {
            refuse_key(b, root->key[i]);
        }
    }
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (s->plugin && node_find(root, s->name) == NULL)
            read_section(b, s, NULL);
    read_version(b);
}

/* Ranks that somebody else has started are as many as they are. Where this is no such rank
 * the launcher will say so when it is to launch: the file may be good all the same. */
static void count_ranks(struct building *b)
{
    const struct epa_launcher_plugin *launcher = (const void *)b->x->launcher.plugin;
    const struct source_location nowhere = {.file = b->x->file}, found = {.file = "launcher"};
    const struct epa_option *option = option_find(&experiment_options, "ranks");
    const struct node *ranks = node_find(b->root, "ranks");
    struct epa_process_id at;
    char size[16];

    if (launcher == NULL || launcher->process_id == NULL || (ranks != NULL && ranks->refused) ||
        launcher->process_id(b->x->launcher.config, &at, NULL) != EPA_OK)
        return;
    if (at.size > option->max)
        diag_error(b->diag, &nowhere, NULL, "%u ranks are too many (%s); %llu are the most",
                   at.size, at.source, (unsigned long long)option->max);
    else if (ranks != NULL && b->x->ranks != at.size)
        diag_error(b->diag, &ranks->location, "leave ranks out",
                   "ranks is %u, and %u have been started (%s)", b->x->ranks, at.size, at.source);
    if (ranks != NULL || at.size > option->max)
        return;
    b->x->ranks = at.size;
    snprintf(size, sizeof(size), "%u", at.size);
    node_set(b->arena, b->root, tree_word(b->arena, "ranks", &found),
             tree_word(b->arena, arena_strndup(b->arena, size, strlen(size)), &found));
}

/* Relative to the folder of the file that names it; on --set to the current one. Absolute
 * from here on, so that what `config show` prints means the same anywhere. */
static const char *absolute(struct building *b, const char *key, const char *path)
{
    const struct node *node = origin_find(b->x, key);
    const char *file = node != NULL ? node->location.file : "", *slash = strrchr(file, '/');
    int folder = slash != NULL ? (int)(slash - file) + 1 : 0;
    char *cwd;

    if (path == NULL || *path == '/')
        return path;
    while (strncmp(path, "./", 2) == 0)
        path += 2;
    cwd = folder > 0 && *file == '/' ? NULL : getcwd(NULL, 0);
    path = arena_printf(b->arena, "%s%s%.*s%s", cwd != NULL ? cwd : "", cwd != NULL ? "/" : "",
                        folder, file, path);
    free(cwd);
    return path;
}

static const char *name_of_file(struct arena *arena, const char *file)
{
    const char *slash = strrchr(file, '/'), *base = slash == NULL ? file : slash + 1;
    const char *dot = strrchr(base, '.');

    return arena_strndup(arena, base,
                         dot == NULL || dot == base ? strlen(base) : (size_t)(dot - base));
}

enum epa_status experiment_build(const char *file, struct tree *tree, bool flawed,
                                 struct registry *registry, struct epa_error *absent,
                                 struct experiment **out)
{
    struct experiment *x = arena_alloc(tree->arena, sizeof(*x));
    struct building b = {
        .x = x, .registry = registry, .arena = tree->arena, .diag = tree->diag, .root = tree->root};
    uint32_t before = diag_errors(tree->diag), errors;

    memcpy(x, experiment_options.defaults, sizeof(*x));
    x->arena = tree->arena;
    x->file = arena_strndup(x->arena, file, strlen(file));
    x->origin = tree->root;
    read_root(&b);
    count_ranks(&b);
    if (x->name == NULL)
        x->name = name_of_file(b.arena, x->file);
    x->routing.path = absolute(&b, "routing.path", x->routing.path);
    x->routing.hidden_states = absolute(&b, "routing.hidden_states", x->routing.hidden_states);
    experiment_check(x, flawed || diag_errors(tree->diag) != before, tree->diag);
    errors = diag_errors(tree->diag) - before;
    if (errors == 0) {
        *out = x;
        return EPA_OK;
    }
    if (errors == b.absent)
        *absent = b.reason;
    return errors == b.unloadable ? EPA_ERR_UNSUPPORTED : EPA_ERR_CONFIG;
}

void experiment_destroy(struct experiment *x)
{
    if (x != NULL)
        arena_destroy(x->arena);
}
