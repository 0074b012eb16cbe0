/* A page of host memory of each rank, that all of them map: its barriers, and who uses its
 * GPU memory. */
#ifndef EXCHANGE_PAGE_H
#define EXCHANGE_PAGE_H

#include <epa2a/world.h>

struct line {
    _Alignas(64) uint64_t word;
};

struct page {
    struct line arrived; /* barriers that the owner has come to; only it writes */
    struct line mapped;  /* ranks in other processes that have the owner's memory open */
    struct line users; /* ranks of the owner's process that use it; the last one frees it */
};

struct exchange_page {
    const struct epa_bootstrap *boot;
    uint32_t rank, size;
    int fd;             /* of the own page, until all have mapped it */
    uint64_t spin_ns;   /* how long a wait keeps the core to itself */
    uint64_t barriers;  /* begun by this rank */
    struct page **page; /* [size]; NULL: not yet there */
};

/* Where a barrier in vain ended: how many ranks had not come, and the first of them. */
struct late {
    uint32_t missing, first;
};

/* Makes the own page. On failure `out` is finished already. */
enum epa_status exchange_page_init(struct exchange_page *out, const struct epa_bootstrap *,
                           struct epa_error *);
/* Maps the page of rank `r`, whose descriptor the caller keeps. */
enum epa_status exchange_page_map(struct exchange_page *, uint32_t r, int fd, struct epa_error *);
/* Everything is mapped: nobody else can get at the own page. */
void exchange_page_close_fd(struct exchange_page *);
void exchange_page_finish(struct exchange_page *);

/* What a wait that has lasted `waited_ns` does before it looks again. */
void exchange_page_pause(const struct exchange_page *, uint64_t waited_ns);

/* Until all have come, or end_ns; `late` is filled on failure. */
enum epa_status exchange_page_barrier(struct exchange_page *, uint64_t end_ns, struct late *);

/* A share in what the owner of the page has: false where it is gone already. */
bool exchange_page_share(struct page *);
/* True for the last: who frees it. */
bool exchange_page_leave(struct page *);

#endif
