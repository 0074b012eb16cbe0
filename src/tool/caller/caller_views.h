/* Views of a dispatch that epa2a.h returns in another form: the origin of each row and, in the RANK
 * layouts, the weight and the choice of each entry. */
#ifndef CALLER_VIEWS_H
#define CALLER_VIEWS_H

#include "caller/caller_state.h"

struct caller_views;

struct caller_views_params {
    struct epa_backend *backend;
    uint32_t slots, local, ranks, topk; /* local: experts of this rank */
    uint64_t rows, entries;             /* maximum of a dispatch */
    bool by_rank;
};

enum epa_status caller_views_create(const struct caller_views_params *, struct caller_views **out,
                                    struct epa_error *);
void caller_views_destroy(struct caller_views *); /* accepts NULL, and a partial object */

/* Returns true if the views of a slot belong to the inputs of this iteration. The order of rows
 * depends on the choices only, so the views fit each further dispatch of these inputs. */
bool caller_views_known(const struct caller_views *, uint32_t slot, uint64_t iteration);

/* Makes the views of a dispatch unless they are known, and sets the pointers in `out`. On a device
 * the dispatch has ended, and `got` has source_token and source_range unless the views are known. */
enum epa_status caller_views_complete(struct caller_views *, uint32_t slot, uint64_t iteration,
                                      const struct epa2a_received *got, struct epa_moe *out,
                                      struct epa_error *);

#endif
