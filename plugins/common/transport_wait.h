/* Waits of the transports: the waiting strategy, and the record of a failed wait, from which
 * explain() names rank, signal, observed value and expected value. */
#ifndef TRANSPORT_WAIT_H
#define TRANSPORT_WAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/transport.h>

enum wait_kind { WAIT_AUTO, WAIT_SPIN, WAIT_YIELD };

enum failed_at {
    FAILED_NOWHERE,
    FAILED_SIGNAL,
    FAILED_BARRIER,
    FAILED_SET_UP,   /* the bootstrap failed while signals were reset */
    FAILED_PROGRESS, /* another rank failed while this rank was in progress() */
    FAILED_QUIET,    /* quiet() did not complete the puts */
    FAILED_OTHER,    /* first value that a transport may define itself */
};

struct failure {
    int at; /* enum failed_at, or the transport's own */
    enum epa_status status;
    enum epa_compare compare;
    uint32_t signal, peer; /* peer: the awaited rank of a barrier or of puts */
    uint64_t want, seen, waited_ns;
    uint32_t missing, first_missing; /* barrier: ranks that have not arrived, and the first */
    const char *what;                /* name and error of the library call that failed */
    int code;
};

/* WAIT_AUTO spins, but yields at once if the host has more ranks than cores. */
struct epa_wait_config wait_configure(const struct epa_bootstrap *, enum wait_kind);

static inline bool wait_reached(uint64_t seen, enum epa_compare compare, uint64_t want)
{
    return compare == EPA_EQ ? seen == want : seen >= want;
}

/* One step of a wait for a signal, a barrier or puts. The status page shows the object of the wait
 * (from `f`) meanwhile. Stores the status and the waiting time so far in `f`. */
static inline enum epa_status wait_turn(const struct epa_wait_config *config, struct epa_wait *wait,
                                        struct failure *f)
{
    bool signal = f->at == FAILED_SIGNAL;
    struct epa_wait_state state = {.kind = signal                    ? EPA_WAIT_SIGNAL
                                           : f->at == FAILED_BARRIER ? EPA_WAIT_BARRIER
                                                                     : EPA_WAIT_PUTS,
                                   .peer = signal ? EPA_WAIT_NOBODY : f->peer,
                                   .number = signal ? f->signal : EPA_WAIT_NOBODY,
                                   .seen = f->seen,
                                   .wanted = f->want};

    f->status = epa_wait_turn(config, wait, &state);
    f->waited_ns = wait->waited_ns;
    return f->status;
}

/* Polls `word` until it satisfies f->compare and f->want. Reads the clock only after a burst of
 * unsuccessful polls, so a signal that has arrived costs one load. A failure fills the rest of
 * `f`. */
static inline enum epa_status wait_for_word(const struct epa_wait_config *config,
                                            const uint64_t *word, uint64_t timeout_ns,
                                            struct failure *f)
{
    struct epa_wait wait = {.timeout_ns = timeout_ns};

    for (;;) {
        for (uint32_t i = 0; i < config->burst; i++) {
            /* Acquire: pairs with the release of the rank that signals or arrives. */
            f->seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
            if (wait_reached(f->seen, f->compare, f->want))
                return epa_wait_done(config, &wait);
            epa_relax();
        }
        if (wait_turn(config, &wait, f) != EPA_OK)
            return f->status;
    }
}

/* Records that rank `r` has not arrived at the barrier. */
static inline void wait_note_missing(struct failure *f, uint32_t r)
{
    f->first_missing = f->missing++ == 0 || r < f->first_missing ? r : f->first_missing;
}

/* Collective: sets this rank's `n` words, `stride` bytes apart, to 0 between two barriers. */
enum epa_status wait_reset(struct epa_bootstrap *, void *words, uint32_t n, size_t stride,
                           struct failure *out);

/* ", when another rank had failed", or nothing. */
const char *wait_why(const struct failure *);

/* Explains the failures below FAILED_OTHER. `name` is the name of the transport. */
void wait_explain(const char *name, const struct epa_transport *, struct epa_bootstrap *,
                  const struct failure *, struct epa_error *);

/* ---- mappings of this process, to check an address that a peer sent ---- */

/* Returns true if adjacent shared mappings of one file cover [at, at + bytes) with read and write
 * access. The file has inode `ino` on device `dev` (st_dev); `ino` 0 accepts any file. Returns
 * false without /proc. */
bool maps_hold(const void *at, uint64_t bytes, uint64_t dev, uint64_t ino);

/* The owner touches its memory first: the pages are then on its own NUMA node, and later accesses
 * cause no page faults. `huge` requests huge pages. Errors begin with `name`, the transport. */
enum epa_status touch_memory(const char *name, const struct epa_bootstrap *, char *at,
                             uint64_t bytes, bool huge, struct epa_error *);

#endif
