/* Generates a man page from its template during the build. The template contains the prose; the
 * program generates tables of commands, options, keys and codes. A line @name@ of the template is
 * replaced by a table; @version@ and @abi@ may appear anywhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/fold.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/help_pages.h"
#include "cli/topics.h"
#include "config/option_text.h"
#include "options/option.h"
#include "launch/program_registry.h"
#include "report/summary.h"
#include "report/fill_json.h"
#include "experiment/batch_keys.h"

enum { PAGE_COLUMNS = 72 /* 80 columns, less the indentation of 7 that man adds */ };

/* Source of the tables. */
struct page {
    const struct registry_entry *entry;
    uint32_t n;
};

/* Appends text in roff syntax; `like this` becomes bold. */
static void add_roff(struct text *out, const char *text)
{
    static const char *const escape[] = {
        ['\\'] = "\\e", ['-'] = "\\-", ['\''] = "\\(aq", ['^'] = "\\(ha", ['~'] = "\\(ti"};
    bool bold = false;

    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c == '`')
            text_add(out, "\\f%c", (bold = !bold) ? 'B' : 'R');
        else if (c < sizeof(escape) / sizeof(escape[0]) && escape[c] != NULL)
            text_add(out, "%s", escape[c]);
        else
            text_add_bytes(out, text, 1);
    }
}

static void put(const char *form, json_t *of)
{
    text_auto out = {0};

    (void)fill_add(&out, form, of, add_roff);
    fputs(out.data, stdout);
    json_decref(of);
}

static json_t *item(const char *name, const char *help)
{
    return json_object_of("name", json_text(name), "help", json_text_or_null(help), NULL);
}

/* ---- the command line ---- */

static void put_commands(const struct page *page)
{
    (void)page;
    for (const struct command *c = commands; c->name != NULL; c++) {
        json_t *of = item(c->name, c->help);

        json_object_set_new(of, "args", json_text(c->args));
        put(".TP\n\\fB{name}\\fR \\fI[{args}]\\fR\n\\&{help}.\n", of);
    }
}

static void put_options(const struct page *page)
{
    (void)page;
    for (const struct option *o = options; o->is.name != NULL; o++) {
        json_t *of = item(o->is.name, o->is.help);
        text_auto takers = {0};

        for (const struct command *c = commands; c->name != NULL && o->commands != ANY; c++)
            if ((o->commands & c->bit) != 0)
                text_add(&takers, "%s`%s`", takers.bytes > 0 ? ", " : "", c->name);
        json_object_set_new(of, "letter", json_text_or_null((const char[]){o->letter, 0}));
        json_object_set_new(of, "value", json_text_or_null(o->value));
        json_object_set_new(of, "takers", json_text_or_null(takers.data));
        put(".TP\n[\\fB\\-{letter}\\fR, ]\\fB{name}\\fR \\fI[{value}]\\fR\n\\&{help}.\n"
            "[Taken by {takers}.\n]",
            of);
    }
}

static void put_exit_codes(const struct page *page)
{
    (void)page;
    for (const struct exit_meaning *m = exit_meanings; m->help != NULL; m++)
        put(".TP\n\\fB{code}\\fR\n\\&{help}\n",
            json_object_of("code", json_integer(m->code), "help", json_text(m->help), NULL));
}

static void put_environment(const struct page *page)
{
    (void)page;
    for (const struct variable *v = environment; v->name != NULL; v++)
        put(".TP\n\\fB{name}\\fR\n\\&{help}\n", item(v->name, v->help));
}

/* ---- keys ---- */

static void put_key(const char *section, const struct epa_option *o, const void *defaults)
{
    text_auto name = {0}, value = {0};
    char range[OPTION_RANGE_ROOM];
    json_t *of;

    text_add(&name, "%s%s%s", section, *section == '\0' ? "" : ".", o->name);
    option_range(o, ", ", range, sizeof(range));
    if (option_is_set(o, defaults))
        option_text(o, defaults, &value);
    of = item(name.data, o->help);
    json_object_set_new(of, "type", json_text(option_type(o)));
    json_object_set_new(of, "range", json_text_or_null(*range != '\0' ? range : NULL));
    json_object_set_new(of, "default", json_text_or_null(value.data));
    put(".TP\n\\fB{name}\\fR ({type}[{range}][; default {default}])\n\\&{help}.\n", of);
    if (o->choices == NULL)
        return;
    printf(".RS\n");
    for (const struct epa_choice *c = o->choices; c->name != NULL; c++)
        put(".TP\n\\fB{name}\\fR\n\\&[{help}]\n", item(c->name, c->help));
    printf(".RE\n");
}

static void put_keys(const char *section, const struct epa_options *options_of)
{
    for (const struct epa_option *o = options_of->table; o != NULL && o->name != NULL; o++)
        put_key(section, o, options_of->defaults);
}

static void put_experiment(const struct page *page)
{
    (void)page;
    printf(".SS At the top\n");
    put_keys("", &experiment_options);
    for (const struct section *s = experiment_sections; s->name != NULL; s++) {
        json_t *of = item(s->name, s->help);

        json_object_set_new(of, "chosen", json_text_or_null(s->plugin ? s->chosen : NULL));
        json_object_set_new(of, "main", json_text_or_null(s->main));
        put(".SS {name}\n{help}.\n[A plugin's name (default \\fB{chosen}\\fR), or a map of "
            "\\fBname\\fR and that plugin's options.\n"
            "|A value alone is the value of \\fB{main}\\fR.\n]",
            of);
        put_keys(s->name, &s->options);
    }
}

static void put_batch(const struct page *page)
{
    (void)page;
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        put(".TP\n\\fB{name}\\fR\n\\&{help}\n", item(key->name, key->help));
}

static void put_plugins(const struct page *page)
{
    for (uint32_t i = 0; i < page->n; i++) {
        const struct registry_entry *entry = &page->entry[i];
        const char *section = topics_section(entry->kind)->name;

        json_t *of = item(entry->name, entry->plugin != NULL ? entry->plugin->summary : NULL);

        json_object_set_new(of, "section", json_text(section));
        put(".SS {section}: {name}\n[{help}.\n|It could not be loaded when this page was made; "
            "\\fBepa2a help {name}\\fR lists its options.\n]",
            of);
        if (entry->plugin != NULL)
            put_keys(section, &entry->plugin->options);
    }
}

/* Prints the pages of prose that `epa2a help` prints; pages of a table have their own section. */
static void put_pages(const struct page *page)
{
    (void)page;
    for (const struct help_page *p = help_pages; p->topic != NULL; p++) {
        text_auto folded = {0};

        if (p->add != NULL)
            continue;
        put(".SS {name}\n.nf\n", item(p->topic, NULL));
        fold_add(&folded, p->text, FOLD_PAGE, PAGE_COLUMNS);
        for (const char *line = folded.data; *line != '\0'; line = strchr(line, '\n') + 1) {
            text_auto text = {0};

            text_add(&text, "%.*s", (int)strcspn(line, "\n"), line);
            put("\\&[{help}]\n", item("", text.data));
        }
        printf(".fi\n");
    }
}

/* ---- the template ---- */

static const struct {
    const char *name;
    void (*put)(const struct page *);
} tables[] = {
    {"@commands@\n", put_commands},     {"@options@\n", put_options},
    {"@exit-codes@\n", put_exit_codes}, {"@environment@\n", put_environment},
    {"@experiment@\n", put_experiment}, {"@batch@\n", put_batch},
    {"@plugins@\n", put_plugins},       {"@pages@\n", put_pages},
};

/* Replaces the words of a line. Returns false for an unknown word. */
static bool put_line(const char *line)
{
    while (*line != '\0') {
        if (strncmp(line, "@version@", 9) == 0) {
            printf("%s", PROJECT_VERSION);
            line += 9;
        } else if (strncmp(line, "@abi@", 5) == 0) {
            printf("%u", EPA_ABI);
            line += 5;
        } else if (*line == '@') {
            return false;
        } else {
            putchar(*line++);
        }
    }
    return true;
}

static bool put_template(FILE *file, const struct page *page)
{
    char line[1024];

    while (fgets(line, sizeof(line), file) != NULL) {
        bool table = false;

        for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
            if (strcmp(line, tables[i].name) != 0)
                continue;
            tables[i].put(page);
            table = true;
        }
        if (table || put_line(line))
            continue;
        fprintf(stderr, "not known in a template: %s", line);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    FILE *file = argc == 2 ? fopen(argv[1], "r") : NULL;
    struct epa_error err = {EPA_OK, ""};
    struct registry *registry = NULL;
    struct page page = {0};
    bool good = false;

    if (file == NULL)
        fprintf(stderr, "make-pages: cannot read %s\n", argc == 2 ? argv[1] : "a template");
    else if (program_registry_create(NULL, &registry, &err) != EPA_OK)
        fprintf(stderr, "make-pages: %s\n", err.text);
    else {
        page.n = registry_list(registry, &page.entry);
        good = put_template(file, &page) && fflush(stdout) == 0;
    }
    registry_destroy(registry);
    if (file != NULL)
        fclose(file);
    return good ? 0 : 1;
}
