/* The clock that everything is timed with, and the hint for a core that spins. */
#ifndef CLOCK_H
#define CLOCK_H

#include <epa2a/wait.h>

static inline uint64_t clock_ns(void)
{
    return epa_now_ns();
}

static inline void clock_relax(void)
{
    epa_relax();
}

static inline void clock_pause(uint64_t waited_ns, uint64_t spin_ns)
{
    epa_backoff(waited_ns, spin_ns);
}

#endif
