/* The variants of a run for verify --thorough. */
#ifndef EXPERIMENT_VARIANTS_H
#define EXPERIMENT_VARIANTS_H

#include "config/experiment.h"

struct arena;

enum { VARIANT_KEYS = 10 };

struct variant {
    const char *name;              /* NULL ends the list */
    uint32_t ops;                  /* operations of the variant, bits 1 << enum epa_op; 0: all */
    const char *set[VARIANT_KEYS]; /* "key=value", applied to the run; NULL ends the list */
    /* Adds keys that depend on the run; returns false if the variant does not fit the run. NULL: no
     * such keys. */
    bool (*fit)(struct arena *, const struct experiment *, const char *set[VARIANT_KEYS]);
};
extern const struct variant thorough_variants[];

/* Returns the variant for a run; false if it does not fit the run. */
bool variant_fit(const struct variant *, struct arena *, const struct experiment *,
                 struct variant *out);

#endif
