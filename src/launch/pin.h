/* Which core a rank's threads run on. */
#ifndef PIN_H
#define PIN_H

#include <epa2a/option.h>
#include <epa2a/status.h>

enum pin { PIN_CORE, PIN_NONE };

extern const struct epa_choice pin_choices[]; /* for the option `pin` of launchers */

/* The cores that this process may use, in the order in which ranks take them: one of each
 * physical core first, its SMT siblings last. */
struct pin_plan {
    int32_t *order; /* owned */
    uint32_t cores;
    enum pin pin;
    uint32_t ranks, threads; /* of a rank */
};

enum epa_status pin_plan_init(struct pin_plan *out, enum pin, uint32_t ranks, uint32_t threads,
                              struct epa_error *);
void pin_plan_finish(struct pin_plan *);

/* The cores of one rank, worker w on core[w % n]: `threads` of its own where there are
 * enough, else fewer; with more ranks than cores, one that it shares. Returns n; 0: none. */
uint32_t pin_plan_rank(const struct pin_plan *, uint32_t rank, const int32_t **core);

/* Binds the calling thread. False: the kernel would not, and it runs where it ran. */
bool pin_self(int32_t core);
bool pin_self_any(const int32_t *core, uint32_t n); /* to all of these */

#endif
