/* What the transports' waits share beyond epa2a/wait.h: how they wait, and what is kept of a
 * wait in vain so that explain() can name rank, signal, value seen and value wanted. */
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
    FAILED_PROGRESS, /* another rank, while this one waited for nothing in particular */
    FAILED_QUIET,    /* what was put is not in place */
    FAILED_OTHER,    /* from here on each transport counts its own */
};

struct failure {
    int at; /* enum failed_at, or the transport's own */
    enum epa_status status;
    enum epa_compare compare;
    uint32_t signal, peer; /* peer: that is waited for, of a barrier or of puts */
    uint64_t want, seen, waited_ns;
    uint32_t missing, first_missing; /* barrier: ranks that have not arrived, and the first */
    const char *what;                /* a library's call that failed, and how */
    int code;
};

/* Auto: spins, but lets other ranks run at once where there are more ranks than cores. */
struct epa_wait_config wait_configure(const struct epa_bootstrap *, enum wait_kind);

static inline bool wait_reached(uint64_t seen, enum epa_compare compare, uint64_t want)
{
    return compare == EPA_EQ ? seen == want : seen >= want;
}

/* epa_wait_turn() of a wait for a signal, a barrier or puts: what `f` would be a failure of is
 * reported while the wait lasts. How it ended, and how long it took so far, is in `f`. */
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

/* Polls `word` until it is what f->compare and f->want say. The clock is read only after a
 * burst of polls in vain: a signal that is there, or soon arrives, costs a load. A failure
 * fills the rest of `f`. */
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

/* Of a barrier: rank `r` has not arrived. */
static inline void wait_note_missing(struct failure *f, uint32_t r)
{
    f->first_missing = f->missing++ == 0 || r < f->first_missing ? r : f->first_missing;
}

/* Resets this rank's `n` words, `stride` bytes apart, while nobody signals. */
enum epa_status wait_reset(struct epa_bootstrap *, void *words, uint32_t n, size_t stride,
                           struct failure *out);

/* ", when another rank had failed", or nothing. */
const char *wait_why(const struct failure *);

/* Explains what is no transport's own. `name`: of the transport. */
void wait_explain(const char *name, const struct epa_transport *, struct epa_bootstrap *,
                  const struct failure *, struct epa_error *);

/* What this process has mapped: to check an address that somebody else named before it is used. */

/* Whether all of [at, at + bytes) is one or several neighbouring shared mappings that may be read
 * and written, of one file. `ino` 0: of any file, else of that one on device `dev` (st_dev).
 * False, too, where there is no /proc. */
bool maps_hold(const void *at, uint64_t bytes, uint64_t dev, uint64_t ino);

/* First touch by the owner: memory of its own NUMA node, and no page faults later. `huge`: of huge
 * pages, if there are any. `name`: of the transport, for errors. */
enum epa_status touch_memory(const char *name, const struct epa_bootstrap *, char *at,
                             uint64_t bytes, bool huge, struct epa_error *);

#endif
