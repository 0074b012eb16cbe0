/* Traces as files: what `epa2a trace` works on. */
#ifndef TRACE_READ_H
#define TRACE_READ_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"
#include <epa2a/status.h>

struct trace_item {
    char ph;           /* M, X, C, s, f; another: one of those that nothing here knows */
    uint32_t pid, tid; /* rank and lane */
    int64_t ts_ns, dur_ns;
    const char *name, *cat, *id; /* "" where there is none */
    int64_t iteration;           /* -1: not said; so of the next three */
    int64_t peer, from, to;
    uint64_t bytes, tokens;
    size_t index;     /* in traceEvents, from 0 */
    const void *json; /* all of it */
};

struct trace_file {
    const char *path;
    bool ours;               /* epa2a wrote it, by otherData */
    struct text text;        /* as it was read */
    void *root;              /* json_t; owns all strings */
    const void *other;       /* otherData */
    struct trace_item *item; /* by time; of those that begin together the longest first */
    size_t n;
    struct text flaws; /* what is wrong with single events, a line each */
    uint32_t n_flaws;
};

/* EPA_ERR_CONFIG: it is no trace at all, and why; EPA_ERR_SYSTEM: it cannot be read. What is
 * wrong with single events is reported in `flaws`, and they are left out. The caller frees `out`
 * however it ends. */
enum epa_status trace_read(const char *path, struct trace_file *out, struct epa_error *);
void trace_free(struct trace_file *);

/* Of otherData: text, "" if there is none; number, or `missing`. */
const char *trace_text(const struct trace_file *, const char *key);
double trace_number(const struct trace_file *, const char *key, double missing);

/* All that is wrong with a trace, into its flaws. */
void trace_check(struct trace_file *);

static inline int64_t trace_end_ns(const struct trace_item *i)
{
    return i->ts_ns + i->dur_ns;
}

/* summary.c: where time went, as text; where no iterations are reported, as in what kernels write,
 * when lanes were in each phase. */
void trace_summary(const struct trace_file *, struct text *out);

/* Traces of one run as one; of a stage alone, if it is not NULL. And a page that draws one, with
 * nothing from elsewhere. */
enum epa_status trace_merge(const struct trace_file *, uint32_t n, const char *stage,
                            struct text *out, struct epa_error *);
void trace_view(const struct trace_file *, struct text *out);

#endif
