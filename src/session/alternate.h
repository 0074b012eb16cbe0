/* Two benches of one host, whose processes share a struct alternation: each takes a block of
 * iterations while all ranks of the other sleep. */
#ifndef ALTERNATE_H
#define ALTERNATE_H

#include <stdbool.h>
#include <stdint.h>

struct alternation {
    uint32_t turn;               /* a futex; from 1, once both are here */
    uint32_t here, left;         /* a bit for each side: it is set up; it takes no more part */
    uint32_t block;              /* iterations of a turn */
    uint64_t start_ns, limit_ns; /* after so long no pair of turns begins; 0: no limit */
    uint64_t spent_ns;           /* from the first turn to the end */
    bool over;
};

/* NULL: no memory. */
struct alternation *alternation_create(void);
void alternation_destroy(struct alternation *);
/* Before the processes of both are started. */
void alternation_begin(struct alternation *, uint32_t block, uint64_t limit_ns);

bool alternation_is_here(struct alternation *, uint32_t side);

/* By one rank of a side, once all of them have ended a block, and before the first. */
void alternation_pass(struct alternation *, uint32_t side);
/* By all ranks of a side, after that: sleeps until it is their turn, 100 ms at most. *turn is 0
 * before the first turn, then its number. True: it is their turn, or the alternation is over. */
bool alternation_wait(struct alternation *, uint32_t side, uint32_t *turn);
bool alternation_is_over(const struct alternation *);
/* It ends for both. By anyone, also for a side that has died. */
void alternation_leave(struct alternation *, uint32_t side);

#endif
