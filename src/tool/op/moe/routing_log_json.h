/* Statistics of a captured routing as JSON. */
#ifndef ROUTING_LOG_JSON_H
#define ROUTING_LOG_JSON_H

#include "base/json.h"
#include "op/moe/routing_log.h"

json_t *routing_log_json(const struct routing_log *);

#endif
