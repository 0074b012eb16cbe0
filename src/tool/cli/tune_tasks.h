/* Reports of a search with several tasks. */
#ifndef TUNE_TASKS_H
#define TUNE_TASKS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/tune.h"

struct tune_tasks {
    json_t *rows, *documents; /* rows of the table; tune_json() of each task */
    struct text runs;         /* YAML of the runs of the output file */
    uint64_t budget_ns, spent_ns;
    uint32_t turns, settings, tasks, finished; /* finished: tasks in `runs` */
};

/* Returns the label of a run without the plugins, which the search may change. */
const char *tune_task_name(struct arena *, const char *label, size_t bytes);
/* Adds a searched task. yaml: its fastest experiment, or empty. failed: reason of a failure, or
 * NULL. */
void tune_tasks_add(struct tune_tasks *, const struct tune *, const char *task,
                    const struct text *yaml, const char *failed);
void tune_tasks_print(FILE *, const struct tune_tasks *, const char *from);
json_t *tune_tasks_json(const struct tune_tasks *, const char *from, bool interrupted);
void tune_tasks_yaml(const struct tune_tasks *, const struct machine_facts *, const char *from,
                     struct text *out);

#endif
