/* Runs of an index to runs of today. */
#ifndef RUN_FOLDER_MATCH_H
#define RUN_FOLDER_MATCH_H

#include "cli/run_folder.h"

/* Runs that `old` says are done are marked so, and get their result and their run of the new
 * index. A batch that lacks runs of the index is refused, and so is a result that cannot be
 * read, but for --force: then it is done again. */
enum epa_status run_folder_match(struct run_folder *, struct epa_error *);

#endif
