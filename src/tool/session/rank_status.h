/* The first failure of a rank, with its explanation. */
#ifndef RANK_STATUS_H
#define RANK_STATUS_H

#include "session/rank.h"

/* Records a failure and its message unless an earlier failure exists. Returns false. */
EPA_PRINTF(3, 4)
bool rank_fail(struct rank *, enum epa_status, const char *fmt, ...);
/* The same for an option that the user must change, as in epa_fail_key(). */
EPA_PRINTF(4, 5)
bool rank_fail_key(struct rank *, enum epa_status, const char *key, const char *fmt, ...);

/* Fails with the position of `key` in the experiment: "x.yaml:7:12: KEY SENTENCE dispatch, combine;
 * did you mean 'dispatch'?". `want` is the unknown name; `name` lists the n known names. */
EPA_PRINTF(6, 7)
void rank_refuse_name(struct rank *, const char *key, const char *want, const char *const *name,
                      uint32_t n, const char *fmt, ...);

/* Take the status of a call and, after a failure, the explanation of its owner (ep_explain.h). Return
 * true without failure. */
bool rank_backend(struct rank *, enum epa_status);
bool rank_boot(struct rank *, enum epa_status);

/* Returns true if the rank may begin another iteration. A rank that waits for no peer detects the
 * failure of another rank, or an interrupt by the user, only here. */
bool rank_goes_on(struct rank *);
#endif
