/* Alternation of two benches: processes of one host share a struct alternation; each side runs a
 * block of iterations while all ranks of the other side sleep. */
#ifndef ALTERNATION_H
#define ALTERNATION_H

#include <stdbool.h>
#include <stdint.h>

struct alternation {
    uint32_t turn;               /* a futex: number of the present turn, from 1; 0: not started */
    uint32_t here, left;         /* bit mask of sides: set-up is complete; the side has left */
    uint32_t block, first;       /* iterations per turn; side of the first turn */
    uint64_t start_ns, limit_ns; /* no pair of turns begins later than this; 0: no limit */
    uint64_t spent_ns;           /* time from the first turn to the end */
    bool over;
};

/* Returns NULL without memory. */
struct alternation *alternation_create(void);
void alternation_destroy(struct alternation *);
/* Resets the alternation before the processes of both sides start. */
void alternation_begin(struct alternation *, uint32_t block, uint32_t first, uint64_t limit_ns);

bool alternation_is_here(struct alternation *, uint32_t side);

/* Ends the turn of a side. One rank of the side calls it after all its ranks have ended a block, and
 * once before the first block. */
void alternation_pass(struct alternation *, uint32_t side);
/* Sleeps until the side's next turn, for 100 ms at most. All ranks of a side call it after
 * alternation_pass(). *turn is 0 before the first turn, then the number of the last turn. Returns true
 * if the turn belongs to this side or the alternation is over. */
bool alternation_wait(struct alternation *, uint32_t side, uint32_t *turn);
bool alternation_is_over(const struct alternation *);
/* Ends the alternation for both sides. Any process may call it, also on behalf of a dead side. */
void alternation_leave(struct alternation *, uint32_t side);

#endif
