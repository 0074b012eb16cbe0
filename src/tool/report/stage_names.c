/* Names of the stages of a document: results of --json, or a trace. */
#include "report/stage_names.h"

#include <string.h>

#include "base/json.h"

void stage_names_each(const char *path, void (*fn)(void *arg, const char *name), void *arg)
{
    json_auto_t *root = json_load_file(path, 0, NULL), *names = json_object();

    for (struct json_walk run = {json_object_get(root, "results")}; json_next(&run);)
        for (struct json_walk it = {json_object_get(run.value, "stages")}; json_next(&it);)
            json_object_set_new(names, json_text_at(it.value, "name"), json_true());
    for (struct json_walk it = {json_object_get(root, "traceEvents")}; json_next(&it);)
        if (strcmp(json_text_at(it.value, "cat"), "stage") == 0)
            json_object_set_new(names, json_text_at(it.value, "name"), json_true());
    for (struct json_walk it = {names}; json_next(&it);)
        fn(arg, it.key);
}
