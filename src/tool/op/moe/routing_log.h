/* Statistics of a captured routing. */
#ifndef ROUTING_LOG_H
#define ROUTING_LOG_H

#include "base/text.h"
#include "op/op.h"

/* Describes a file of captured routing as text and as JSON (a new reference; NULL: no memory). layer
 * UINT32_MAX: the file has one layer; experts 0: take the number from the file. */
enum epa_status op_describe_routing(const char *path, uint32_t layer, uint32_t experts,
                                    struct text *out, json_t **json, struct epa_error *);

#endif
