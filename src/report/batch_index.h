/* index.json of a results folder: which runs a batch has, what came of each, and where its
 * result is. share/epa2a-index.schema.json describes it. */
#ifndef BATCH_INDEX_H
#define BATCH_INDEX_H

#include "report/report_batch.h"

enum { BATCH_INDEX_SCHEMA = 1, BATCH_INDEX_NAME = 32 };

enum index_status { INDEX_PLANNED, INDEX_RUNNING, INDEX_DONE, INDEX_FAILED, INDEX_SKIPPED };

struct index_run {
    struct report_row row;         /* without `who` and `end` */
    uint32_t nth;                  /* of all runs of its id, from 1 */
    uint32_t at;                   /* when its turn is, from 0 */
    enum index_status status;      /* done: it ended well, and its result is on disk */
    int exit_code;                 /* -1: it has not ended */
    char result[BATCH_INDEX_NAME]; /* a file of the folder; "": none */
};

struct batch_index {
    const char *verb;
    const char *order; /* as in report_batch */
    uint64_t seed;
    int exit_code;         /* of the last command; -1: it has not ended, or was killed */
    struct index_run *run; /* [n], as written */
    uint32_t n;
    void *commands; /* JSON: those that wrote here, oldest first; see below */
    void *root;     /* JSON, of an index that was read: owns what it says as text */
};

/* What is wrong with the file goes to err, by its place. */
enum epa_status batch_index_read(const char *path, struct batch_index *out, struct epa_error *);
/* Adds a command to those that wrote here: its words (NULL ends them), when and where. */
enum epa_status batch_index_command(struct batch_index *, char *const *line, const char *started,
                                    const char *host, struct epa_error *);
/* "version" or "host" of the last of them; "": there is none. */
const char *batch_index_last(const struct batch_index *, const char *key);
enum epa_status batch_index_text(const struct batch_index *, struct text *out, struct epa_error *);
void batch_index_finish(struct batch_index *);

/* "planned", "running", "done", "failed", "skipped". */
const char *index_status_name(enum index_status);

/* What the file of a result is called: "0123456789ab.json", "0123456789ab-2.json". */
void index_result_name(const char *id, uint32_t nth, char out[BATCH_INDEX_NAME]);
bool index_is_result_name(const char *name);

#endif
