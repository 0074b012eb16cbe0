/* Runs gnuplot without the settings of the user. */
#include "cli/gnuplot.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/memory.h"
#include "cli/child_output.h"

enum { GNUPLOT_S = 60 };

/* Variables that change the charts of gnuplot, or the files that it reads: GNUTERM=x11 fails where
 * that terminal is missing. The script sets all it needs. */
static bool changes_gnuplot(const char *variable)
{
    static const char *const prefix[] = {
        "GNUTERM=", "GNUPLOT_", "GNUHELP=", "GDFONTPATH=", "FIT_", "LC_", "LANG=", "LANGUAGE="};

    for (size_t i = 0; i < sizeof(prefix) / sizeof(prefix[0]); i++)
        if (strncmp(variable, prefix[i], strlen(prefix[i])) == 0)
            return true;
    return false;
}

/* Makes the environment of gnuplot. The caller frees the list; the strings belong to this process. */
static char **make_environment(void)
{
    extern char **environ;
    static char locale[] = "LC_ALL=C.UTF-8";
    char **out;
    size_t n = 0, kept = 0;

    while (environ != NULL && environ[n] != NULL)
        n++;
    out = memory_alloc(n + 2, sizeof(*out));
    for (size_t i = 0; i < n; i++)
        if (!changes_gnuplot(environ[i]))
            out[kept++] = environ[i];
    out[kept++] = locale;
    out[kept] = NULL;
    return out;
}

enum epa_status cli_draw(const struct text *script, struct text *out, struct epa_error *err)
{
    char *word[] = {(char[]){"gnuplot"}, (char[]){"-d"}, NULL}; /* -d: no settings files */
    struct child child = {word, make_environment(), GNUPLOT_S * UINT64_C(1000000000)};
    text_auto why = {0};
    enum epa_status status = EPA_ERR_SYSTEM;
    int code = 0, failed = child_run(&child, script, out, &why, &code);

    free(child.variables);
    if (failed == ENOENT)
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "charts need gnuplot, which is not on PATH: install it (Debian: apt "
                          "install gnuplot-nox)");
    else if (failed == ETIMEDOUT)
        epa_fail(err, status, "gnuplot was killed after %d s, or after a signal to epa2a",
                 GNUPLOT_S);
    else if (failed != 0)
        epa_fail_errno(err, status, failed, "gnuplot: %s", strerror(failed));
    else if (WIFSIGNALED(code))
        epa_fail(err, status, "gnuplot was ended by signal %d", WTERMSIG(code));
    else if (WEXITSTATUS(code) != 0)
        epa_fail(err, status, "gnuplot failed with exit code %d:%.400s", WEXITSTATUS(code),
                 why.data != NULL ? text_clean(why.data) : "");
    else if (out->bytes == 0)
        epa_fail(err, status, "gnuplot printed no chart");
    else
        status = EPA_OK;
    return status;
}
