/* Marks and graphs of the CUDA backend. */
#ifndef CUDA_GRAPH_H
#define CUDA_GRAPH_H

#include "state.h"

enum epa_status cuda_mark(struct epa_backend *, uint32_t i);
enum epa_status cuda_elapsed(struct epa_backend *, uint32_t i, uint32_t j, double *ns);
enum epa_status cuda_capture_begin(struct epa_backend *);
enum epa_status cuda_capture_end(struct epa_backend *, struct epa_graph **out);
enum epa_status cuda_graph_launch(struct epa_backend *, struct epa_graph *);

void cuda_graph_destroy(struct epa_backend *, struct epa_graph *);

#endif
