/* Pages of prose of `epa2a help`. topics.txt holds their texts. */
#include "cli/help_pages.h"

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/environment.h"
#include "help_texts.h"

static void add_exit_codes(struct text *out)
{
    for (const struct exit_meaning *m = exit_meanings; m->help != NULL; m++)
        text_add(out, "  %3d  %s\n", (int)m->code, m->help);
    text_add(out, "A batch returns the first exit code that is not 0.\n");
}

const struct help_page help_pages[] = {
    {"arrivals", arrivals_txt},
    {"bandwidth", bandwidth_txt},
    {"batches", batches_txt},
    {"calling", calling_txt},
    {"charts", charts_txt},
    {"clocks", clocks_txt},
    {"comparing", comparing_txt},
    {"environment", "Environment variables.\n", environment_add},
    {"exit-codes", "Exit codes.\n", add_exit_codes},
    {"expectations", expectations_txt},
    {"experts", experts_txt},
    {"faults", faults_txt},
    {"glossary", glossary_txt},
    {"hosts", hosts_txt},
    {"models", models_txt},
    {"predicting", predicting_txt},
    {"results", results_txt},
    {"stopping", stopping_txt},
    {"traces", traces_txt},
    {"trust", trust_txt},
    {"tuning", tuning_txt},
    {"verifying", verifying_txt},
    {0},
};

void help_page_add(const struct help_page *page, struct text *out)
{
    text_add(out, "%s", page->text);
    if (page->add != NULL)
        page->add(out);
}
