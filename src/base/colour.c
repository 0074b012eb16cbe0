/* The mode is of the process, as the log level is: who prints a diagnosis would else be handed
 * it through all that can find one. Only the standard streams are ever coloured. */
#include "base/colour.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/terminal.h"

static enum colour_mode mode = COLOUR_AUTO; /* written once, before there are threads */

static bool is_coloured(FILE *file)
{
    const char *term = getenv("TERM"), *no = getenv("NO_COLOR");
    int fd = file == stdout ? STDOUT_FILENO : file == stderr ? STDERR_FILENO : -1;

    if (fd < 0 || mode == COLOUR_NEVER)
        return false;
    if (mode == COLOUR_ALWAYS)
        return true;
    return (no == NULL || no[0] == '\0') && term != NULL && term[0] != '\0' &&
           strcmp(term, "dumb") != 0 && isatty(fd);
}

/* A guarded stream, which has no descriptor, lets nothing else through. */
static const char *sequence_for(FILE *file, int number, const char *sequence)
{
    return fileno(file) < 0 ? terminal_mark(number, sequence) : sequence;
}

void colour_choose(enum colour_mode chosen)
{
    mode = chosen;
}

const char *colour_on(FILE *file, enum colour colour)
{
    static const char *const code[] = {
        [COLOUR_ERROR] = "\033[1;31m", [COLOUR_WARNING] = "\033[1;33m", [COLOUR_BAD] = "\033[31m",
        [COLOUR_GOOD] = "\033[32m",    [COLOUR_LOCATION] = "\033[36m",
    };

    return is_coloured(file) ? sequence_for(file, (int)colour, code[colour]) : "";
}

const char *colour_off(FILE *file)
{
    return is_coloured(file) ? sequence_for(file, TERMINAL_MARKS - 1, "\033[0m") : "";
}
