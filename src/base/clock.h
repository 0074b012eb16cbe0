/* The clock that everything is timed with, and what a spinning core is told. */
#ifndef CLOCK_H
#define CLOCK_H

#include <sched.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#if defined(__x86_64__) || defined(__i386__)
static inline void clock_relax(void)
{
    __builtin_ia32_pause();
}
#elif defined(__aarch64__)
static inline void clock_relax(void)
{
    __asm__ __volatile__("isb" ::: "memory");
}
#else
static inline void clock_relax(void)
{
}
#endif

/* What a thread does between two looks at what it waits for. Not for long does it yield:
 * Linux 6.18 charges who yields for a whole slice, a million times a second, until others on
 * its cores are not run for tens of seconds. A back off takes about 70 us with the kernel's slack.
 * Where cores are short (no time to spin) it grows with the wait: 63 ranks that back off for the
 * last one would take two cores by waking up. */
enum { CLOCK_YIELD_NS = 1000000, CLOCK_BACKOFF_NS = 20000, CLOCK_LONGEST_BACKOFF_NS = 1000000 };

static inline void clock_backoff(uint64_t waited_ns, uint64_t spin_ns)
{
    uint64_t ns = spin_ns > 0 ? 0 : waited_ns / 32;

    ns = ns < CLOCK_BACKOFF_NS           ? CLOCK_BACKOFF_NS
         : ns < CLOCK_LONGEST_BACKOFF_NS ? ns
                                     : CLOCK_LONGEST_BACKOFF_NS;
    nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
}

static inline void clock_pause(uint64_t waited_ns, uint64_t spin_ns)
{
    if (waited_ns >= CLOCK_YIELD_NS)
        clock_backoff(waited_ns, spin_ns);
    else if (waited_ns >= spin_ns)
        sched_yield();
    else
        clock_relax();
}

#endif
