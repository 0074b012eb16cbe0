/* Reads lines of other programs by forms. */
#include "report/form.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the value of that name, of `bytes` bytes; a new one has no number. NULL: the list is full. */
static struct form_value *value_of(struct form_values *list, const char *name, size_t bytes)
{
    for (uint32_t i = 0; i < list->n; i++)
        if (strncmp(list->value[i].name, name, bytes) == 0 && list->value[i].name[bytes] == '\0')
            return &list->value[i];
    if (list->n == FORM_VALUES)
        return NULL;
    list->value[list->n] = (struct form_value){.number = NAN};
    snprintf(list->value[list->n].name, FORM_NAME, "%.*s", (int)bytes, name);
    return &list->value[list->n++];
}

static const char *read_word(const char *at, char delimiter, const char *name,
                             struct form_values *out)
{
    struct form_value *value = *name != '\0' ? value_of(out, name, strcspn(name, "%")) : NULL;
    size_t bytes = 0;

    while (at[bytes] != '\0' && at[bytes] != delimiter && strchr(FORM_BLANKS, at[bytes]) == NULL)
        bytes++;
    if (value != NULL)
        snprintf(value->word, FORM_WORD, "%.*s", (int)(bytes < FORM_WORD ? bytes : 0), at);
    return bytes > 0 ? at + bytes : NULL;
}

static const char *read_number(const char *at, char *name, struct form_values *out)
{
    size_t bytes = strspn(at, "0123456789."), last = strlen(name) - 1;
    char *end;
    double number = strtod(at, &end);
    bool sum = name[last] == '+';
    struct form_value *value;

    /* 21,40, 1.2.3 and 21e9 are read to their end, and are not numbers of a line. */
    if (bytes == 0 || *at == '.' || bytes > 20 || end != at + bytes ||
        (*end == ',' && isdigit((unsigned char)end[1])))
        return NULL;
    name[last + !sum] = '\0';
    value = value_of(out, name, strlen(name));
    if (value != NULL && isnan(value->number))
        value->number = number;
    else if (value != NULL)
        value->number = sum ? value->number + number : value->number * number;
    return at + bytes;
}

const char *form_match(const char *form, const char *line, struct form_values *out,
                       const char **wanted)
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
            char name[FORM_NAME];

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
