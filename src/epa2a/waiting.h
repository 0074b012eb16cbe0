/* What a rank waits for, told to whoever looks at it from outside while it hangs. Only waits
 * that take long are told, on their slow path, so those that do not cost nothing. */
#ifndef EPA2A_WAITING_H
#define EPA2A_WAITING_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EPA_WAITING_NS = 1000000
}; /* how long a wait is before it is told, and told again */
#define EPA_WAITING_NOBODY UINT32_MAX

enum epa_waiting_kind {
    EPA_WAITING_NOTHING,
    EPA_WAITING_SIGNAL,  /* `number` of this rank has `seen`, and `wanted` is waited for */
    EPA_WAITING_BARRIER, /* to which `peer` has come `seen` times */
    EPA_WAITING_SET_UP,  /* the bootstrap's, as above */
    EPA_WAITING_DATA,    /* `what` with that `number`, in memory: a flag beside a row */
    EPA_WAITING_PUTS,    /* until what was put to `peer` is in place */
    EPA_WAITING_CALL,    /* of a library, `what` */
    EPA_WAITING_DEVICE,  /* until what was queued on it is done */
};

struct epa_waiting {
    enum epa_waiting_kind kind;
    uint32_t peer, number; /* EPA_WAITING_NOBODY: not known, or none in particular */
    uint64_t seen, wanted, waited_ns;
    const char *what; /* of a signal: what it vouches for, as "rows"; NULL: not known */
};

/* Made by the core, one for each rank. */
struct epa_onlooker {
    /* Any thread of the rank; NULL: what was told last is over. */
    void (*waits)(struct epa_onlooker *, const struct epa_waiting *);
};

/* Tells of a wait, if it is time to. *told_ns is 0 when the wait begins. No onlooker: nobody
 * looks. */
static inline void epa_waits(struct epa_onlooker *onlooker, const struct epa_waiting *w,
                             uint64_t *told_ns)
{
    if (onlooker == NULL || w->waited_ns - *told_ns < EPA_WAITING_NS)
        return;
    *told_ns = w->waited_ns;
    onlooker->waits(onlooker, w);
}

/* The wait has ended well. One that failed is left as it was told. */
static inline void epa_waits_no_more(struct epa_onlooker *onlooker, uint64_t told_ns)
{
    if (told_ns != 0)
        onlooker->waits(onlooker, NULL);
}

#ifdef __cplusplus
}
#endif
#endif
