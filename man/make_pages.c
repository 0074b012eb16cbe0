/* Makes a man page of its template when the program is built: prose stands there, tables of
 * commands, options, keys and codes come from the program. A line @name@ of the template is
 * where a table goes; @version@ and @abi@ may stand anywhere. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/text.h"
#include "cli/cmd_help_pages.h"
#include "cli/commands.h"
#include "cli/topics.h"
#include "config/options.h"
#include "plugin/plugin_check.h"
#include "plugin/registry.h"

/* What tables are made from. */
struct page {
    const struct registry_entry *entry;
    uint32_t n;
};

/* Text as roff wants it; `like this` is bold. */
static void put(const char *text)
{
    bool bold = false;

    for (; *text != '\0'; text++) {
        switch (*text) {
        case '\\':
            printf("\\e");
            break;
        case '-':
            printf("\\-");
            break;
        case '\'':
            printf("\\(aq");
            break;
        case '^':
            printf("\\(ha");
            break;
        case '~':
            printf("\\(ti");
            break;
        case '`':
            bold = !bold;
            printf("\\f%c", bold ? 'B' : 'R');
            break;
        default:
            putchar(*text);
        }
    }
}

static void put_bold(const char *text)
{
    printf("\\fB");
    put(text);
    printf("\\fR");
}

/* ---- the command line ---- */

static void put_commands(const struct page *page)
{
    (void)page;
    for (const struct command *c = commands; c->name != NULL; c++) {
        printf(".TP\n");
        put_bold(c->name);
        printf(" \\fI");
        put(c->args);
        printf("\\fR\n\\&");
        put(c->help);
        printf(".\n");
    }
}

static void put_options(const struct page *page)
{
    (void)page;
    for (const struct option *o = options; o < options + OPTIONS; o++) {
        const char *comma = "";

        printf(".TP\n");
        if (o->letter != 0) {
            put_bold((const char[]){'-', o->letter, 0});
            printf(", ");
        }
        put_bold(o->name);
        printf(" \\fI");
        put(o->value == NULL ? "" : o->value);
        printf("\\fR\n\\&");
        put(o->help);
        printf(".\n");
        if (o->commands == ANY)
            continue;
        printf("Taken by");
        for (const struct command *c = commands; c->name != NULL; c++) {
            if ((o->commands & c->bit) == 0)
                continue;
            printf("%s ", comma);
            put_bold(c->name);
            comma = ",";
        }
        printf(".\n");
    }
}

static void put_exit_codes(const struct page *page)
{
    (void)page;
    for (const struct exit_meaning *m = exit_meanings; m->help != NULL; m++) {
        printf(".TP\n\\fB%d\\fR\n\\&", (int)m->code);
        put(m->help);
        printf("\n");
    }
}

static void put_environment(const struct page *page)
{
    (void)page;
    for (const struct variable *v = environment; v->name != NULL; v++) {
        printf(".TP\n");
        put_bold(v->name);
        printf("\n\\&");
        put(v->help);
        printf("\n");
    }
}

/* ---- keys ---- */

static void put_key(const char *section, const struct epa_option *o, const void *defaults)
{
    struct text text = {0};

    text_add(&text, "%s%s%s", section, *section == '\0' ? "" : ".", o->name);
    printf(".TP\n");
    put_bold(text.data);
    text_free(&text);
    text_add(&text, " (%s", option_type(o));
    if (o->type != EPA_OPTION_CHOICE) {
        size_t before = text.bytes;

        text_add(&text, ", ");
        option_range(o, &text);
        if (text.bytes == before + 2)
            text.data[text.bytes = before] = '\0';
    }
    if (option_is_set(o, defaults)) {
        text_add(&text, "; default ");
        option_text(o, defaults, &text);
    }
    text_add(&text, ")");
    put(text.data);
    text_free(&text);
    printf("\n\\&");
    put(o->help);
    printf(".\n");
    if (o->type != EPA_OPTION_CHOICE)
        return;
    printf(".RS\n");
    for (const struct epa_choice *c = o->choices; c->name != NULL; c++) {
        printf(".TP\n");
        put_bold(c->name);
        printf("\n\\&");
        put(c->help == NULL ? "" : c->help);
        printf("\n");
    }
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
        printf(".SS ");
        put(s->name);
        printf("\n");
        put(s->help);
        printf(".\n");
        if (s->plugin) {
            printf("A plugin's name (default \\fB%s\\fR), or a map of \\fBname\\fR and "
                   "that plugin's options.\n",
                   s->chosen);
        } else if (s->main != NULL) {
            printf("A value alone stands for \\fB%s\\fR.\n", s->main);
        }
        put_keys(s->name, &s->options);
    }
}

static void put_batch(const struct page *page)
{
    (void)page;
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++) {
        printf(".TP\n");
        put_bold(key->name);
        printf("\n\\&");
        put(key->help);
        printf("\n");
    }
}

static void put_plugins(const struct page *page)
{
    for (uint32_t i = 0; i < page->n; i++) {
        const struct registry_entry *entry = &page->entry[i];
        const char *section = topics_section(entry->kind)->name;

        printf(".SS ");
        put(section);
        printf(": ");
        put(entry->name);
        printf("\n");
        if (entry->plugin == NULL) {
            printf("It could not be loaded when this page was made; "
                   "\\fBepa2a help %s\\fR tells its options.\n",
                   entry->name);
            continue;
        }
        put(entry->plugin->summary);
        printf(".\n");
        put_keys(section, &entry->plugin->options);
    }
}

/* Pages of prose as `epa2a help` prints them; those of a table have a section of their own. */
static void put_pages(const struct page *page)
{
    (void)page;
    for (const struct help_page *p = help_pages; p->topic != NULL; p++) {
        const char *line = p->text;

        if (p->add != NULL)
            continue;
        printf(".SS ");
        put(p->topic);
        printf("\n.nf\n");
        while (*line != '\0') {
            size_t bytes = strcspn(line, "\n");
            struct text text = {0};

            text_add_bytes(&text, line, bytes);
            printf("\\&");
            put(text.data);
            printf("\n");
            text_free(&text);
            line += bytes + (line[bytes] == '\n');
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

/* Words in the line; false: something looks like one and is none. */
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
    else if (registry_create(NULL, &registry, &err) != EPA_OK)
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
