/* Reports of a search with several tasks. */
#ifndef TUNE_TASKS_H
#define TUNE_TASKS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/text.h"
#include "cli/tune.h"

/* A searched task. */
struct tune_searched {
    const char *task;
    const struct tune *search;
    const char *failed;      /* reason of a failure; NULL: none */
    double file_ns, best_ns; /* NaN: no turn */
};

struct tune_tasks {
    struct tune_searched *row; /* [n]; room for all tasks */
    uint32_t n;
    struct text runs; /* YAML of the runs of the output file */
    uint64_t budget_ns, spent_ns;
    uint32_t turns, settings, tasks, finished; /* finished: tasks in `runs` */
};

/* Returns the label of a run without the plugins, which the search may change. */
const char *tune_task_name(struct arena *, const char *label, size_t bytes);
/* Adds a searched task. yaml: its fastest experiment, or empty. failed: reason of a failure, or NULL.
 * The search and the texts must outlive the reports. */
void tune_tasks_add(struct tune_tasks *, const struct tune *, const char *task,
                    const struct text *yaml, const char *failed);
void tune_tasks_print(FILE *, const struct tune_tasks *, const char *from);
void tune_tasks_yaml(const struct tune_tasks *, const struct machine_facts *, const char *from,
                     struct text *out);

#endif
