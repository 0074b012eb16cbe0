/* What plugins can do here, found out by opening them: ranks are processes of their own, so
 * that a library that crashes takes nobody with it, and memory it pins is given back. */
#ifndef PROBE_H
#define PROBE_H

#include <epa2a/algorithm.h>

#include "session/peak.h"

enum { PROBE_FACTS = 24 };

struct probe_facts {
    uint32_t n;
    struct probe_fact {
        char key[32], value[160];
    } fact[PROBE_FACTS];
};

struct probe {
    uint32_t ranks;
    struct peak peak;         /* of the links */
    struct probe_facts facts; /* what rank 0 says of itself */
};

/* Opens the backend on each rank. EPA_OK: it can be used. */
enum epa_status probe_backend(const struct epa_backend_plugin *, uint32_t ranks, struct probe *out,
                              struct epa_error *);

/* check(), then open() on each rank over the backend; asks what it is and measures its links,
 * where it has functions for that. All options are as a plugin has them. */
enum epa_status probe_transport(const struct epa_transport_plugin *,
                                const struct epa_backend_plugin *, uint32_t ranks,
                                struct probe *out, struct epa_error *);

#endif
