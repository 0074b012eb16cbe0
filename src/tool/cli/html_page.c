/* --html: one self-contained page of a batch, by the command `report` of the Python package. */
#include "cli/html_page.h"

#include "base/memory.h"
#include "cli/python_command.h"

enum epa_status page_check(struct epa_error *err)
{
    struct python_words words = {0};
    text_auto input = {0}, out = {0};

    python_add(&words, "report");
    python_add(&words, "--check");
    return python_call(&words, &input, &out, err);
}

enum epa_status page_html(const char *title, const struct text *document, struct text *out,
                          struct epa_error *err)
{
    struct python_words words = {0};

    python_add(&words, "report");
    python_add_value(&words, "--title", title);
    python_add(&words, "-"); /* standard input */
    return python_call(&words, document, out, err);
}
