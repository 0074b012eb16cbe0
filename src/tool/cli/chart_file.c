/* The ending of a chart's file selects its form. "-" is text on standard output. */
#include "cli/chart_file.h"

#include <string.h>
#include <strings.h>

enum epa_status chart_file_check(const char *path, struct epa_error *err)
{
    static const char *const endings[] = {".svg", ".png", ".pdf", ".txt"};
    const char *slash = strrchr(path, '/'), *dot = strrchr(path, '.');

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        if (dot != NULL && dot > slash && strcasecmp(dot, endings[i]) == 0)
            return EPA_OK;
    if (strcmp(path, "-") == 0)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_CONFIG,
                    "--out %s: a chart ends in .svg, .png, .pdf or .txt, or is - for standard "
                    "output",
                    path);
}
