/* Checks that the selected plugins fit together, by their descriptors and without side effects.
 * EPA_ERR_CONFIG with a message: they do not fit. */
#ifndef OPTIONS_REQUIREMENTS_H
#define OPTIONS_REQUIREMENTS_H

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>
#include <epa2a/transport.h>

/* Selected plugins. */
struct selection {
    const struct epa_algorithm_plugin *algorithm;
    const struct epa_backend_plugin *backend;
    const struct epa_transport_plugin *transport;
    const struct epa_transport_plugin *between; /* carries data to other nodes; NULL: none */
};

/* Returns the flags of the transport for plan() and create(): with a second transport to other
 * nodes, loads and stores do not reach all peers. */
uint32_t selection_flags(const struct selection *);

/* Checks the operation, the memory and the transport flags that the plugins need. */
enum epa_status selection_check_operation(const struct selection *, enum epa_op,
                                          struct epa_error *);
enum epa_status selection_check_memory(const struct selection *, struct epa_error *);
enum epa_status selection_check_flags(const struct selection *, struct epa_error *);

/* Returns false if ranks on several nodes cannot run the selection. device_nodes: on devices the
 * operation supports nodes, although the transport has no flag for them. */
bool selection_spans_nodes(const struct selection *, bool device_nodes);

/* Checks that the transport can carry data between nodes. */
enum epa_status selection_check_between(const struct epa_transport_plugin *between,
                                        struct epa_error *);

/* Check the plan of the algorithm: the number of workers of a rank on hosts, and for MoE the layout
 * of the received rows. */
enum epa_status selection_check_workers(const struct selection *, const void *backend_config,
                                        const struct epa_footprint *, struct epa_error *);
enum epa_status selection_check_layout(const struct selection *, enum epa_layout,
                                       const struct epa_footprint *, struct epa_error *);

#endif
