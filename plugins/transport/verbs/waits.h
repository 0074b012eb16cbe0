/* Waits, barriers, and explanations of failures. */
#ifndef VERBS_WAITS_H
#define VERBS_WAITS_H

#include "state.h"

/* Facts about a failed request for the error message. */
struct request_words {
    const struct queue_failure *failure;
    const char *port; /* "port 1 of mlx5_0 is ACTIVE" */
    uint32_t rank, timeout, retries;
};

/* Returns true if two equal reads of `word`, with `pause` between them, satisfy the comparison. A
 * half-written value does not count. */
bool poll_settled(const uint64_t *word, enum epa_compare, uint64_t want,
                  void (*pause)(const void *arg), const void *arg);
/* Returns a value that two consecutive reads agree on. */
uint64_t look_up(const uint64_t *word, void (*pause)(const void *arg), const void *arg);

uint64_t verbs_read(const struct verbs *, uint32_t line);

/* Polls completions; v->failure explains an error. */
enum epa_status verbs_poll(struct verbs *);
/* One step of a wait: polls completions, checks `aborted` and the clock. EPA_OK: continue. */
enum epa_status verbs_go_on(struct verbs *, struct epa_wait *, struct failure *);
/* Waits until this rank's own `signal` satisfies the comparison. */
enum epa_status verbs_wait(struct verbs *, uint32_t signal, enum epa_compare, uint64_t want,
                           uint64_t timeout_ns);
/* Waits until all operations of this rank are complete. */
enum epa_status verbs_drain(struct verbs *, uint64_t timeout_ns);
enum epa_status verbs_barrier(struct epa_transport *, uint64_t timeout_ns); /* for the ops table */

void verbs_explain(struct epa_transport *, struct epa_error *);
void verbs_describe(struct epa_transport *,
                    void (*say)(void *arg, const char *key, const char *value), void *arg);

void request_in_words(const struct request_words *, char *out, size_t room);

#endif
