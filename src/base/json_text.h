/* Text in JSON documents. Host names, paths, labels and the environment may hold any bytes. */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* What is not UTF-8 has a ? for each byte beyond ASCII. A new reference; NULL: no memory. */
static inline json_t *json_text(const char *bytes)
{
    json_t *value = json_string(bytes);
    char *clean;

    if (value != NULL || (clean = strdup(bytes)) == NULL)
        return value;
    for (char *c = clean; *c != 0; c++)
        *c = (unsigned char)*c >= 0x80 ? '?' : *c;
    value = json_string(clean);
    free(clean);
    return value;
}

#endif
