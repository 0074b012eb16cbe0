/* Alternation of two benches. Blocks of iterations alternate A B, B A, B A, A B, and so on by the
 * Thue-Morse sequence (or B A, A B, ...), so that drift and the state that a block leaves behind affect
 * both sides equally often. All ranks of a side sleep during the turn of the other side: on a busy
 * machine all ranks of a side then obtain the cores at the same time, and load that changes from second
 * to second affects both sides equally. */
#include "session/alternation.h"

#include <linux/futex.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>

enum { ALL = INT32_MAX, BOTH = 3, LOOK_MS = 100 };

struct alternation *alternation_create(void)
{
    struct alternation *a =
        mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    return a == MAP_FAILED ? NULL : a;
}

void alternation_destroy(struct alternation *a)
{
    if (a != NULL)
        munmap(a, sizeof(*a));
}

void alternation_begin(struct alternation *a, uint32_t block, uint32_t first, uint64_t limit_ns)
{
    *a = (struct alternation){.block = block, .first = first, .limit_ns = limit_ns};
}

/* Returns the side of a turn, counted from 0. Turns 2 k and 2 k + 1 are a pair. */
static uint32_t side_of(const struct alternation *a, uint32_t turn)
{
    return (turn + a->first + (uint32_t)__builtin_parity(turn / 2)) % 2;
}

static void wake_ranks(struct alternation *a)
{
    syscall(SYS_futex, &a->turn, FUTEX_WAKE, ALL, NULL, NULL, 0);
}

bool alternation_is_here(struct alternation *a, uint32_t side)
{
    return (__atomic_load_n(&a->here, __ATOMIC_ACQUIRE) >> side & 1) != 0;
}

void alternation_leave(struct alternation *a, uint32_t side)
{
    if (!__atomic_exchange_n(&a->over, true, __ATOMIC_RELAXED) && a->start_ns != 0)
        a->spent_ns = epa_now_ns() - a->start_ns;
    __atomic_fetch_or(&a->left, 1u << side, __ATOMIC_RELEASE);
    wake_ranks(a);
}

void alternation_pass(struct alternation *a, uint32_t side)
{
    uint32_t turn = a->turn;

    if (!alternation_is_here(a, side)) { /* set-up is complete; the second side starts the clock */
        if ((__atomic_or_fetch(&a->here, 1u << side, __ATOMIC_ACQ_REL) & BOTH) != BOTH)
            return;
        a->start_ns = epa_now_ns();
    } else if (turn % 2 == 0 && a->limit_ns != 0 && epa_now_ns() - a->start_ns >= a->limit_ns) {
        a->spent_ns = epa_now_ns() - a->start_ns;
        __atomic_store_n(&a->over, true, __ATOMIC_RELAXED);
    }
    /* Release: pairs with the acquire in alternation_wait() of the other side. */
    __atomic_store_n(&a->turn, turn + 1, __ATOMIC_RELEASE);
    wake_ranks(a);
}

/* Returns true if the turn belongs to `side` or the other side has left. Turn 0 belongs to no side: a
 * side has not completed set-up. */
static bool is_turn_of(struct alternation *a, uint32_t side, uint32_t turn)
{
    return (__atomic_load_n(&a->left, __ATOMIC_ACQUIRE) & ~(1u << side)) != 0 ||
           (turn > 0 && side_of(a, turn - 1) == side);
}

bool alternation_wait(struct alternation *a, uint32_t side, uint32_t *turn)
{
    const struct timespec look = {.tv_nsec = LOOK_MS * 1000000L};
    uint32_t now = __atomic_load_n(&a->turn, __ATOMIC_ACQUIRE);

    if (now == *turn || !is_turn_of(a, side, now)) {
        syscall(SYS_futex, &a->turn, FUTEX_WAIT, now, &look, NULL, 0);
        now = __atomic_load_n(&a->turn, __ATOMIC_ACQUIRE);
    }
    if ((now == *turn && !alternation_is_over(a)) || !is_turn_of(a, side, now))
        return false;
    *turn = now;
    return true;
}

bool alternation_is_over(const struct alternation *a)
{
    return __atomic_load_n(&a->over, __ATOMIC_RELAXED);
}
