/* A page of host memory of each rank, that all of them map: its barriers, and who uses its
 * GPU memory. */
#ifndef EXCHANGE_PAGE_H
#define EXCHANGE_PAGE_H

#include "../../common/transport_wait.h"

struct line {
    _Alignas(64) uint64_t word;
};

struct page {
    struct line arrived; /* barriers that the owner has come to; only it writes */
    struct line mapped;  /* ranks in other processes that have the owner's memory open */
    struct line users;   /* ranks of the owner's process that use it; the last one frees it */
};

struct exchange_page {
    struct epa_wait_config wait;
    uint32_t rank, size;
    int fd;             /* of the own page, until all have mapped it */
    uint64_t barriers;  /* begun by this rank */
    struct page **page; /* [size]; NULL: not yet there */
};

/* Makes the own page. On failure `out` is finished already. */
enum epa_status exchange_page_init(struct exchange_page *out, const struct epa_bootstrap *,
                                   struct epa_error *);
/* Maps the page of rank `r`, whose descriptor the caller keeps. */
enum epa_status exchange_page_map(struct exchange_page *, uint32_t r, int fd, struct epa_error *);
/* Everything is mapped: nobody else can get at the own page. */
void exchange_page_close_fd(struct exchange_page *);
void exchange_page_finish(struct exchange_page *);

/* Until all have arrived. */
enum epa_status exchange_page_barrier(struct exchange_page *, uint64_t timeout_ns,
                                      struct failure *);

/* A share in what the owner of the page has: false where it is gone already. */
bool exchange_page_share(struct page *);
/* True for the last: who frees it. */
bool exchange_page_leave(struct page *);

#endif
