/* Reads YAML texts as trees of nodes. */
#ifndef CONFIG_YAML_H
#define CONFIG_YAML_H

#include <stdbool.h>
#include <stddef.h>

#include <epa2a/status.h>

#include "config/node.h"

struct arena;
struct diag;

/* Parses `text` from byte `from` on; the bytes before it belong to its first line, one column each,
 * as in --set key=value. expands: values may contain ${NAME}, like the values of a file. All errors
 * are added to diag. *out is NULL if there is no usable tree. `name` identifies the text in
 * messages; text and name are copied into the arena. */
enum epa_status yaml_parse(struct arena *, const char *name, const char *text, size_t bytes,
                           size_t from, bool expands, struct diag *, struct node **out);
enum epa_status yaml_read(struct arena *, const char *path, struct diag *, struct node **out);

#endif
