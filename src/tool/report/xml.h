/* Escapes text for XML. */
#ifndef XML_H
#define XML_H

#include "base/text.h"

/* Escapes text for XML, also in attributes. */
void export_add_xml(struct text *, const char *text);

#endif
