/* Expectations: bounds of the figures of a result. */
#ifndef CONFIG_EXPECT_H
#define CONFIG_EXPECT_H

#include <stdbool.h>
#include <stdint.h>

#include "config/experiment.h"

struct arena;
struct diag;
struct node;

/* Returns a bound in its unit; NaN: not set. */
double expect_bound(const struct epa_option *figure, const struct expect_bounds *);

/* Returns the bounds of the i-th row; the last row of a result comes first, with the name ""; NULL:
 * no further rows. */
const struct expect_bounds *expect_row_at(const struct expect_options *, uint32_t i,
                                          const char **name);

/* Writes "dispatch: {p99: 80us}" as "dispatch.p99: 80us", a bound of the row dispatch; the second
 * function writes all bounds of such a map to `out`. */
struct node *expect_flatten(struct arena *, const struct node *map);
void expect_read(const struct node *map, struct arena *, struct diag *, struct expect_options *out);

/* Returns true if the experiment sets an expectation; for verify only `wrong` counts. */
bool expect_is_set(const struct expect_options *);
bool expect_wrong_is_set(const struct expect_options *);

#endif
