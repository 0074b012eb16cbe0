/* The plugins and options of an experiment as text for epa2a.h. */
#include "caller/caller_options.h"

#include <dlfcn.h>
#include <string.h>

#include "base/memory.h"
#include "config/option_text.h"

/* Adds a plugin and all its options that are set. A text of options has no escapes: a value with one
 * kind of quotes is enclosed in the other. */
static void add_plugin(const char *kind, const struct ep_choice *choice, struct text *out)
{
    text_add(out, "%s%s=%s", out->bytes > 0 ? ", " : "", kind, choice->plugin->name);
    for (const struct epa_option *o = choice->plugin->options.table; o != NULL && o->name != NULL;
         o++) {
        text_auto value = {0};
        bool string = o->type == EPA_OPTION_STRING;
        const char *quote;

        /* The layout of the shape determines the order of rows. */
        if (!option_is_set(o, choice->config) || strcmp(o->name, "row_order") == 0)
            continue;
        option_text(o, choice->config, &value);
        quote = !string ? "" : strchr(value.data, '\'') == NULL ? "'" : "\"";
        text_add(out, ", %s.%s=%s%s%s", kind, o->name, quote, value.data, quote);
    }
}

void caller_comm_options(const struct experiment *x, struct text *out)
{
    add_plugin("transport", &x->transport, out);
    add_plugin("backend", &x->backend, out);
    if (x->problem.ranks_per_node != 0)
        text_add(out, ", ranks_per_node=%u", x->problem.ranks_per_node);
}

void caller_algorithm_options(const struct experiment *x, struct text *out)
{
    add_plugin("algorithm", &x->algorithm, out);
}

/* Adds the folder of the file that contains the plugin. The library finds built-in plugins itself. */
static void add_folder(const struct epa_plugin *plugin, struct text *out)
{
    const char *end;
    Dl_info info;

    if (dladdr(plugin, &info) == 0 || info.dli_fname == NULL || info.dli_fname[0] != '/')
        return;
    end = strrchr(info.dli_fname, '/');
    if (strstr(end, plugin->name) == NULL) /* the program itself */
        return;
    text_add(out, "%s%.*s", out->bytes > 0 ? ":" : "", (int)(end - info.dli_fname), info.dli_fname);
}

void caller_plugin_path(const struct experiment *x, struct text *out)
{
    add_folder(x->algorithm.plugin, out);
    add_folder(x->transport.plugin, out);
    add_folder(x->backend.plugin, out);
}
