/* Connections of all ranks to rank 0, for jobs of torchrun or of a script that sets RANK, WORLD_SIZE,
 * MASTER_ADDR and MASTER_PORT. Rank 0 gathers the data of all ranks and sends all data to each rank.
 *
 * All functions wait in the thread of the caller. One thread at a time calls star_gather() and
 * star_destroy(); any thread may call star_find_loss() and star_send_abort(). */
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
    size_t frame_bytes;  /* bytes of a rank in star_gather() */
    uint64_t timeout_ns; /* longest wait for another rank; UINT64_MAX: no limit */
};

/* Collective: connects the ranks. Rank 0 listens at the contact. */
enum epa_status star_create(const struct star_params *, struct star **out, struct epa_error *);
void star_destroy(struct star *); /* accepts NULL */

/* Collective: gathers frame_bytes of each rank; rank r at `all` + r * frame_bytes. `aborted`: ends the
 * wait once it is not 0; NULL: none. EPA_ERR_TIMEOUT, EPA_ERR_DIED: *err names the rank.
 * EPA_ERR_ABORTED: `aborted`, without message, or a failure that another rank has sent. */
enum epa_status star_gather(struct star *, const void *mine, void *all, const uint32_t *aborted,
                            struct epa_error *err);

/* Reads the connections without waiting. Returns true if a rank is lost or has sent a failure. */
bool star_find_loss(struct star *, struct epa_error *out);

/* Sends a failure to rank 0, or from rank 0 to all other ranks. */
void star_send_abort(struct star *, const struct epa_error *);

#endif
