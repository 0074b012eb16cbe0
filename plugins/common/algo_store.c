/* Chooses cached or nontemporal stores for rows: by option, by the size of the rows, or by trials
 * in the first dispatches and combines. Declared in algo_host.h. */
#include "algo_store.h"

#include "algo_host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epa2a/wait.h>

#define NEAR 1.1         /* times the smallest sum: ways within this factor stay under trial */
enum { TIME_BITS = 44 }; /* bits of the time in a signal word; the cycle is above them */
#define TIME_MOST 0x1p40

static const struct {
    enum epa_store peers, own;
} ways[ALGO_WAYS] = {
    {EPA_STORE_CACHED, EPA_STORE_CACHED},
    {EPA_STORE_NONTEMPORAL, EPA_STORE_NONTEMPORAL},
    {EPA_STORE_NONTEMPORAL, EPA_STORE_CACHED},
};

static void set_way(struct algo_host *h, uint32_t way)
{
    h->store = ways[way].peers;
    h->own_store = ways[way].own;
}

void algo_choose_store(struct algo_host *h, int stores, double bytes, bool own, uint32_t signal)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    double share = bytes / (double)(cache > 0 ? cache : 32 << 20);

    set_way(h, stores == ALGO_NONTEMPORAL_ON || (stores == ALGO_NONTEMPORAL_AUTO && share > 1));
    h->tuner = (struct algo_tuner){.signal = signal, .first = 1, .way = {0, 1, 2}};
    if (stores == ALGO_NONTEMPORAL_AUTO && share <= 1)
        h->tuner.ways = own ? ALGO_WAYS : ALGO_WAYS - 1;
}

/* Returns which of n ways a trial uses. The order runs forth and back, so that a drift affects all
 * ways equally. */
static uint32_t trial_way(uint64_t trial, uint32_t n)
{
    uint32_t turn = (uint32_t)(trial / ALGO_TURN);

    return turn < n ? turn : 2 * n - 1 - turn;
}

static int compare_reals(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Returns the lower quartile of the time per token, since other load only adds time; 0: too few
 * samples. Skips the first two trials of a turn, which find the caches in the state of the previous
 * way. */
static double quartile_trial(const struct algo_tuner *tuner, uint32_t way, bool pairs)
{
    double ns[ALGO_TRIALS];
    uint32_t n = 0;

    for (uint32_t i = 0; i < 2 * tuner->ways * ALGO_TURN; i++) {
        double dispatch = tuner->ns[ALGO_DISPATCH][i], combine = tuner->ns[ALGO_COMBINE][i];

        if (trial_way(i, tuner->ways) == way && i % ALGO_TURN >= 2 && dispatch > 0 &&
            (!pairs || combine > 0))
            ns[n++] = dispatch + (pairs ? combine : 0);
    }
    qsort(ns, n, sizeof(double), compare_reals);
    return n >= ALGO_TURN / 2 ? ns[n / 4] : 0;
}

/* Computes 1 + the time per token of each way, in 1/1024 ns; or 1 for all ways, and returns false,
 * if one time is unknown. */
static bool time_ways(const struct algo_tuner *tuner, bool pairs, uint64_t out[ALGO_WAYS])
{
    bool known = true;

    for (uint32_t i = 0; i < tuner->ways; i++) {
        double ns = quartile_trial(tuner, i, pairs);

        known = known && ns > 0;
        out[i] = 1 + (uint64_t)fmin(ns * 1024, TIME_MOST);
    }
    for (uint32_t i = 0; i < tuner->ways && !known; i++)
        out[i] = 1;
    return known;
}

static uint32_t time_signal(const struct algo_host *h, uint32_t i, uint32_t rank)
{
    return h->tuner.signal + h->tuner.way[i] * h->world.size + rank;
}

/* Sends this rank's times with the number of their cycle to the ranks of its node. */
static enum epa_status send_times(struct algo_host *h, const uint64_t mine[ALGO_WAYS])
{
    uint64_t cycle = (uint64_t)h->tuner.cycles << TIME_BITS;
    enum epa_status status = EPA_OK;

    for (uint32_t k = 1; k < h->world.size; k++) {
        uint32_t peer = algo_peer(h, k);

        for (uint32_t i = 0; i < h->tuner.ways && epa_same_node(&h->world, peer); i++) {
            uint32_t word = h->signal + time_signal(h, i, h->world.rank);
            struct algo_room room = {0, 0};

            h->last.peer = peer;
            do {
                status = h->t->ops->signal(h->t, word, cycle + mine[i], EPA_SIGNAL_SET, peer);
            } while (algo_again(h, &status, &room));
            if (status != EPA_OK)
                return status;
        }
    }
    return EPA_OK;
}

static enum epa_status add_times(struct algo_host *h)
{
    struct algo_tuner *tuner = &h->tuner;
    uint64_t cycle = (uint64_t)tuner->cycles << TIME_BITS, mine[ALGO_WAYS];
    enum epa_status status;

    if (!time_ways(tuner, true, mine))
        (void)time_ways(tuner, false, mine);
    for (uint32_t i = 0; i < tuner->ways; i++)
        tuner->sum[tuner->way[i]] += mine[i];
    status = send_times(h, mine);
    for (uint32_t k = 1; k < h->world.size; k++) {
        uint32_t peer = algo_peer(h, k);

        for (uint32_t i = 0; i < tuner->ways && epa_same_node(&h->world, peer); i++) {
            uint32_t signal = time_signal(h, i, peer);

            if (status == EPA_OK)
                status = algo_wait(h, signal, cycle + 1, "store times", ALGO_NONE, peer);
            if (status != EPA_OK)
                return status;
            tuner->sum[tuner->way[i]] += h->t->ops->read(h->t, h->signal + signal) - cycle;
        }
    }
    return status;
}

/* Ends a cycle. The faster way depends on the place of rows that other ranks have stored, so all
 * ranks use the same way in a trial. The ranks of a node take the way with the smallest sum of
 * their times: times of dispatch and combine, or of dispatches if no combines followed. One cycle
 * suffices to separate ways that differ much. For similar ways, a cycle errs in 2 to 6 of 100
 * cases, and their trials cost little. */
static enum epa_status end_cycle(struct algo_host *h, uint64_t epoch)
{
    struct algo_tuner *tuner = &h->tuner;
    uint32_t best = tuner->way[0], n = 0;
    enum epa_status status = add_times(h);

    if (status != EPA_OK)
        return status;
    for (uint32_t i = 1; i < tuner->ways; i++)
        best = tuner->sum[tuner->way[i]] < tuner->sum[best] ? tuner->way[i] : best;
    for (uint32_t i = 0; i < tuner->ways; i++)
        if ((double)tuner->sum[tuner->way[i]] <= NEAR * (double)tuner->sum[best])
            tuner->way[n++] = tuner->way[i];
    tuner->cycles++;
    tuner->ways = n > 1 && tuner->cycles < ALGO_CYCLES ? n : 0;
    tuner->first = epoch;
    memset(tuner->ns, 0, sizeof(tuner->ns));
    set_way(h, best);
    return EPA_OK;
}

enum epa_status algo_set_store(struct algo_host *h, uint64_t epoch)
{
    struct algo_tuner *tuner = &h->tuner;
    enum epa_status status;

    if (tuner->ways == 0 || epoch < tuner->first) /* a combine of the previous cycle */
        return EPA_OK;
    if (epoch - tuner->first >= 2 * tuner->ways * ALGO_TURN) {
        status = end_cycle(h, epoch);
        if (status != EPA_OK || tuner->ways == 0)
            return status;
    }
    set_way(h, tuner->way[trial_way(epoch - tuner->first, tuner->ways)]);
    return EPA_OK;
}

void algo_begin_work(struct algo_host *h)
{
    if (h->tuner.ways != 0)
        h->tuner.begin_ns = epa_now_ns();
}

void algo_end_work(struct algo_host *h, uint64_t epoch, enum algo_half half, uint32_t tokens)
{
    if (h->tuner.ways != 0 && tokens != 0 && epoch >= h->tuner.first)
        h->tuner.ns[half][epoch - h->tuner.first] +=
            (double)(epa_now_ns() - h->tuner.begin_ns) / tokens;
}
