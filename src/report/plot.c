/* The caption that all charts have, and what belongs to none of the others. */
#include "report/plot.h"

#include "base/arena.h"

static const char *const names[] = {[PLOT_AUTO] = "auto",
                                    [PLOT_TOKENS] = "tokens",
                                    [PLOT_DISTRIBUTION] = "distribution",
                                    [PLOT_SKEW] = "skew",
                                    [PLOT_STAGES] = "stages"};

const char *plot_kind_name(enum plot_kind kind)
{
    return kind < PLOT_KINDS ? names[kind] : NULL;
}

void plot_free(struct plot *plot)
{
    arena_destroy(plot->arena);
    *plot = (struct plot){0};
}
