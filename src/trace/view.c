/* A page that draws one trace: view.html with the trace in it. */
#include <string.h>

#include "trace/read.h"
#include "view_texts.h"

/* Where the trace goes; it stands there once. */
static const char mark[] = "\"@TRACE@\"";

/* In a page `</script` would end the script, and U+2028 a line: `<` and `/` that follow each
 * other are parted by an escape that JSON has for it, which stands in strings alone. */
static void add_safely(struct text *out, const char *text, size_t bytes)
{
    size_t from = 0;

    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != '<')
            continue;
        text_add_bytes(out, text + from, i - from);
        text_add(out, "\\u003c");
        from = i + 1;
    }
    text_add_bytes(out, text + from, bytes - from);
}

enum epa_status trace_view(const struct trace_file *f, struct text *out, struct epa_error *err)
{
    const char *at = strstr(view_html, mark);

    if (at == NULL)
        return epa_fail(err, EPA_ERR_SYSTEM, "the page has no place for a trace");
    text_add_bytes(out, view_html, (size_t)(at - view_html));
    add_safely(out, f->text, f->bytes);
    text_add(out, "%s", at + strlen(mark));
    return EPA_OK;
}
