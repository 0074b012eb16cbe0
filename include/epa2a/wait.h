/* Waiting: the loop that polls, backs off and ends at a time limit or after another rank has
 * failed, and the report of a blocked wait, which shows a hung rank to observers. Only long waits
 * are reported, on their slow path, so that short waits cost nothing. */
#ifndef EPA2A_WAIT_H
#define EPA2A_WAIT_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <epa2a/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Declarations of Linux that plain C11 hides. */
#ifndef CLOCK_MONOTONIC
enum { EPA_CLOCK_MONOTONIC = 1 };
int clock_gettime(int clock, struct timespec *);
int nanosleep(const struct timespec *, struct timespec *);
#else
enum { EPA_CLOCK_MONOTONIC = CLOCK_MONOTONIC };
#endif

enum { EPA_WAIT_REPORT_NS = 1000000 }; /* age of a wait at its first report, and between reports */
#define EPA_WAIT_NOBODY UINT32_MAX

enum epa_wait_kind {
    EPA_WAIT_NOTHING,
    EPA_WAIT_SIGNAL,  /* `number` of this rank is `seen`; the wait needs `wanted` */
    EPA_WAIT_BARRIER, /* `peer` has entered this barrier `seen` times */
    EPA_WAIT_SET_UP,  /* a barrier of the bootstrap, fields as above */
    EPA_WAIT_DATA,    /* `what` with that `number`, in memory: a flag beside a row */
    EPA_WAIT_PUTS,    /* completion of all puts to `peer` */
    EPA_WAIT_CALL,    /* a call `what` of a library */
    EPA_WAIT_DEVICE,  /* completion of the device's queued work */
};

struct epa_wait_state {
    enum epa_wait_kind kind;
    uint32_t peer, number; /* EPA_WAIT_NOBODY: unknown, or no particular one */
    uint64_t seen, wanted, waited_ns;
    const char *what; /* of a signal: the data that it covers, such as "rows"; NULL: unknown */
};

/* Receiver of reports. The core creates one for each rank. */
struct epa_wait_observer {
    /* Called by any thread of the rank; NULL: the wait of the last report has ended. */
    void (*waits)(struct epa_wait_observer *, const struct epa_wait_state *);
};

/* Reports a wait that is old enough. *reported_ns is 0 when the wait begins. observer may be
 * NULL. */
static inline void epa_wait_report(struct epa_wait_observer *observer,
                                   const struct epa_wait_state *w, uint64_t *reported_ns)
{
    if (observer == NULL || w->waited_ns - *reported_ns < EPA_WAIT_REPORT_NS)
        return;
    *reported_ns = w->waited_ns;
    observer->waits(observer, w);
}

/* Called after a successful wait. The report of a failed wait is kept. */
static inline void epa_wait_clear(struct epa_wait_observer *observer, uint64_t reported_ns)
{
    if (reported_ns != 0)
        observer->waits(observer, NULL);
}

/* ---- the wait loop of transports and host algorithms ---- */

static inline uint64_t epa_now_ns(void)
{
    struct timespec now;

    clock_gettime(EPA_CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* A pause of the process (SIGSTOP, Ctrl-Z, a frozen cgroup) does not count as waiting time: between
 * two polls at most this fraction of a time limit counts. All ranks of a suspended run skip the
 * pause. Ranks that wait for one stopped rank continue to poll, and count all of their time. */
enum { EPA_WAIT_PAUSE_PART = 4 };

/* Returns the uncounted part of the time since the last poll, which was at *polled_ns (0: none). */
static inline uint64_t epa_pause_ns(uint64_t *polled_ns, uint64_t now_ns, uint64_t limit_ns)
{
    uint64_t gap_ns = *polled_ns != 0 && now_ns > *polled_ns ? now_ns - *polled_ns : 0;
    uint64_t most_ns = limit_ns / EPA_WAIT_PAUSE_PART;

    *polled_ns = now_ns;
    return gap_ns > most_ns ? gap_ns - most_ns : 0;
}

/* Returns the duration of a wait with this limit at this poll, without pauses. waited_ns is the
 * result at the last poll. *begun_ns is 0 before the first poll, and each pause moves it. */
static inline uint64_t epa_waited_ns(uint64_t *begun_ns, uint64_t waited_ns, uint64_t limit_ns)
{
    uint64_t now_ns = epa_now_ns(), polled_ns = *begun_ns + waited_ns;

    if (*begun_ns == 0)
        *begun_ns = polled_ns = now_ns;
    *begun_ns += epa_pause_ns(&polled_ns, now_ns, limit_ns);
    return now_ns - *begun_ns;
}

/* Spin hint to the core. */
static inline void epa_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("isb" ::: "memory");
#endif
}

enum {
    EPA_WAIT_SPIN_NS = 1000000,
    EPA_WAIT_YIELD_NS = 200000,
    EPA_WAIT_BACKOFF_NS = 20000,
    EPA_WAIT_BACKOFF_MAX_NS = 10000000
};

/* Backs off between two polls: spins, yields, then sleeps. A thread yields only for a short time:
 * when ranks of two runs yielded in each wait over TCP for up to 1 ms, Linux 6.18 ran nothing else
 * on a core for 17 s, not even its own network threads; with 200 us, less than 1 s. A sleep takes
 * about 70 us with the kernel's slack. With fewer cores than threads (no time to spin) the sleep
 * grows with the wait: 63 ranks that wake up while they wait for the last one would occupy two
 * cores. */
static inline void epa_backoff(uint64_t waited_ns, uint64_t spin_ns)
{
    uint64_t ns = spin_ns > 0 ? 0 : waited_ns / 32;
    struct timespec sleep;

    if (waited_ns < spin_ns && waited_ns < EPA_WAIT_SPIN_NS) {
        epa_relax();
    } else if (waited_ns < EPA_WAIT_YIELD_NS) {
        sched_yield();
    } else {
        if (ns < EPA_WAIT_BACKOFF_NS)
            ns = EPA_WAIT_BACKOFF_NS;
        if (ns > EPA_WAIT_BACKOFF_MAX_NS)
            ns = EPA_WAIT_BACKOFF_MAX_NS;
        sleep.tv_sec = 0;
        sleep.tv_nsec = (long)ns;
        nanosleep(&sleep, NULL);
    }
}

/* Method of waiting of a rank's threads; constant for a run. */
struct epa_wait_config {
    uint32_t burst;   /* polls between two reads of the clock and of `aborted` */
    uint64_t spin_ns; /* time for which a wait keeps its core */
    const uint32_t *aborted;
    struct epa_wait_observer *observer; /* NULL: no reports */
};

/* State of one wait. Each wait uses this loop:
 *
 *     struct epa_wait wait = {0};
 *
 *     wait.timeout_ns = timeout_ns;
 *     for (;;) {
 *         for (uint32_t i = 0; i < config->burst; i++) {
 *             if (__atomic_load_n(word, __ATOMIC_ACQUIRE) >= wanted)
 *                 return epa_wait_done(config, &wait);
 *             epa_relax();
 *         }
 *         state.seen = *word;
 *         status = epa_wait_turn(config, &wait, &state);
 *         if (status != EPA_OK)
 *             return status;
 *     } */
struct epa_wait {
    uint64_t timeout_ns; /* all other fields begin with 0 */
    uint64_t begun_ns, waited_ns, reported_ns;
};

/* Called after a burst of unsuccessful polls: reads the clock, reports a long wait and backs off.
 * EPA_OK: poll again; otherwise EPA_ERR_ABORTED or EPA_ERR_TIMEOUT. */
static inline enum epa_status epa_wait_turn(const struct epa_wait_config *config,
                                            struct epa_wait *wait, struct epa_wait_state *state)
{
    wait->waited_ns = state->waited_ns =
        epa_waited_ns(&wait->begun_ns, wait->waited_ns, wait->timeout_ns);
    epa_wait_report(config->observer, state, &wait->reported_ns);
    /* Relaxed: the flag itself is the message. */
    if (__atomic_load_n(config->aborted, __ATOMIC_RELAXED) != 0)
        return EPA_ERR_ABORTED;
    if (wait->waited_ns >= wait->timeout_ns)
        return EPA_ERR_TIMEOUT;
    if (wait->waited_ns >= config->spin_ns)
        epa_backoff(wait->waited_ns, config->spin_ns);
    return EPA_OK;
}

/* Called after a successful wait; the next wait may begin with the same `wait`. */
static inline enum epa_status epa_wait_done(const struct epa_wait_config *config,
                                            struct epa_wait *wait)
{
    epa_wait_clear(config->observer, wait->reported_ns);
    wait->reported_ns = 0;
    return EPA_OK;
}

#ifdef __cplusplus
}
#endif
#endif
