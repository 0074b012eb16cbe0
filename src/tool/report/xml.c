/* Escapes text for XML. */
#include "report/xml.h"

#include "base/memory.h"

/* Replaces characters that XML 1.0 does not allow by ?. */
void export_add_xml(struct text *out, const char *text)
{
    static const char *const entity[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\n'] = "&#10;"};

    for (; *text != '\0'; text++) {
        unsigned char c = (unsigned char)*text;

        if (c < sizeof(entity) / sizeof(entity[0]) && entity[c] != NULL)
            text_add(out, "%s", entity[c]);
        else
            text_add_bytes(out, c < ' ' && c != '\t' ? "?" : text, 1);
    }
}
