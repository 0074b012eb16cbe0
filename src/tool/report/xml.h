/* Escapes text for XML and HTML. */
#ifndef XML_H
#define XML_H

#include "base/text.h"

/* Escapes text for XML and HTML, also in attributes. */
void export_add_xml(struct text *, const char *text);

#endif
