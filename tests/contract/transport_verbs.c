/* Promises of the verbs transport only: an unresponsive peer is named, flow control accepts any
 * number of puts, and describe() lists the device. */
#include "ranks.h"

enum { HEAP = 1 << 20, HALF = HEAP / 2, SIGNALS = 8 };

/* Rank 1 leaves at once. A peer in reach of stores does not use the device. */
static void put_to_who_has_left(struct rank *r)
{
    uint64_t begun = epa_now_ns();
    enum epa_status status = EPA_OK;

    if (r->me == 1 || r->t->peer_heap[1] != NULL)
        return;
    while ((status == EPA_OK || status == EPA_AGAIN) && epa_now_ns() - begun < 60000000000) {
        status = epa_put_signal(r->t, HALF, r->t->heap, 100, 0, 1, 1);
        if (status == EPA_AGAIN || status == EPA_OK)
            status = r->t->ops->progress(r->t);
    }
    claim(r, status == EPA_ERR_DIED, "status %d", status);
    explains(r, "to rank 1 failed: transport retry counter exceeded");
    explains(r, "port ");
    claim(r, r->t->ops->quiet(r->t) == EPA_ERR_DIED, "quiet() did not fail");
    claim(r, epa_wait(r->t, 1, 1, 1000000000) == EPA_ERR_DIED, "wait() did not fail");
    claim(r, epa_put(r->t, 0, r->t->heap, 8, 1) == EPA_ERR_DIED, "put() did not fail");
    claim(r, r->t->ops->barrier(r->t, 1000000000) == EPA_ERR_DIED, "barrier() did not fail");
}

/* Puts far more than a queue holds before any wait. */
static void put_thousands(struct rank *r)
{
    enum { PUTS = 5000, BYTES = 64 };

    fill(r, 0, PUTS * BYTES, 1);
    for (uint64_t i = 0; i < PUTS; i++) {
        if (!put(r, HALF + i * BYTES, r->t->heap + i * BYTES, BYTES, next_of(r)))
            return;
    }
    if (meet(r))
        is_filled(r, HALF, PUTS * BYTES, 1, previous_of(r));
}

static void put_from_elsewhere(struct rank *r)
{
    static char elsewhere[16];

    claim(r, epa_put(r->t, 0, elsewhere, sizeof(elsewhere), next_of(r)) == EPA_ERR_CONFIG,
          "a source outside the heap was taken");
    explains(r, "puts 16 bytes");
    claim(r, epa_put(r->t, 0, r->t->heap + HEAP - 8, 16, next_of(r)) == EPA_ERR_CONFIG,
          "a source that leaves the heap was taken");
}

static void note_key(void *arg, const char *key, const char *value)
{
    char *keys = arg;

    if (value[0] != '\0' && strlen(keys) + strlen(key) + 2 < 256)
        strcat(strcat(keys, key), " ");
}

static void describe(struct rank *r)
{
    char keys[256] = "";

    r->t->ops->describe(r->t, note_key, keys);
    claim(r, strcmp(keys, "device port link rate gid mtu inline loads and stores ") == 0,
          "describe() lists %s", keys);
}

static const struct promise promises[] = {
    {"an unresponsive rank is named", put_to_who_has_left, {2}, .fails = true},
    {"thousands of puts fit through one queue", put_thousands, {2}},
    {"an unregistered source is refused with a reason", put_from_elsewhere, {2}},
    {"describe() names the device", describe, {2}},
};

PROMISES_MAIN(SIGNALS, HEAP)
