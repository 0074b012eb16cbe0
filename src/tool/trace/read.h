/* Reads and merges trace files of epa2a. */
#ifndef TRACE_READ_H
#define TRACE_READ_H

#include "trace/trace.h"

/* Reads a trace. EPA_ERR_CONFIG: the file is not a trace of epa2a (err has the reason);
 * EPA_ERR_SYSTEM: it cannot be read. The caller frees `out` in any case. */
enum epa_status trace_read(const char *path, struct trace_file *out, struct epa_error *);
void trace_free(struct trace_file *);

/* Merges traces of one run; only `stage`, if it is not NULL. */
enum epa_status trace_merge(const struct trace_file *, uint32_t n, const char *stage,
                            struct text *out, struct epa_error *);

#endif
