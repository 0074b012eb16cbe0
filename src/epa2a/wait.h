/* What a rank waits for, told to whoever looks at it from outside while it hangs. Only waits
 * that take long are told, on their slow path, so those that do not cost nothing. */
#ifndef EPA2A_WAIT_H
#define EPA2A_WAIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EPA_WAIT_REPORT_NS = 1000000
}; /* how long a wait is before it is told, and told again */
#define EPA_WAIT_NOBODY UINT32_MAX

enum epa_wait_kind {
    EPA_WAIT_NOTHING,
    EPA_WAIT_SIGNAL,  /* `number` of this rank has `seen`, and `wanted` is waited for */
    EPA_WAIT_BARRIER, /* to which `peer` has come `seen` times */
    EPA_WAIT_SET_UP,  /* the bootstrap's, as above */
    EPA_WAIT_DATA,    /* `what` with that `number`, in memory: a flag beside a row */
    EPA_WAIT_PUTS,    /* until what was put to `peer` is in place */
    EPA_WAIT_CALL,    /* of a library, `what` */
    EPA_WAIT_DEVICE,  /* until what was queued on it is done */
};

struct epa_wait_state {
    enum epa_wait_kind kind;
    uint32_t peer, number; /* EPA_WAIT_NOBODY: not known, or none in particular */
    uint64_t seen, wanted, waited_ns;
    const char *what; /* of a signal: what it vouches for, as "rows"; NULL: not known */
};

/* Made by the core, one for each rank. */
struct epa_wait_observer {
    /* Any thread of the rank; NULL: what was told last is over. */
    void (*waits)(struct epa_wait_observer *, const struct epa_wait_state *);
};

/* Tells of a wait, if it is time to. *reported_ns is 0 when the wait begins. No wait observer: nobody
 * looks. */
static inline void epa_wait_report(struct epa_wait_observer *observer, const struct epa_wait_state *w,
                             uint64_t *reported_ns)
{
    if (observer == NULL || w->waited_ns - *reported_ns < EPA_WAIT_REPORT_NS)
        return;
    *reported_ns = w->waited_ns;
    observer->waits(observer, w);
}

/* The wait has ended well. One that failed is left as it was told. */
static inline void epa_wait_clear(struct epa_wait_observer *observer, uint64_t reported_ns)
{
    if (reported_ns != 0)
        observer->waits(observer, NULL);
}

#ifdef __cplusplus
}
#endif
#endif
