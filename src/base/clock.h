/* The clock that everything is timed with, and what a spinning core is told. */
#ifndef CLOCK_H
#define CLOCK_H

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

#endif
