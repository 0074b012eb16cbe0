/* Origin of a result: program, machine, environment, experiment. */
#ifndef REPORT_ORIGIN_JSON_H
#define REPORT_ORIGIN_JSON_H

#include "base/json.h"
#include "report/result_parts.h"
#include "result/result.h"

/* Returns "machine" of a result, except devices and links, and its "build". */
json_t *machine_json(const struct machine_facts *);
json_t *build_json(const struct build_facts *);

/* Returns the method of time measurement; null without times. */
json_t *result_timing(const struct run_figures *);
/* Adds "experiment" to "plugins". */
void result_put_origin(json_t *result, const struct experiment *, const struct facts *);
/* Returns "world"; "fault" is null in a normal run. */
json_t *result_world(const struct run_facts *);
json_t *result_fault(const struct fault_options *, const struct run_fault *);
/* result_profile() returns "profile": the written trace, and the recording cost of the busiest
 * thread in an iteration; null: none. The next function formats a time as RFC 3339, UTC; null:
 * 0. */
json_t *result_profile(const struct trace_written *);
json_t *result_time(time_t);
/* Returns the facts that a backend reports about its device, or a transport about its links; null:
 * none. */
json_t *result_facts(const struct session_facts *);

#endif
