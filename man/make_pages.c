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

/* Prints text in roff syntax. */
static void put(const char *text)
{
    text_auto out = {0};

    add_roff(&out, text);
    fputs(out.data != NULL ? out.data : "", stdout);
}

/* Prints text between `before` and `after`; nothing without text. */
static void put_between(const char *before, const char *text, const char *after)
{
    if (text == NULL || text[0] == '\0')
        return;
    fputs(before, stdout);
    put(text);
    fputs(after, stdout);
}

/* Prints the paragraph of an entry: its name in bold, and its help. */
static void put_entry(const char *name, const char *help)
{
    put_between(".TP\n\\fB", name, "\\fR\n");
    fputs("\\&", stdout);
    put_between("", help, "");
    putchar('\n');
}

/* ---- the command line ---- */

static void put_commands(const struct page *page)
{
    (void)page;
    for (const struct command *c = commands; c->name != NULL; c++) {
        put_between(".TP\n\\fB", c->name, "\\fR \\fI");
        put(c->args);
        put_between("\\fR\n\\&", c->help, ".\n");
    }
}

static void put_options(const struct page *page)
{
    (void)page;
    for (const struct option *o = options; o->is.name != NULL; o++) {
        text_auto takers = {0};

        for (const struct command *c = commands; c->name != NULL && o->commands != ANY; c++)
            if ((o->commands & c->bit) != 0)
                text_add(&takers, "%s`%s`", takers.bytes > 0 ? ", " : "", c->name);
        fputs(".TP\n", stdout);
        put_between("\\fB\\-", (const char[]){o->letter, 0}, "\\fR, ");
        put_between("\\fB", o->is.name, "\\fR \\fI");
        put_between("", o->value, "");
        put_between("\\fR\n\\&", o->is.help, ".\n");
        put_between("Taken by ", takers.data, ".\n");
    }
}

static void put_exit_codes(const struct page *page)
{
    (void)page;
    for (const struct exit_meaning *m = exit_meanings; m->help != NULL; m++) {
        char code[16];

        snprintf(code, sizeof(code), "%d", m->code);
        put_entry(code, m->help);
    }
}

static void put_environment(const struct page *page)
{
    (void)page;
    for (const struct variable *v = environment; v->name != NULL; v++)
        put_entry(v->name, v->help);
}

/* ---- keys ---- */

static void put_key(const char *section, const struct epa_option *o, const void *defaults)
{
    text_auto name = {0}, value = {0};
    char range[OPTION_RANGE_ROOM];

    text_add(&name, "%s%s%s", section, *section == '\0' ? "" : ".", o->name);
    option_range(o, ", ", range, sizeof(range));
    if (option_is_set(o, defaults))
        option_text(o, defaults, &value);
    put_between(".TP\n\\fB", name.data, "\\fR (");
    put(option_type(o));
    put_between("", range, "");
    put_between("; default ", value.data, "");
    put_between(")\n\\&", o->help, ".\n");
    if (o->choices == NULL)
        return;
    printf(".RS\n");
    for (const struct epa_choice *c = o->choices; c->name != NULL; c++)
        put_entry(c->name, c->help);
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
        const char *chosen = s->plugin ? s->chosen : NULL;

        put_between(".SS ", s->name, "\n");
        put_between("", s->help, ".\n");
        put_between("A plugin's name (default \\fB", chosen,
                    "\\fR), or a map of \\fBname\\fR and that plugin's options.\n");
        if (chosen == NULL || chosen[0] == '\0')
            put_between("A value alone is the value of \\fB", s->main, "\\fR.\n");
        put_keys(s->name, &s->options);
    }
}

static void put_batch(const struct page *page)
{
    (void)page;
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        put_entry(key->name, key->help);
}

static void put_plugins(const struct page *page)
{
    for (uint32_t i = 0; i < page->n; i++) {
        const struct registry_entry *entry = &page->entry[i];
        const char *section = topics_section(entry->kind)->name;
        const char *help = entry->plugin != NULL ? entry->plugin->summary : NULL;

        put_between(".SS ", section, ": ");
        put_between("", entry->name, "\n");
        put_between("", help, ".\n");
        if (help == NULL || help[0] == '\0')
            put_between("It could not be loaded when this page was made; \\fBepa2a help ",
                        entry->name, "\\fR lists its options.\n");
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
        put_between(".SS ", p->topic, "\n.nf\n");
        fold_add(&folded, p->text, FOLD_PAGE, PAGE_COLUMNS);
        for (const char *line = folded.data; *line != '\0'; line = strchr(line, '\n') + 1) {
            text_auto text = {0};

            text_add(&text, "%.*s", (int)strcspn(line, "\n"), line);
            fputs("\\&", stdout);
            put(text.data);
            putchar('\n');
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
