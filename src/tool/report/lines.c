/* Formats text for terminals, comments and Markdown. */
#include "report/lines.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum { LINE_COLUMNS = 100 }; /* of a folded line */

void text_print_clean(FILE *file, const char *text)
{
    char *copy = memory_printf("%s", text);

    fputs(text_clean(copy), file);
    free(copy);
}

void text_fold(FILE *file, const char *lead, const char *next, const char *text)
{
    for (; *text != 0; lead = next) {
        size_t room = LINE_COLUMNS - strlen(lead), cut = strlen(text);

        if (cut > room) {
            for (cut = room; cut > 0 && text[cut] != ' '; cut--)
                ;
            cut = cut > 0 ? cut : strcspn(text, " ");
        }
        fprintf(file, "%s%.*s\n", lead, (int)cut, text);
        text += cut;
        text += strspn(text, " ");
    }
}

void text_comment(FILE *file, const char *fmt, ...)
{
    va_list args;
    char *text = NULL;

    va_start(args, fmt);
    if (vasprintf(&text, fmt, args) < 0)
        text = NULL;
    va_end(args);
    if (text != NULL)
        text_fold(file, "# ", "#   ", text_clean(text));
    free(text);
}

void text_add_markdown(struct text *text, const char *bytes)
{
    for (; *bytes != 0; bytes++) {
        if ((unsigned char)*bytes < ' ' || *bytes == 0x7f)
            text_add(text, " ");
        else if (strchr("|\\`*_<>[]#", *bytes) != NULL)
            text_add(text, "\\%c", *bytes);
        else
            text_add_bytes(text, bytes, 1);
    }
}
