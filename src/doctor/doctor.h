/* `epa2a doctor`: what this machine has, what plugins can do with it, what memory and links
 * give, and what is wrong or missing with the command that mends it. */
#ifndef DOCTOR_H
#define DOCTOR_H

#include <stdio.h>

#include "base/text.h"
#include "doctor/machine.h"
#include "doctor/measure.h"
#include "doctor/probe.h"

enum { DOCTOR_PLUGINS = 48, DOCTOR_FINDINGS = 40, DOCTOR_SCHEMA = 1 };

struct doctor_plugin {
    enum epa_plugin_kind kind;
    char name[40];
    bool loaded, usable;
    char text[512]; /* how, or why not */
    struct probe probe;
    enum epa_status status; /* why not */
};

/* Something that makes runs slower, noisier or impossible, or that is not there. */
struct doctor_finding {
    bool missing;
    char what[320], fix[320]; /* fix "": nothing can be done about it */
};

struct doctor {
    struct machine machine;
    struct doctor_plugin plugin[DOCTOR_PLUGINS];
    struct doctor_finding finding[DOCTOR_FINDINGS];
    uint32_t plugins, findings;
    bool quick, has_memory, has_flags;
    struct measure_memory memory;
    struct measure_flags flags;
    char empty[320];     /* which folders hold no plugins; "": none */
    enum epa_status shm; /* EPA_OK: ranks of this host can talk */
};

/* Plugins that are not there as they should be are no failure: they are findings. */
enum epa_status doctor_examine(const char *const *plugin_path, bool quick, struct doctor **out,
                               struct epa_error *);
void doctor_destroy(struct doctor *);

const struct doctor_plugin *doctor_plugin(const struct doctor *, enum epa_plugin_kind,
                                          const char *name);

/* Fills `finding` from all the rest. */
void doctor_judge(struct doctor *);

void doctor_print(FILE *, const struct doctor *);
/* tests/cli/doctor.schema.json describes it. */
enum epa_status doctor_json(const struct doctor *, struct text *out, struct epa_error *);

#endif
