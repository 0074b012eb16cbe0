/* Reads lines of other programs by forms. */
#include "report/form.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *read_word(const char *at, char delimiter, const char *name, json_t *out)
{
    size_t bytes = 0;
    char word[64]; /* longer than any known word */

    while (at[bytes] != '\0' && at[bytes] != delimiter && strchr(FORM_BLANKS, at[bytes]) == NULL)
        bytes++;
    snprintf(word, sizeof(word), "%.*s", (int)(bytes < sizeof(word) ? bytes : 0), at);
    if (*name != '\0')
        json_object_setn_new(out, name, strcspn(name, "%"), json_text(word));
    return bytes > 0 ? at + bytes : NULL;
}

static const char *read_number(const char *at, char *name, json_t *out)
{
    size_t bytes = strspn(at, "0123456789."), last = strlen(name) - 1;
    char *end;
    double number = strtod(at, &end);
    bool sum = name[last] == '+';
    const json_t *before;

    /* 21,40, 1.2.3 and 21e9 are read to their end, and are not numbers of a line. */
    if (bytes == 0 || *at == '.' || bytes > 20 || end != at + bytes ||
        (*end == ',' && isdigit((unsigned char)end[1])))
        return NULL;
    name[last + !sum] = '\0';
    before = json_object_get(out, name);
    if (before != NULL)
        number = sum ? json_number_value(before) + number : json_number_value(before) * number;
    json_object_set_new(out, name, json_real(number));
    return at + bytes;
}

const char *form_match(const char *form, const char *line, json_t *out, const char **wanted)
{
    bool begins = false;

    *wanted = NULL;
    for (line += strspn(line, FORM_BLANKS); *form != '\0'; form++) {
        begins = begins || *form == '{' || strcmp(form, "*") == 0;
        *wanted = begins ? form : NULL;
        if (strcmp(form, "*") == 0)
            return NULL;
        if (*form == ' ') {
            line += strspn(line, FORM_BLANKS);
        } else if (*form == '{') {
            size_t bytes = strcspn(form, "}");
            const char *end;
            char name[96];

            snprintf(name, sizeof(name), "%.*s", (int)bytes - 1, form + 1);
            form += bytes;
            line += strspn(line, FORM_BLANKS);
            end = *name == '\0' || strchr(name, '%') != NULL ? read_word(line, form[1], name, out)
                                                             : read_number(line, name, out);
            if (end == NULL)
                return line;
            line = end;
        } else if (*form == *line) {
            line++;
        } else {
            return line;
        }
    }
    *wanted = "the end of the line";
    line += strspn(line, FORM_BLANKS);
    return *line == '\0' ? NULL : line;
}
