/* Version of the library, and the plugins that it finds. */
#include <epa2a.h>

#include <pthread.h>
#include <stdlib.h>

#include "base/text.h"
#include "registry/registry.h"

uint32_t epa2a_version(void)
{
    return EPA2A_VERSION;
}

/* Adds the names of all plugins of a kind that can be loaded: "; transports shm ucx". */
static bool add_kind(struct text *text, const struct registry_entry *entry, uint32_t n,
                     enum epa_plugin_kind kind)
{
    bool added = true, first = true;

    for (uint32_t i = 0; added && i < n; i++) {
        if (entry[i].kind != kind || entry[i].plugin == NULL)
            continue;
        if (first)
            added = text_try_add(text, "%s %ss", text->data[text->bytes - 1] == ':' ? "" : ";",
                                 plugin_kind_name(kind));
        first = false;
        added = added && text_try_add(text, " %s", entry[i].name);
    }
    return added;
}

/* Describes the plugins that the library can use. Launchers belong to the program. */
static bool describe_plugins(struct text *text, struct registry *registry)
{
    static const enum epa_plugin_kind kinds[] = {EPA_PLUGIN_BACKEND, EPA_PLUGIN_TRANSPORT,
                                                 EPA_PLUGIN_ALGORITHM};
    const struct registry_entry *entry;
    uint32_t n = registry_list(registry, &entry);
    const char *empty = registry_empty(registry);
    bool added = text_try_add(text, "%s:", EPA2A_RELEASE);

    for (uint32_t i = 0; added && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        added = add_kind(text, entry, n, kinds[i]);
    for (uint32_t i = 0; added && i < n; i++) {
        if (entry[i].plugin == NULL && entry[i].kind != EPA_PLUGIN_LAUNCHER)
            added = text_try_add(text, "; %s: %s", entry[i].name, entry[i].why);
    }
    return added && (empty == NULL || text_try_add(text, "; %s", empty));
}

static const char *build_text; /* written once, by describe_build() */

/* The text stays until the process ends. */
static void describe_build(void)
{
    struct epa_error err = {EPA_OK, ""};
    struct registry *registry = NULL;
    struct text text = {0};

    build_text = EPA2A_RELEASE ": no memory for the list of plugins";
    if (registry_create(&(struct registry_params){0}, &registry, &err) != EPA_OK
            ? text_try_add(&text, "%s: %s", EPA2A_RELEASE, err.text)
            : describe_plugins(&text, registry))
        build_text = text.data;
    else
        text_free(&text);
    registry_destroy(registry);
}

const char *epa2a_build(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, describe_build);
    return build_text;
}
