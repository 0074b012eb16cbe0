/* Clusters of two blocks. Each block runs in its own OS thread. An access to the shared memory of
 * the other block is a message to it. The other block takes messages after a round of turns, some
 * of them later at random, since a GPU promises no order between them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "epa2a/wait.h"

/* PATIENCE_S: time after which the other block counts as stuck */
enum { NOTES = 1024, PATIENCE_S = 60 };

enum note_kind { NOTE_ARRIVE, NOTE_STORE, NOTE_LOAD };

/* Offsets are offsets in shared memory. */
struct note {
    enum note_kind kind;
    uint32_t bar, to;
    uint64_t value;
    const CUtensorMap *map; /* argument of the kernel, which outlives the message */
    int32_t x, y;
};

struct simt_cluster {
    pthread_mutex_t lock;
    struct end {
        struct note note[NOTES];
        uint32_t notes, meetings; /* meetings: cluster barriers that this block has entered */
        bool ended;
    } end[2];
};

struct simt_cluster *simt_clusters_create(uint64_t n)
{
    struct simt_cluster *c = calloc(n, sizeof(*c));

    for (uint64_t i = 0; c != NULL && i < n; i++)
        pthread_mutex_init(&c[i].lock, NULL);
    return c;
}

struct simt_cluster *simt_cluster_at(struct simt_cluster *all, uint64_t block)
{
    return all == NULL ? NULL : &all[block / 2];
}

static struct worker *worker_in_cluster(void)
{
    struct worker *w = simt_place()->worker;

    if (w->cluster == NULL)
        simt_die(w, "thread %u: the kernel was not launched in clusters", w->now->number);
    return w;
}

uint32_t simt_cluster_rank(void)
{
    struct worker *w = simt_place()->worker;

    return w->cluster == NULL ? 0 : w->place_in_cluster;
}

/* ---- messages ---- */

static void send_note(struct worker *w, uint32_t rank, const struct note *note)
{
    struct end *to = &w->cluster->end[rank % 2];

    if (rank > 1)
        simt_die(w, "thread %u: there is no block %u in its cluster", w->now->number, rank);
    if (w->cluster->end[w->place_in_cluster].meetings == 0)
        simt_die(w, "thread %u reaches into block %u of its cluster, which may not run yet",
                 w->now->number, rank);
    pthread_mutex_lock(&w->cluster->lock);
    if (to->ended || to->notes == NOTES)
        simt_die(w, "thread %u reaches into block %u of its cluster, which %s", w->now->number,
                 rank, to->ended ? "has ended" : "has no room for more that comes");
    to->note[to->notes++] = *note;
    pthread_mutex_unlock(&w->cluster->lock);
}

static void apply_note(struct worker *w, const struct note *n)
{
    uint64_t *bar = (uint64_t *)(void *)(w->shared + n->bar);

    switch (n->kind) {
    case NOTE_ARRIVE:
        (void)simt_mbar_change(w, bar, 1, 0);
        break;
    case NOTE_STORE:
        memcpy(w->shared + n->to, &n->value, sizeof(n->value));
        (void)simt_mbar_change(w, bar, 0, -(int64_t)sizeof(n->value));
        break;
    case NOTE_LOAD:
        simt_tile_issue(w, w->shared + n->to, n->map, n->x, n->y, bar);
        break;
    }
}

/* Takes all messages, or a random part of them. */
static bool take_notes(struct worker *w, bool all)
{
    struct end *own = &w->cluster->end[w->place_in_cluster];
    struct note now[NOTES];
    uint32_t n = 0, left = 0;

    pthread_mutex_lock(&w->cluster->lock);
    for (uint32_t i = 0; i < own->notes; i++)
        if (all || simt_random(w, 4) != 0)
            now[n++] = own->note[i];
        else
            own->note[left++] = own->note[i];
    own->notes = left;
    pthread_mutex_unlock(&w->cluster->lock);
    for (uint32_t i = 0; i < n; i++)
        apply_note(w, &now[i]);
    return n > 0;
}

void simt_cluster_round(struct worker *w)
{
    if (w->cluster != NULL)
        (void)take_notes(w, false);
}

bool simt_cluster_next(struct worker *w, uint64_t since)
{
    struct end *other;
    bool waits;

    if (w->cluster == NULL)
        return false;
    if (take_notes(w, true))
        return true;
    other = &w->cluster->end[1 - w->place_in_cluster];
    pthread_mutex_lock(&w->cluster->lock);
    waits = !other->ended && (since == 0 || epa_now_ns() - since < PATIENCE_S * 1000000000ull);
    pthread_mutex_unlock(&w->cluster->lock);
    w->looked = w->looked || waits;
    return false;
}

/* ---- blocks ---- */

void simt_cluster_begin(struct worker *w, struct simt_cluster *cluster, uint64_t block)
{
    w->cluster = cluster;
    w->place_in_cluster = block % 2;
}

void simt_cluster_end(struct worker *w)
{
    if (w->cluster == NULL)
        return;
    (void)take_notes(w, true);
    pthread_mutex_lock(&w->cluster->lock);
    w->cluster->end[w->place_in_cluster].ended = true;
    pthread_mutex_unlock(&w->cluster->lock);
    w->cluster = NULL;
}

static bool has_met(struct worker *w)
{
    struct end *own = &w->cluster->end[w->place_in_cluster];
    bool met;

    pthread_mutex_lock(&w->cluster->lock);
    met = w->cluster->end[1 - w->place_in_cluster].meetings >= own->meetings;
    pthread_mutex_unlock(&w->cluster->lock);
    return met;
}

void simt_cluster_sync(void)
{
    struct worker *w = worker_in_cluster();

    (void)simt_block(SIMT_SYNCTHREADS, 0);
    if (w->now->number == 0) {
        pthread_mutex_lock(&w->cluster->lock);
        w->cluster->end[w->place_in_cluster].meetings++;
        pthread_mutex_unlock(&w->cluster->lock);
    }
    (void)simt_block(SIMT_SYNCTHREADS, 0);
    while (!has_met(w))
        simt_polled();
}

/* ---- accesses of kernels to the other block ---- */

static uint32_t offset_in(const void *at)
{
    return simt_shared_address(at) - SIMT_SHARED_BASE;
}

void simt_cluster_arrive(uint64_t *bar, uint32_t rank)
{
    struct worker *w = worker_in_cluster();
    struct note note = {.kind = NOTE_ARRIVE, .bar = offset_in(bar)};

    if (rank == w->place_in_cluster)
        simt_mbar_arrive(bar, 0);
    else
        send_note(w, rank, &note);
}

void simt_cluster_store(uint64_t *to, uint64_t value, uint64_t *bar, uint32_t rank)
{
    struct worker *w = worker_in_cluster();
    struct note note = {
        .kind = NOTE_STORE, .bar = offset_in(bar), .to = offset_in(to), .value = value};

    if (rank == w->place_in_cluster)
        apply_note(w, &note);
    else
        send_note(w, rank, &note);
}

void simt_tile_multicast(void *to, const CUtensorMap *map, int32_t x, int32_t y, uint64_t *bar,
                         uint32_t blocks)
{
    struct worker *w = worker_in_cluster();
    struct note note = {
        .kind = NOTE_LOAD, .bar = offset_in(bar), .to = offset_in(to), .map = map, .x = x, .y = y};

    if (blocks == 0 || blocks > 3)
        simt_die(w, "thread %u loads for blocks %#x of its cluster of 2", w->now->number, blocks);
    for (uint32_t i = 0; i < 2; i++)
        if ((blocks >> i & 1) != 0) {
            if (i == w->place_in_cluster)
                apply_note(w, &note);
            else
                send_note(w, i, &note);
        }
}
