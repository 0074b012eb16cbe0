/* Tables of the time in a trace. */
#ifndef TRACE_SUMMARY_H
#define TRACE_SUMMARY_H

#include "trace/trace.h"

/* Adds the tables of time as text (summary.c). */
void trace_summary(const struct trace_file *, struct text *out);

#endif
