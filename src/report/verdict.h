/* What `expect` asks for, held against a result. */
#ifndef VERDICT_H
#define VERDICT_H

#include "report/result.h"

/* Fills result->verdict of a result that ended well, with all else in it; where something is
 * missed, also `error` and the exit code. Part of result_make(). EPA_ERR_NOMEM. */
enum epa_status verdicts_make(struct result *);

/* "total median <= 120 us": what was asked for; and "131.4 us (+9.5 %)", or why there is
 * none. Both return buf. */
char *verdict_wanted(const struct verdict *, char *buf, size_t room);
char *verdict_found(const struct result *, const struct verdict *, char *buf, size_t room);

/* `expect` of a result as JSON, to be owned by the caller; NULL: no memory. */
struct json_t;
struct json_t *verdicts_json(const struct result *);

#endif
