/* A plugin has no version beside that of its bytes, so they are what is told of it. */
#include "report/report_plugins.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>

enum { HASH = 17 };

static const char program = 0; /* something that is in the program */

/* The file that it was loaded from; NULL: it is built in. */
static const char *file_of(const struct epa_plugin *plugin)
{
    Dl_info of, own;

    if (dladdr(plugin, &of) == 0 || of.dli_fname == NULL ||
        (dladdr(&program, &own) != 0 && own.dli_fbase == of.dli_fbase))
        return NULL;
    return of.dli_fname;
}

/* FNV-1a; false: it cannot be read any more. */
static bool hash_file(const char *path, char out[HASH])
{
    uint64_t hash = UINT64_C(14695981039346656037);
    unsigned char piece[4096];
    FILE *file = fopen(path, "re");
    bool good;
    size_t n;

    if (file == NULL)
        return false;
    while ((n = fread(piece, 1, sizeof(piece), file)) > 0) {
        for (size_t i = 0; i < n; i++)
            hash = (hash ^ piece[i]) * UINT64_C(1099511628211);
    }
    good = ferror(file) == 0;
    fclose(file);
    snprintf(out, HASH, "%016" PRIx64, hash);
    return good;
}

static json_t *plugin_json(const struct epa_plugin *plugin)
{
    const char *file = file_of(plugin);
    char hash[HASH];
    bool hashed = file != NULL && hash_file(file, hash);
    json_t *path = file == NULL ? json_null() : json_string(file);

    if (path == NULL) /* it is no UTF-8 */
        path = json_string("?");
    return json_pack("{ss so so}", "name", plugin->name, "file", path, "hash",
                     hashed ? json_string(hash) : json_null());
}

json_t *report_plugins(const struct experiment *x)
{
    return json_pack("{so so so so}", "launcher", plugin_json(x->launcher.plugin), "backend",
                     plugin_json(x->backend.plugin), "transport", plugin_json(x->transport.plugin),
                     "algorithm", plugin_json(x->algorithm.plugin));
}
