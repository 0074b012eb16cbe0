/* Published waits of a rank. Several threads of a rank can wait at a time: each overwrites the note of
 * another thread; a thread that finds a write in progress skips its own note. */
#include "session/rank_waits.h"

#include <stddef.h>
#include <stdio.h>

#include <epa2a/wait.h>

enum { WORDS = sizeof(struct session_wait) / sizeof(uint64_t) };

_Static_assert(sizeof(struct session_wait) % sizeof(uint64_t) == 0, "copied by words");

/* Copies all words but the first one, `turn`. */
static void write_note(struct session_wait *to, const struct session_wait *note)
{
    const uint64_t *word = (const uint64_t *)(const void *)note;
    uint64_t *out = (uint64_t *)(void *)to;
    uint64_t turn = __atomic_load_n(&to->turn, __ATOMIC_RELAXED);

    /* Acquire: no word is written before this thread owns the note (odd `turn`). */
    if (turn % 2 != 0 || !__atomic_compare_exchange_n(&to->turn, &turn, turn + 1, false,
                                                      __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    /* Release, each: pairs with read_rank(). No word is visible before `turn` is odd. */
    for (uint32_t i = 1; i < WORDS; i++)
        __atomic_store_n(&out[i], word[i], __ATOMIC_RELEASE);
    __atomic_store_n(&to->turn, turn + 2, __ATOMIC_RELEASE);
}

static void note_wait(struct epa_wait_observer *observer, const struct epa_wait_state *w)
{
    struct rank *r = (struct rank *)(void *)((char *)observer - offsetof(struct rank, observer));
    struct session_wait note = {.kind = EPA_WAIT_NOTHING};
    struct epa_wait_state full;

    if (w != NULL) {
        full = *w;
        if (w->kind == EPA_WAIT_SIGNAL && r->ep.algorithm != NULL &&
            r->ep.algorithm->wait_describe != NULL)
            r->ep.algorithm->wait_describe(r->ep.algorithm, &full);
        note.kind = full.kind;
        note.peer = full.peer;
        note.number = full.number;
        note.seen = full.seen;
        note.wanted = full.wanted;
        note.stage = __atomic_load_n(&r->shared->stage, __ATOMIC_RELAXED);
        note.iteration = __atomic_load_n(&r->shared->iteration, __ATOMIC_RELAXED);
        note.since_ns = epa_now_ns() - full.waited_ns;
        if (full.what != NULL)
            snprintf(note.what, sizeof(note.what), "%s", full.what);
    }
    write_note(&r->shared->waiting, &note);
}

void rank_waits_begin(struct rank *r)
{
    r->observer.waits = note_wait;
    r->comm.boot->observer = &r->observer;
}

void rank_waits_end(struct rank *r)
{
    r->comm.boot->observer = NULL;
}
