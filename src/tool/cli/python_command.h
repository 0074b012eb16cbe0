/* Commands of the Python package. */
#ifndef PYTHON_COMMAND_H
#define PYTHON_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

#include "base/text.h"
#include "cli/cli.h"

/* Words of a command line for Python: {0} is empty. */
struct python_words {
    char **word;
    uint32_t n;
};

void python_add(struct python_words *, const char *word);
/* Adds --color, and --force if it is given. */
void python_add_common(struct python_words *, const struct cli *);
/* Adds OPTION=VALUE; nothing for NULL. */
void python_add_value(struct python_words *, const char *option, const char *value);
/* Adds OPTION=NUMBER; nothing for 0. */
void python_add_number(struct python_words *, const char *option, uint32_t number);

/* Replaces the process by `python3 -m epa2a WORDS` with the package beside this program. Python keeps the
 * streams and sets the exit code. Frees the words, and returns only after a failure: EPA_ERR_UNSUPPORTED
 * with the cause and the remedy. */
enum epa_status python_run(struct python_words *, struct epa_error *);

/* Runs such a command as a child with this standard input, and stores its standard output. Frees the words.
 * After a failure of the command, the error has its last message. */
enum epa_status python_call(struct python_words *, const struct text *input, struct text *out,
                            struct epa_error *);

#endif
