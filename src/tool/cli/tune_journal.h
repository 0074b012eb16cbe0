/* The journal of a search: a line for each turn, in order. */
#ifndef TUNE_JOURNAL_H
#define TUNE_JOURNAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/json.h"
#include "cli/cli.h"

struct tune_journal {
    char *path;  /* NULL: no journal */
    json_t *old; /* lines of the search that --resume continues */
    size_t at;   /* index of the next line of `old` */
    int fd, lock_fd;
};

/* Fails if the journals of tasks 1 to `tasks` cannot be written into --out-dir. */
enum epa_status tune_journals_check(const struct cli *, uint32_t tasks, struct epa_error *);
/* Opens the journal in --out-dir, if the option is given. With --resume `head` must equal the head
 * of the old journal. `task`: number of the task from 1; 0: the only task. */
enum epa_status tune_journal_open(struct tune_journal *, const struct cli *, uint32_t task,
                                  const json_t *head, struct epa_error *);
/* Returns the next turn of the old journal, which must describe `what`; NULL: the caller takes the
 * turn. */
enum epa_status tune_journal_next(struct tune_journal *, const json_t *what, const json_t **out,
                                  struct epa_error *);
/* Appends a turn. */
enum epa_status tune_journal_add(struct tune_journal *, const json_t *turn, struct epa_error *);
void tune_journal_close(struct tune_journal *);

#endif
