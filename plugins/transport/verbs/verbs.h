/* What the parts of the verbs transport share. */
#ifndef VERBS_H
#define VERBS_H

#include <epa2a/transport.h>

#include "../../common/segments.h"
#include "../../common/transport_wait.h"
#include "connect.h"
#include "device.h"
#include "queue.h"

enum verbs_failed_at {
    FAILED_QUIET = FAILED_OTHER,
    FAILED_REQUEST, /* see queues.failure */
    FAILED_SOURCE,
};

struct verbs {
    struct epa_transport base; /* first: a pointer to it is one to all of this */
    struct epa_bootstrap *boot;
    struct config config;
    struct device device;
    struct segments segments;
    struct peer *peer; /* segments.peer */
    char **peer_heap;
    struct ibv_mr *mr, *pinned_mr; /* the own segment; what signals carry */
    void *pinned;
    uint64_t pinned_bytes;
    struct queues queues;
    uint64_t *ordered; /* [size] requests that the next put or set there waits for */
    uint32_t mtu;      /* the least of all peers */
    bool connected;    /* all can reach all */
    struct epa_wait_config wait;
    uint64_t settle_ns; /* between the two looks at a signal */
    uint64_t barriers;  /* begun by this rank */
    struct failure failure;
};

/* Lines behind the signals that are the transport's own. */
static inline uint32_t line_arrived(const struct verbs *v, uint32_t from)
{
    return v->segments.params.signals + from;
}

/* Memory that loads and stores reach; always one's own. */
static inline bool is_direct(const struct verbs *v, uint32_t peer)
{
    return v->peer_heap[peer] != NULL;
}

static inline uint64_t *word_at(const struct verbs *v, uint32_t line, uint32_t peer)
{
    return &v->peer[peer].segment->signal[line].word;
}

/* Where a line is for the peer's device. */
static inline uint64_t remote_line(const struct queue *q, uint32_t line)
{
    return q->remote + offsetof(struct segment, signal) + (uint64_t)line * LINE;
}

/* ---- waits.c ---- */

/* Whether `word` is what is wanted, in two looks that saw the same, with `pause` in between:
 * what was seen in the middle of a write does not count. */
bool poll_settled(const uint64_t *word, enum epa_compare, uint64_t want,
                  void (*pause)(const void *arg), const void *arg);
/* A value that two looks saw alike. */
uint64_t look_up(const uint64_t *word, void (*pause)(const void *arg), const void *arg);

uint64_t verbs_read(const struct verbs *, uint32_t line);

/* What has failed is in v->failure. */
enum epa_status verbs_poll(struct verbs *);
/* One turn of a wait: completions, `aborted`, the clock. EPA_OK: go on waiting. */
enum epa_status verbs_go_on(struct verbs *, struct epa_wait *, struct epa_wait_state *);
/* Until this rank's own `signal` is what is wanted. */
enum epa_status verbs_wait(struct verbs *, uint32_t signal, enum epa_compare, uint64_t want,
                           uint64_t timeout_ns);
/* Until all that this rank has started is in place. */
enum epa_status verbs_drain(struct verbs *, uint64_t timeout_ns);
enum epa_status verbs_barrier(struct epa_transport *, uint64_t timeout_ns); /* for the table */

/* ---- verbs.c, open.c ---- */

extern const struct epa_transport_ops verbs_ops;
void verbs_close(struct epa_transport *);

/* ---- waits.c ---- */

void verbs_explain(struct epa_transport *, struct epa_error *);
void verbs_describe(struct epa_transport *,
                    void (*say)(void *arg, const char *key, const char *value), void *arg);

/* Whether, and where, a failed request says more than its status: what to look at. */
struct request_words {
    const struct queue_failure *failure;
    const char *port; /* "port 1 of mlx5_0 is ACTIVE" */
    uint32_t rank, timeout, retries;
};
void request_in_words(const struct request_words *, char *out, size_t room);

#endif
