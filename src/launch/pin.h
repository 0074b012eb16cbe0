/* Cores of this host, which of them a rank's threads run on, and their caches. */
#ifndef PIN_H
#define PIN_H

#include <epa2a/option.h>
#include <epa2a/status.h>
#include <epa2a/world.h>
#include <stddef.h>
#include <stdint.h>

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

/* The cores that the calling thread may use, a bit each; returns how many bytes have one. */
size_t pin_mask(unsigned char *out, size_t room);

/* Binds the calling thread as the world says; world->cores is 0 where that fails. */
void pin_rank(struct epa_world *);

/* Binds the calling thread. False: the kernel would not, and it runs where it ran. */
bool pin_self(int32_t core);
bool pin_self_any(const int32_t *core, uint32_t n); /* to all of these */

/* Bytes of the largest L2 here; where nobody says, as much as those of most machines have. */
uint64_t cache_l2_bytes(void);

/* Bytes that a core writes to have its own caches hold nothing else: twice its L2, in lines. */
uint64_t cache_flush_bytes(void);

/* Which ranks share memory, and which share cores. */

/* Of this host, as texts: `machine` is alike where the kernel, and so the cores, are the
 * same; `identity` where memory can be shared, too. */
struct nodes_host {
    char name[72], machine[72], identity[288];
};
void nodes_host(struct nodes_host *out);

struct nodes_rank {
    const char *machine, *identity;
    const unsigned char *mask; /* cores that it may use, a bit each */
    size_t mask_bytes;
    /* Out: as in epa_world; and the ranks that may use the very same cores: which of how
     * many this one is. */
    uint32_t node, local_cores, share, shares;
};

/* per_node: ranks of one host that count as one node; 0: all. */
void nodes_find(struct nodes_rank *rank, uint32_t n, uint32_t per_node);

#endif
