/* `epa2a completion SHELL` prints a script. The shell then calls `epa2a __complete WORD...`, which
 * is not in the help. __complete reads the command line as main.c does, but ignores all errors. By
 * the option tables, the word at the cursor is a command, an option, the value of an option, or an
 * argument whose kind is its name in the help (FILE..., A.json, [KIND], show|check). KEY=VALUE is
 * completed part by part, since a list of all keys fills a page. Output, one per line:
 *     CANDIDATE <tab> DESCRIPTION
 * or, for the shell's own completion, where BYTES of the word precede the name:
 *     :files BYTES [END...]
 *     :folders BYTES
 */
#include "cli/complete.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/config_name.h"
#include "cli/line.h"
#include "cli/topics.h"
#include "config/diag.h"
#include "config/model.h"
#include "config/node.h"
#include "config/option_text.h"
#include "options/option.h"
#include "experiment/batch_keys.h"
#include "registry/check.h"
#include "launch/program_registry.h"
#include "report/stage_names.h"
#include "result/figures.h"
#include "session/status.h"
#include "session/status_text.h"

/* A command line up to the cursor, and the candidates for it. */
struct completing {
    struct line line;          /* words before the cursor */
    struct registry *registry; /* NULL until a plugin is needed */
    const char *whole, *word;  /* word at the cursor; `word`: its last part, which is completed */
    struct text out;
};

/* Offers a candidate with its description if it begins with the typed word. */
__attribute__((format(printf, 3, 4))) static void offer(struct completing *c, const char *help,
                                                        const char *fmt, ...)
{
    size_t start = c->out.bytes, skip = (size_t)(c->word - c->whole), from;
    va_list args;
    char text[512];

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (strncmp(text, c->word, strlen(c->word)) != 0)
        return;
    text_add_bytes(&c->out, c->whole, skip);
    text_add(&c->out, "%s", text);
    from = c->out.bytes;
    text_add(&c->out, "\t%s", help == NULL ? "" : help);
    for (size_t i = start; i < c->out.bytes; i++)
        if ((unsigned char)c->out.data[i] < ' ' && i != from)
            c->out.data[i] = ' ';
    text_add(&c->out, "\n");
}

/* Offers words that are separated by '|'. */
static void offer_words(struct completing *c, const char *words)
{
    for (size_t n; *words != '\0'; words += n + (words[n] == '|')) {
        n = strcspn(words, "|");
        offer(c, NULL, "%.*s", (int)n, words);
    }
}

/* Lets the shell complete files whose names end in one of `ends` ("yaml yml"; "": any). */
static void offer_files(struct completing *c, const char *ends)
{
    text_add(&c->out, ":files %zu%s%s\n", (size_t)(c->word - c->whole), *ends == '\0' ? "" : " ",
             ends);
}

/* Loads and returns all plugins. Ignores folders of --plugin-path that do not exist. */
static uint32_t list_plugins(struct completing *c, const struct registry_entry **out)
{
    struct epa_error ignored = {EPA_OK, ""};
    const char **folder = c->line.cli.plugin_path;
    uint32_t kept = 0;

    *out = NULL;
    for (uint32_t i = 0; i < c->line.cli.n_plugin_paths && c->registry == NULL; i++) {
        char path[PATH_MAX];

        if (realpath(folder[i], path) != NULL)
            folder[kept++] = arena_printf(c->line.arena, "%s", path);
    }
    if (c->registry == NULL) {
        folder[kept] = NULL;
        if (program_registry_create(folder, &c->registry, &ignored) != EPA_OK)
            c->registry = NULL;
    }
    return c->registry == NULL ? 0 : registry_list(c->registry, out);
}

/* ---- the line up to the cursor ---- */

/* Parses the words before the cursor. Returns the option whose value is the last word, or NULL. The
 * line is not complete yet, so errors are ignored. */
static const struct option *read_words(struct completing *c, const char *const *word, uint32_t n)
{
    struct line *line = &c->line;
    bool used = false;

    for (uint32_t i = 0; i + 1 < n; i += 1 + used) {
        const struct option *option = line->options_ended ? NULL : commands_option(word[i]);
        struct epa_error ignored = {EPA_OK, ""};

        if (i + 2 == n && option != NULL && option->value != NULL && strchr(word[i], '=') == NULL)
            return option;
        (void)line_take(line, word[i], i + 2 < n ? word[i + 1] : NULL, &used, &ignored);
    }
    return NULL;
}

/* Replaces names of configurations by paths. Labels of runs and chosen plugins are read from these
 * files. */
static void resolve_configurations(struct line *line)
{
    for (uint32_t i = 0; i < line->cli.n_args; i++) {
        struct epa_error ignored = {EPA_OK, ""};

        (void)config_name_resolve(line->arena, line->cli.arg[i], &line->cli.arg[i], &ignored);
    }
}

/* ---- KEY=VALUE ---- */

/* Returns the node of a section, which may be nested, as a map or a name; NULL: it is not set. */
static struct node *section_node(const struct tree *tree, const struct section *section)
{
    const char *dot = strchr(section->name, '.');
    struct node *map = tree->root;

    if (dot != NULL)
        map = node_find(
            map, arena_printf(tree->arena, "%.*s", (int)(dot - section->name), section->name));
    return node_find(map, section_key(section));
}

/* Returns the plugin of a section according to the files and --set before the cursor; or NULL. */
static const struct epa_plugin *chosen_plugin(struct completing *c, const struct section *section)
{
    struct tree tree = {.arena = c->line.arena, .diag = diag_create()};
    const char *name = section->chosen;
    const struct registry_entry *entry;
    struct source_location nowhere = {.file = ""};
    struct node *node;

    for (uint32_t i = 0; i < c->line.cli.n_args && tree.root == NULL; i++)
        batch_read_tree(&tree, c->line.cli.arg[i], NULL, 0);
    if (tree.root == NULL || tree.root->kind != NODE_MAP)
        tree.root = node_make(tree.arena, NODE_MAP, &nowhere);
    for (uint32_t i = 0; i < c->line.cli.n_sets; i++)
        tree_set(&tree, c->line.cli.set[i]);
    diag_destroy(tree.diag);
    node = section_node(&tree, section);
    if (node != NULL)
        node = node_find(tree_whole(tree.arena, section, node), section->main);
    if (node != NULL && node->kind == NODE_SCALAR)
        name = node->text;
    if (name == NULL)
        return NULL;
    if (strcmp(name, "auto") == 0 && section->kind == EPA_PLUGIN_LAUNCHER)
        name = "fork";
    for (uint32_t i = 0, n = list_plugins(c, &entry); i < n; i++)
        if (entry[i].kind == section->kind && strcmp(entry[i].name, name) == 0)
            return entry[i].plugin;
    return NULL;
}

static const struct epa_options *options_of(struct completing *c, const struct section *section)
{
    static const struct epa_options none = {0};
    const struct epa_plugin *plugin;

    if (!section->plugin)
        return &section->options;
    plugin = chosen_plugin(c, section);
    return plugin == NULL ? &none : &plugin->options;
}

static void offer_names(struct completing *c)
{
    const struct epa_plugin *algorithm;

    for (const struct epa_option *o = experiment_options.table; o->name != NULL; o++)
        offer(c, o->help, "%s=", o->name);
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        if (strcmp(key->name, "include") != 0 && strcmp(key->name, "runs") != 0)
            offer(c, key->help,
                  strcmp(key->name, "repeat") == 0 || strcmp(key->name, "baseline") == 0 ? "%s="
                                                                                         : "%s.",
                  key->name);
    algorithm = chosen_plugin(c, section_find("algorithm"));
    for (const struct section *s = experiment_sections; s->name != NULL; s++) {
        if (!section_is_for(s, (const struct epa_algorithm_plugin *)(const void *)algorithm))
            continue;
        if (s->main != NULL)
            offer(c, s->help, "%s=", s->name);
        offer(c, s->help, "%s.", s->name);
    }
}

static void offer_keys(struct completing *c, const struct section *section)
{
    const struct epa_options *of = options_of(c, section);

    if (section->plugin)
        offer(c, section->help, "%s.%s=", section->name, section->main);
    for (const struct epa_option *o = of->table; o != NULL && o->name != NULL; o++) {
        offer(c, o->help, "%s.%s=", section->name, o->name);
        if (section->nested != NULL && strcmp(o->name, section_key(section->nested)) == 0)
            offer(c, section->nested->help, "%s.", section->nested->name);
    }
}

static void offer_plugins(struct completing *c, const struct section *section, int key)
{
    bool nested = section->chosen == NULL;
    const struct registry_entry *entry;
    uint32_t n = list_plugins(c, &entry);

    if (section->kind == EPA_PLUGIN_LAUNCHER)
        offer(c, "fork, or the launcher that started this process", "%.*sauto", key, c->word);
    for (uint32_t i = 0; i < n; i++)
        if (entry[i].kind == section->kind &&
            (!nested || entry[i].plugin == NULL || section_takes(section, entry[i].plugin)))
            offer(c, entry[i].plugin == NULL ? entry[i].why : entry[i].plugin->summary, "%.*s%s",
                  key, c->word, entry[i].name);
}

static void offer_values(struct completing *c, const struct epa_option *option,
                         const void *defaults, int key)
{
    char range[OPTION_RANGE_ROOM];
    text_auto value = {0}, help = {0};

    for (const struct epa_choice *o = option->choices; o != NULL && o->name != NULL; o++)
        offer(c, o->help, "%.*s%s", key, c->word, o->name);
    switch (option->type) {
    case EPA_OPTION_BOOL:
        offer(c, NULL, "%.*strue", key, c->word);
        offer(c, NULL, "%.*sfalse", key, c->word);
        break;
    case EPA_OPTION_STRING: /* mostly a path */
        c->word += key;
        offer_files(c, "");
        break;
    case EPA_OPTION_U32: /* offers the default, with type and range as help */
    case EPA_OPTION_U64:
    case EPA_OPTION_REAL:
    case EPA_OPTION_BYTES:
    case EPA_OPTION_DURATION:
        if (!option_is_set(option, defaults))
            break;
        option_text(option, defaults, &value);
        text_add(&help, "the default; %s%s", option_type(option),
                 option_range(option, ", ", range, sizeof(range)));
        offer(c, help.data, "%.*s%s", key, c->word, value.data);
        break;
    case EPA_OPTION_CHOICE:
    case EPA_OPTION_U32_LIST:
        break;
    }
}

static void offer_models(struct completing *c)
{
    const char **names;

    for (uint32_t i = 0, n = model_names(c->line.arena, &names); i < n; i++)
        offer(c, "a model of `epa2a list models`", "%s", names[i]);
}

/* Offers values of the option `name` of a section (NULL: at the top). The first `key` bytes of the
 * word are "KEY=", or with a list "KEY=[1, ". */
static void offer_value(struct completing *c, const struct section *section, const char *name,
                        int key)
{
    const struct epa_options *of = &experiment_options;
    const struct epa_option *option;

    if (section != NULL && strcmp(section->name, "model") == 0 && strcmp(name, "name") == 0) {
        c->word += key;
        offer_models(c);
        return;
    }
    if (section != NULL && section->plugin && strcmp(name, section->main) == 0) {
        offer_plugins(c, section, key);
        return;
    }
    if (section != NULL)
        of = options_of(c, section);
    option = option_find(of, name);
    if (option != NULL)
        offer_values(c, option, of->defaults, key);
}

/* Returns the number of bytes before the item at the cursor, for a list that is not closed: 4 for
 * "[4, 8"; 0 for other values. */
static int bytes_before_item(const char *value)
{
    const char *comma = strrchr(value, ','), *item = comma != NULL ? comma : value;

    if (*value != '[' || strchr(value, ']') != NULL)
        return 0;
    return (int)(item + 1 - value) + (int)strspn(item + 1, " ");
}

/* Returns the section of a key: the longest path before a point, or the whole key; *rest: the part
 * behind it, "" for the whole. NULL: the key is at the top. */
static const struct section *section_of_key(const char *key, const char **rest)
{
    const struct section *found = NULL;
    size_t bytes = strlen(key);

    for (size_t i = 0; i <= bytes; i++) {
        char path[64];
        const struct section *section;

        if (key[i] != '.' && key[i] != '\0')
            continue;
        snprintf(path, sizeof(path), "%.*s", (int)i, key);
        section = section_find_path(path);
        if (section != NULL) {
            found = section;
            *rest = key[i] == '.' ? key + i + 1 : key + i;
        }
    }
    return found;
}

static void offer_key_value(struct completing *c)
{
    const struct section *section;
    const char *equals, *name;
    char *key;

    if (strncmp(c->word, "matrix.", 7) == 0 || strncmp(c->word, "zip.", 4) == 0)
        c->word = strchr(c->word, '.') + 1;
    equals = strchr(c->word, '=');
    key = arena_strndup(c->line.arena, c->word, strcspn(c->word, "="));
    name = key;
    section = section_of_key(key, &name);
    if (equals != NULL) {
        int before = (int)(equals + 1 - c->word);

        if (section != NULL && *name == '\0')
            name = section->main == NULL ? "" : section->main;
        offer_value(c, section, name, before + bytes_before_item(equals + 1));
    } else if (strchr(key, '.') == NULL) {
        offer_names(c);
    } else if (section != NULL) {
        offer_keys(c, section);
    }
}

/* ---- values of options that the files of the line determine ---- */

/* Offers the algorithms with the operation of the chosen algorithm, behind the last comma. */
static void offer_algorithms(struct completing *c)
{
    const struct section *section = section_find("algorithm");
    const struct epa_algorithm_plugin *chosen = (const void *)chosen_plugin(c, section);
    const struct registry_entry *entry;
    const char *comma = strrchr(c->word, ',');

    c->word = comma != NULL ? comma + 1 : c->word;
    for (uint32_t i = 0, n = list_plugins(c, &entry); i < n; i++) {
        const struct epa_algorithm_plugin *plugin = (const void *)entry[i].plugin;

        if (entry[i].kind == section->kind && plugin != NULL &&
            (chosen == NULL || plugin->op == chosen->op))
            offer(c, plugin->plugin.summary, "%s", entry[i].name);
    }
}

/* Offers the options of sections and chosen plugins that `epa2a tune` changes. */
static void offer_tuned_keys(struct completing *c)
{
    for (const struct section *s = experiment_sections; s->name != NULL; s++) {
        const struct epa_options *of = options_of(c, s);

        for (const struct epa_option *o = of->table; o != NULL && o->name != NULL; o++)
            if (o->tune != NULL)
                offer(c, o->help, "%s.%s", s->name, o->name);
    }
}

static void offer_stage(void *completing, const char *name)
{
    offer(completing, "a stage of the file", "%s", name);
}

static void offer_stages(struct completing *c)
{
    for (uint32_t i = 0; i < c->line.cli.n_args; i++)
        stage_names_each(c->line.cli.arg[i], offer_stage, c);
}

/* ---- candidates for a word ---- */

static void offer_label(void *completing, const char *label)
{
    offer(completing, "a run of the file", "%s", label);
}

static void offer_commands(struct completing *c)
{
    for (const struct command *command = commands; command->name != NULL; command++)
        offer(c, command->help, "%s", command->name);
}

static void offer_options(struct completing *c)
{
    for (const struct option *o = options; o->is.name != NULL; o++)
        if (c->line.command == NULL ? o->commands == ANY
                                    : (o->commands & c->line.command->bit) != 0)
            offer(c, o->is.help, "%s", o->is.name);
}

static void offer_kinds(struct completing *c)
{
    for (uint32_t kind = 0; kind < PLUGIN_KINDS; kind++)
        offer(c, topics_section((enum epa_plugin_kind)kind)->help, "%s",
              plugin_kind_name((enum epa_plugin_kind)kind));
    offer(c, "shapes of models by name", "models");
    offer(c, "installed configurations by name", "configs");
}

static void offer_command_that_runs(void *arg, const struct status *s)
{
    text_auto help = {0};

    status_print_head(s, &help);
    offer(arg, help.data, "%d", (int)s->head.pid);
}

/* Offers topics. The hundreds of topics with a dot are offered only after a dot was typed. */
static void offer_topics(struct completing *c)
{
    const struct registry_entry *entry;
    uint32_t n = list_plugins(c, &entry);
    struct topics topics;

    topics_make(entry, n, &topics);
    for (uint32_t i = 0; i < topics.n; i++) {
        const struct topic *topic = &topics.item[i];

        if (strchr(topic->name, '.') == NULL || strchr(c->word, '.') != NULL)
            offer(c, arena_strndup(c->line.arena, topic->help, strcspn(topic->help, "\n")), "%s",
                  topic->name);
    }
    topics_free(&topics);
}

/* Offers figures that `best` and `compare` can compare. */
static void offer_figures(struct completing *c)
{
    for (const struct figure *f = figures; f->path != NULL; f++)
        if (f->better != FIGURE_NEITHER)
            offer(c, f->help, "%s", figure_name(f));
}

/* Offers candidates for a value. `kind` is its name in the help, with brackets and dots. */
static void offer_kind(struct completing *c, const char *kind, size_t bytes)
{
    char name[64], *end = name;

    kind += *kind == '[';
    snprintf(name, sizeof(name), "%.*s", (int)bytes, kind);
    name[strcspn(name, "] ")] = 0;
    end = strchr(name, '.');
    if (end != NULL && end[1] == '.') /* FILE... */
        *end = 0;
    if (strcmp(name, "KEY=VALUE") == 0)
        offer_key_value(c);
    else if (strchr(name, '|') != NULL || islower((unsigned char)*name))
        offer_words(c, name);
    else if (strcmp(name, "KIND") == 0)
        offer_kinds(c);
    else if (strcmp(name, "MODEL") == 0) {
        c->word = strrchr(c->word, ',') != NULL ? strrchr(c->word, ',') + 1 : c->word;
        offer_models(c);
    } else if (strcmp(name, "FIGURE") == 0)
        offer_figures(c);
    else if (strcmp(name, "TOPIC") == 0)
        offer_topics(c);
    else if (strcmp(name, "PID") == 0)
        (void)status_each(offer_command_that_runs, c, NULL);
    else if (strcmp(name, "RESULTS") == 0)
        offer_files(c, "json");
    else if (strcmp(name, "DIR") == 0)
        text_add(&c->out, ":folders %zu\n", (size_t)(c->word - c->whole));
    else if (strcmp(name, "GLOB") == 0 || strcmp(name, "LABEL") == 0)
        for (uint32_t i = 0; i < c->line.cli.n_args; i++)
            batch_labels(c->line.cli.arg[i], c->line.cli.set, c->line.cli.n_sets, offer_label, c);
    else if (strchr(name, '.') != NULL)
        offer_files(c, strchr(name, '.') + 1);
    else if (strcmp(name, "FILE") == 0)
        offer_files(c, "");
}

/* Offers values of an option of the command line. */
static void offer_option_value(struct completing *c, const struct option *option)
{
    static const struct {
        const char *option;
        void (*offer)(struct completing *);
    } determined[] = {{"--algorithms", offer_algorithms},
                      {"--keys", offer_tuned_keys},
                      {"--stage", offer_stages}};

    for (size_t i = 0; i < sizeof(determined) / sizeof(determined[0]); i++) {
        if (strcmp(option->is.name, determined[i].option) != 0)
            continue;
        determined[i].offer(c);
        return;
    }
    offer_kind(c, option->value, strlen(option->value));
}

/* Returns true if the current folder has a YAML file whose name begins with the word. */
static bool has_experiment_file(const struct completing *c)
{
    DIR *dir = opendir(".");
    const struct dirent *file;
    bool found = false;

    while (dir != NULL && !found && (file = readdir(dir)) != NULL) {
        const char *end = strrchr(file->d_name, '.');

        found = strncmp(file->d_name, c->word, strlen(c->word)) == 0 && end != NULL &&
                (strcmp(end, ".yaml") == 0 || strcmp(end, ".yml") == 0);
    }
    if (dir != NULL)
        closedir(dir);
    return found;
}

/* Offers files, and names of configurations if no file matches the word. */
static void offer_experiments(struct completing *c)
{
    const char **names;

    if (!has_experiment_file(c))
        for (uint32_t i = 0, n = config_names(c->line.arena, &names); i < n; i++)
            offer(c, "a configuration of `epa2a list configs`", "%s", names[i]);
    offer_files(c, (c->line.command->bit & FILES) != 0 ? "yaml yml json" : "yaml yml");
}

static void offer_argument(struct completing *c)
{
    const char *kind = c->line.command->args, *last = kind;
    uint32_t at = 0;

    while (*kind != '\0') {
        size_t bytes = strcspn(kind, " ");

        last = kind;
        if (at++ == c->line.cli.n_args)
            break;
        kind += bytes + strspn(kind + bytes, " ");
    }
    if (*kind == '\0' && (at == 0 || strstr(last, "...") == NULL))
        return;
    last += *last == '[';
    if (strncmp(last, "FILE", 4) == 0 &&
        (c->line.command->bit & (FILES | CONFIG | TUNE | PREDICT)) != 0)
        offer_experiments(c);
    else
        offer_kind(c, last, strcspn(last, " "));
}

static void offer_word(struct completing *c, const struct option *pending)
{
    const char *equals = strchr(c->word, '=');
    bool ended = c->line.options_ended;

    if (pending != NULL) {
        offer_option_value(c, pending);
    } else if (!ended && c->word[0] == '-' && equals != NULL) {
        const struct option *option = commands_option(c->word);

        c->word = equals + 1;
        if (option != NULL && option->value != NULL)
            offer_option_value(c, option);
    } else if (!ended && c->word[0] == '-') {
        offer_options(c);
    } else if (c->line.command == NULL) {
        offer_commands(c);
    } else {
        offer_argument(c);
    }
}

int complete_main(int argc, char **argv)
{
    struct completing c = {.whole = NULL};

    line_init(&c.line, argc);
    if (argc > 0) {
        const struct option *pending;

        c.whole = c.word = argv[argc - 1];
        pending = read_words(&c, (const char *const *)(const void *)argv, (uint32_t)argc);
        resolve_configurations(&c.line);
        offer_word(&c, pending);
    }
    if (c.out.bytes != 0)
        fwrite(c.out.data, 1, c.out.bytes, stdout);
    text_free(&c.out);
    registry_destroy(c.registry);
    arena_destroy(c.line.arena);
    return EXIT_OK;
}
