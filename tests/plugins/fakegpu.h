/* How an algorithm queues work on the backend fakegpu: its epa_backend.stream is one. */
#ifndef FAKEGPU_H
#define FAKEGPU_H

#include <epa2a/backend.h>

/* `run` is called later, in order, with a copy of `arg`: what a kernel and its parameters
 * are to a GPU. What it returns, if not EPA_OK, ends all that was queued after it. */
struct fakegpu_stream {
    enum epa_status (*push)(struct fakegpu_stream *, enum epa_status (*run)(void *arg),
                            const void *arg, size_t bytes);
};

#endif
