/* The runs and settings that a search can try. */
#ifndef TUNE_CANDIDATES_H
#define TUNE_CANDIDATES_H

#include "cli/tune.h"

/* Reads the only run of a text with `set`, or all runs of the file (text NULL). Returns NULL on an
 * error: `why` receives the error of a text; an error of the file is printed. */
const struct runs *tune_read_runs(struct tune_search *, const char *text, const char **set,
                                  uint32_t n, char why[RUNS_FAILURE]);
/* Reads the runs of the file that belong to this task, adds --algorithms, and collects all tasks. */
enum epa_status tune_read_bases(struct tune_search *);
/* Returns the number of output properties of an experiment that must not differ between settings. */
uint32_t tune_delivered(const struct tune_search *, const struct experiment *,
                        struct op_property out[OP_PROPERTIES]);

/* Adds a change to `set` and sorts it; leaves out a value that the base already has. Returns the new
 * length. */
uint32_t tune_merge(struct tune_search *, uint32_t base, const char **set, uint32_t n,
                    const char *change);
/* Adds a setting, or returns the existing one of the same name. NULL: the setting is not valid. */
struct tune_setting *tune_add_setting(struct tune_search *, uint32_t base, const char **set,
                                      uint32_t n, const char *change, uint32_t pass);
/* Adds to a list all settings that differ from `from` in one value. */
void tune_add_changes(struct tune_search *, const struct tune_setting *from, uint32_t pass,
                      struct tune_setting **list, uint32_t *n);

#endif
