/* The watching thread blocks the deadly signals. The kernel thus delivers a signal that another process
 * sends to a thread of the rank, and still ends the process for a fault of the watching thread itself.
 *
 * The watching thread may need a lock that the crashed thread holds. The handler therefore ends the
 * process by the signal after a time limit. */
#include "launch/crash.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

#include <epa2a/wait.h>

/* Exists in builds with a sanitizer, whose own handlers report defects. */
extern void __sanitizer_set_report_path(const char *) __attribute__((weak));

static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
enum { DEADLY = sizeof(deadly) / sizeof(deadly[0]) };

static const uint64_t limit_ns = 30000000000;

static struct {
    pthread_t watching;
    int wake;
    uint32_t signal;
} crash;

static void catch_signal(int number)
{
    const uint64_t one = 1;
    uint64_t end_ns = epa_now_ns() + limit_ns;
    uint32_t none = 0;

    if (!pthread_equal(pthread_self(), crash.watching)) {
        /* Release: pairs with the acquire in crash_signal(). */
        (void)__atomic_compare_exchange_n(&crash.signal, &none, (uint32_t)number, false,
                                          __ATOMIC_RELEASE, __ATOMIC_RELAXED);
        (void)!write(crash.wake, &one, sizeof(one));
        while (epa_now_ns() < end_ns)
            (void)poll(NULL, 0, 1000);
    }
    (void)signal(number, SIG_DFL);
    (void)raise(number); /* delivered when the handler returns */
}

void crash_catch(int wake)
{
    struct sigaction action = {.sa_handler = catch_signal}, before;
    sigset_t set;

    sigemptyset(&set);
    crash.watching = pthread_self();
    crash.wake = wake;
    for (uint32_t i = 0; i < DEADLY; i++) {
        if (sigaction(deadly[i], NULL, &before) != 0 ||
            (__sanitizer_set_report_path != NULL && before.sa_handler != SIG_DFL &&
             before.sa_handler != catch_signal))
            continue;
        if (sigaction(deadly[i], &action, NULL) == 0)
            sigaddset(&set, deadly[i]);
    }
    (void)pthread_sigmask(SIG_BLOCK, &set, NULL);
}

uint32_t crash_signal(void)
{
    return __atomic_load_n(&crash.signal, __ATOMIC_ACQUIRE);
}
