/* Source locations of the values of an experiment, and of the values that a message is about. */
#ifndef CONFIG_ORIGIN_H
#define CONFIG_ORIGIN_H

#include "config/node.h"

struct experiment;

/* Returns the node that set `key` ("ranks", "moe.hidden"); NULL: the default applies. */
const struct node *origin_find(const struct experiment *, const char *key);

/* Returns the first key in a message, such as "moe.hidden", that a file has set; NULL: none. */
const struct node *origin_of(const struct experiment *, const char *sentence);

/* Returns the location of the error for a message that rejects the experiment: the first key in the
 * message that the user has set. The key may be an option of the algorithm without its section
 * ("capacity"), or a top-level key such as "ranks". Otherwise the algorithm's name, otherwise the
 * file. */
struct source_location origin_of_refusal(const struct experiment *, const char *sentence);

#endif
