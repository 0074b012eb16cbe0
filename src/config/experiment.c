/* A tree becomes the struct, section by section in the file's order; then come the checks
 * between values. Errors do not stop it before all were seen, a syntax error aside. */
#include "config/experiment.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "config/batch.h"
#include "config/experiment_table.h"
#include "config/node.h"
#include "config/options.h"
#include "config/tree.h"
#include "launch/process_id.h"
#include "base/text.h"

enum { NAMES = 64 };

struct building {
    struct experiment *x;
    struct registry *registry;
    struct arena *arena;
    struct diag *diag;
    struct node *root;
    bool flawed;             /* as in experiment_source */
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
    const char *names[NAMES], *near;
    struct text hint = {0};
    uint32_t n = 0;

    for (const struct epa_option *o = experiment_options.table; o->name != NULL; o++)
        names[n++] = o->name;
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        names[n++] = s->name;
    for (const struct batch_key *k = batch_keys; k->name != NULL; k++)
        names[n++] = k->name;
    near = text_nearest(key->text, names, n);
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        if (near == NULL && option_find(&s->options, key->text) != NULL)
            text_add(&hint, "%s%s.%s", hint.bytes == 0 ? "did you mean " : " or ", s->name,
                     key->text);
    if (hint.bytes != 0)
        text_add(&hint, "?");
    else if (near != NULL)
        text_add(&hint, "did you mean '%s'?", near);
    else
        text_add(&hint, "`epa2a help` lists the keys");
    diag_error(b->diag, &key->location, hint.data, "unknown key '%.64s'", key->text);
    text_free(&hint);
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
    const char *file = node != NULL ? node->location.file : b->x->file;
    const char *slash = strrchr(file, '/');
    bool beside = node != NULL && strcmp(file, "--set") != 0 && slash != NULL;
    int folder = beside ? (int)(slash - file) + 1 : 0;
    char *cwd;

    if (path == NULL || *path == '/')
        return path;
    while (strncmp(path, "./", 2) == 0)
        path += 2;
    if (beside && *file == '/')
        return arena_printf(b->arena, "%.*s%s", folder, file, path);
    cwd = getcwd(NULL, 0);
    if (cwd == NULL)
        return arena_printf(b->arena, "%.*s%s", folder, file, path);
    path = arena_printf(b->arena, "%s/%.*s%s", cwd, folder, file, path);
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

static void build(struct building *b)
{
    struct experiment *x = b->x;
    uint32_t before = diag_errors(b->diag);
    struct origin *origin = arena_alloc(b->arena, sizeof(*origin));

    origin->root = b->root;
    x->origins = origin;
    read_root(b);
    count_ranks(b);
    if (x->name == NULL)
        x->name = name_of_file(b->arena, x->file);
    x->routing.path = absolute(b, "routing.path", x->routing.path);
    x->routing.hidden_states = absolute(b, "routing.hidden_states", x->routing.hidden_states);
    /* No number of errors is UINT32_MAX. */
    experiment_check(x, b->flawed ? UINT32_MAX : before, b->diag);
}

enum epa_status experiment_build(const struct experiment_source *source, struct registry *registry,
                                 struct diag *diag, struct epa_error *absent,
                                 struct experiment **out)
{
    struct experiment *x = arena_alloc(source->arena, sizeof(*x));
    struct building b = {.x = x,
                         .registry = registry,
                         .arena = source->arena,
                         .diag = diag,
                         .root = source->root,
                         .flawed = source->flawed};
    uint32_t before = diag_errors(diag), errors;

    memcpy(x, experiment_options.defaults, sizeof(*x));
    x->arena = source->arena;
    x->file = arena_strndup(x->arena, source->file, strlen(source->file));
    build(&b);
    errors = diag_errors(diag) - before;
    if (errors == 0) {
        *out = x;
        return EPA_OK;
    }
    if (errors == b.absent)
        *absent = b.reason;
    return errors == b.unloadable ? EPA_ERR_UNSUPPORTED : EPA_ERR_CONFIG;
}

enum epa_status experiment_read(const char *file, const char *const *sets, uint32_t n_sets,
                                struct registry *registry, struct diag *diag,
                                struct experiment **out)
{
    struct tree tree = {.arena = arena_create(), .diag = diag};
    struct epa_error absent = {EPA_OK, ""};
    struct experiment *x = NULL;
    uint32_t before = diag_errors(diag);
    enum epa_status status = EPA_ERR_CONFIG;
    bool flawed = true;

    batch_read_tree(&tree, file, sets, n_sets);
    if (tree.root != NULL) {
        batch_set_all(&tree, sets, n_sets);
        flawed = diag_errors(diag) > before;
        status = experiment_build(&(struct experiment_source){file, tree.arena, tree.root, flawed},
                                  registry, diag, &absent, &x);
    }
    if (flawed || status != EPA_OK) {
        arena_destroy(tree.arena);
        return flawed ? EPA_ERR_CONFIG : status;
    }
    *out = x;
    return EPA_OK;
}

void experiment_destroy(struct experiment *x)
{
    if (x != NULL)
        arena_destroy(x->arena);
}
