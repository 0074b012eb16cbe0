/* Head and events of the files of a trace. */
#ifndef TRACE_JSON_H
#define TRACE_JSON_H

#include <stdbool.h>

#include "base/json.h"
#include "base/text.h"

/* Begins a file: its head, with otherData, whose reference is taken; one event on each line
 * follows; "\n]}\n" ends it. */
void trace_begin(struct text *, json_int_t base_ns, json_t *other);
void trace_add_event(struct text *, const json_t *event, bool first);

#endif
