/* Values of a result with their paths: the machine, the build, the plugins and the measurement of time.
 * The writers of JSON and of keys visit them. */
#ifndef RESULT_VALUES_H
#define RESULT_VALUES_H

#include "result/result.h"

enum value_kind {
    VALUE_NONE, /* unknown: null */
    VALUE_TEXT,
    VALUE_COUNT,
    VALUE_REAL,
    VALUE_FLAG,  /* count is 0 or 1 */
    VALUE_GROUP, /* begins an object, which may have no values */
};

struct result_value {
    const char *path;
    enum value_kind kind;
    const char *text;
    uint64_t count;
    double real;
};

/* `before` is a prefix of all paths: "" or "build.". */
void build_visit(const struct build_facts *, const char *before,
                 void (*fn)(void *arg, const struct result_value *), void *arg);
/* Visits the machine, its build and the environment, but not devices and links. */
void machine_visit(const struct machine_facts *, void (*fn)(void *arg, const struct result_value *),
                   void *arg);
/* Visits the name, file and hash of the four plugins: "launcher.name", ... */
void plugins_visit(const struct experiment *, void (*fn)(void *arg, const struct result_value *),
                   void *arg);
/* Visits nothing if the run has no times. */
void timing_visit(const struct run_figures *, void (*fn)(void *arg, const struct result_value *),
                  void *arg);

#endif
