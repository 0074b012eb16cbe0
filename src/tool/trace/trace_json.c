/* Head and events of the files of a trace. */
#include "trace/trace_json.h"

#include "base/memory.h"

void trace_add_event(struct text *out, const json_t *event, bool first)
{
    text_add(out, first ? "\n" : ",\n");
    json_write(out, event, JSON_REAL_PRECISION(15));
}

void trace_begin(struct text *out, json_int_t base_ns, json_t *other)
{
    text_add(out, "{\"displayTimeUnit\": \"ns\", \"baseTimeNanoseconds\": %lld,\n\"otherData\": ",
             (long long)base_ns);
    json_write(out, other, JSON_REAL_PRECISION(15));
    text_add(out, ",\n\"traceEvents\": [");
    json_decref(other);
}
