/* Compares the device's clock with the host's: the host writes a request to a shared word, the
 * kernel writes its time and then a reply. See cuda.h. */
#include "state.h"
#include "clock.h"

#include <epa2a/device.cuh>

/* One thread; ends if the host stops asking. Acquire and release pair with ask_clock(). */
static __global__ void answer(const __grid_constant__ epa_device_view v, struct clock_words *w,
                              uint32_t rounds)
{
    for (uint32_t i = 1; i <= rounds; i++) {
        struct epa_dev_poll poll = {};
        uint64_t asked;

        while ((asked = epa_dev_load_acquire(&w->asked)) < i)
            if (epa_dev_poll_expired(v, &poll, CLOCK_REQUEST_NS, {}, asked, i))
                return;
        epa_dev_store_relaxed(&w->time_ns, epa_dev_time());
        epa_dev_store_release(&w->answered, i);
    }
}

cudaError_t clock_queue(const struct epa_device_view *view, struct clock_words *words,
                        uint32_t rounds, cudaStream_t stream)
{
    answer<<<1, 1, 0, stream>>>(*view, words, rounds);
    return cudaGetLastError();
}
