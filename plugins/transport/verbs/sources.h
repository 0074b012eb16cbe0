/* Registrations of sources of puts outside the heap. */
#ifndef VERBS_SOURCES_H
#define VERBS_SOURCES_H

#include "state.h"

enum epa_status sources_init(struct sources *out, const struct device *, const struct dmabuf *,
                             struct queues *, struct epa_error *);
/* Called after all queue pairs are destroyed; accepts zeroed memory. */
void sources_finish(struct sources *);

/* Finds or makes the registration for a put of `bytes` from `at` to `peer`. The caller passes *entry
 * (or NULL) to sources_note(). EPA_AGAIN: puts from all entries are in flight. */
enum epa_status sources_find(struct sources *, const void *at, uint64_t bytes, uint32_t peer,
                             struct queue_source *out, struct source **entry, struct epa_error *);
/* Records that the put is built. */
void sources_note(struct sources *, struct source *, uint32_t peer);

#endif
