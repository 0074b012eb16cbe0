/* The pages of `epa2a help` that are prose: cli/help/TOPIC.txt, embedded in the program, and two
 * that tables make. */
#include "cli/cmd_help_pages.h"

#include "base/exit_code.h"
#include "cli/topics.h"
#include "help_texts.h"

static void add_exit_codes(struct text *out)
{
    for (const struct exit_meaning *m = exit_meanings; m->help != NULL; m++)
        text_add(out, "  %3d  %s\n", (int)m->code, m->help);
    text_add(out, "In a batch the first code that is not 0 is the batch's.\n");
}

static void add_environment(struct text *out)
{
    for (const struct variable *v = environment; v->name != NULL; v++)
        text_add(out, "  %-18s %s\n", v->name, v->help);
    text_add(out, "%s", environment_txt);
}

const struct help_page help_pages[] = {
    {"arrivals", arrivals_txt},
    {"bandwidth", bandwidth_txt},
    {"batches", batches_txt},
    {"charts", charts_txt},
    {"clocks", clocks_txt},
    {"comparing", comparing_txt},
    {"environment", "Environment variables.\n", add_environment},
    {"exit-codes", "Exit codes.\n", add_exit_codes},
    {"expectations", expectations_txt},
    {"experts", experts_txt},
    {"faults", faults_txt},
    {"glossary", glossary_txt},
    {"results", results_txt},
    {"stopping", stopping_txt},
    {"traces", traces_txt},
    {0},
};

void help_page_add(const struct help_page *page, struct text *out)
{
    text_add(out, "%s", page->text);
    if (page->add != NULL)
        page->add(out);
}
