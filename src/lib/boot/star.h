/* Connections of all ranks to rank 0. Rank 0 gathers the data of all ranks and sends all data to each
 * rank. A failure travels from its rank to rank 0 and from there to all other ranks.
 *
 * All functions wait in the thread of the caller. One thread at a time calls star_gather() and
 * star_destroy(). Beside it, one thread may call star_watch(), and any thread star_end_watch() and
 * star_send_abort(). */
#ifndef STAR_H
#define STAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

#include "boot/contact.h"

struct star;

struct star_params {
    uint32_t rank, ranks;
    const struct contact *contact;
    int listener;        /* rank 0: socket that listens at the contact */
    size_t frame_bytes;  /* bytes of a rank in star_gather() */
    uint64_t connect_ns; /* longest wait for the connections; UINT64_MAX: no limit */
    uint64_t timeout_ns; /* longest wait for another rank in star_gather(); the same */
};

/* Collective: connects the ranks. The caller closes the listener afterwards. */
enum epa_status star_create(const struct star_params *, struct star **out, struct epa_error *);
void star_destroy(struct star *); /* accepts NULL */

/* Collective: gathers frame_bytes of each rank; rank r at `all` + r * frame_bytes. `aborted`: ends the
 * wait once it is not 0; NULL: none. EPA_ERR_TIMEOUT, EPA_ERR_DIED: *err names the rank.
 * EPA_ERR_ABORTED: `aborted`, without message, or a failure that another rank has sent. */
enum epa_status star_gather(struct star *, const void *mine, void *all, const uint32_t *aborted,
                            struct epa_error *err);

/* Sleeps until a rank is lost or has sent a failure. Returns false after star_end_watch(). */
bool star_watch(struct star *, struct epa_error *out);
void star_end_watch(struct star *);

/* Sends a failure to rank 0, or from rank 0 to all other ranks. `aborted` of star_gather() is set. */
void star_send_abort(struct star *, const struct epa_error *);

#endif
