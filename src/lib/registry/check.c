/* Checks after dlopen(): the ABI number, then all parts of the descriptor that the program uses
 * later, so that a faulty plugin causes an error message instead of a crash. */
#include "registry/check.h"

#include <string.h>

enum { MAX_OPTIONS = 256, MAX_CHOICES = 256, MAX_SUMMARY = 200, MAX_CONFIG_BYTES = 1 << 20 };

#define MUST(type, function) \
    { \
#function, offsetof(struct epa_##type##_plugin, function) \
    }

/* The descriptor of each plugin kind: the offset of its memory kinds (0: none), and its required
 * functions. */
static const struct {
    const char *name, *article;
    uint32_t size;
    size_t memory;
    struct {
        const char *name;
        size_t offset;
    } must[2];
} kinds[PLUGIN_KINDS] = {
    [EPA_PLUGIN_BACKEND] = {"backend",
                            "a",
                            sizeof(struct epa_backend_plugin),
                            offsetof(struct epa_backend_plugin, memory),
                            {MUST(backend, open)}},
    [EPA_PLUGIN_LAUNCHER] =
        {"launcher", "a", sizeof(struct epa_launcher_plugin), 0, {MUST(launcher, launch)}},
    [EPA_PLUGIN_TRANSPORT] = {"transport",
                              "a",
                              sizeof(struct epa_transport_plugin),
                              offsetof(struct epa_transport_plugin, memory),
                              {MUST(transport, open)}},
    [EPA_PLUGIN_ALGORITHM] = {"algorithm",
                              "an",
                              sizeof(struct epa_algorithm_plugin),
                              offsetof(struct epa_algorithm_plugin, memory),
                              {MUST(algorithm, plan), MUST(algorithm, create)}},
};

/* Size and alignment of the field, by enum epa_option_type. */
static const struct {
    size_t bytes, align;
} fields[] = {
    [EPA_OPTION_BOOL] = {sizeof(bool), _Alignof(bool)},
    [EPA_OPTION_U32] = {sizeof(uint32_t), _Alignof(uint32_t)},
    [EPA_OPTION_U64] = {sizeof(uint64_t), _Alignof(uint64_t)},
    [EPA_OPTION_REAL] = {sizeof(double), _Alignof(double)},
    [EPA_OPTION_BYTES] = {sizeof(uint64_t), _Alignof(uint64_t)},
    [EPA_OPTION_DURATION] = {sizeof(uint64_t), _Alignof(uint64_t)},
    [EPA_OPTION_STRING] = {sizeof(char *), _Alignof(char *)},
    [EPA_OPTION_CHOICE] = {sizeof(int), _Alignof(int)},
    [EPA_OPTION_U32_LIST] = {sizeof(struct epa_u32_list), _Alignof(struct epa_u32_list)},
};

const char *plugin_kind_name(enum epa_plugin_kind kind)
{
    return kinds[kind].name;
}

static bool name_of(const char *name, size_t most)
{
    size_t n = strnlen(name, most + 1);

    return n >= 1 && n <= most && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

bool plugin_name_ok(const char *name)
{
    return name_of(name, PLUGIN_NAME_MAX);
}

static bool one_line(const char *text, size_t most)
{
    size_t n = strnlen(text, most + 1);

    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] < ' ' || text[i] == 127)
            return false;
    }
    return n >= 1 && n <= most;
}

static enum epa_status check_choices(const struct epa_option *option, const void *defaults,
                                     struct epa_error *err)
{
    uint32_t n = 0;
    bool holds_default = false;
    int value;

    memcpy(&value, (const char *)defaults + option->offset, sizeof(value));
    for (; option->choices != NULL && option->choices[n].name != NULL; n++) {
        if (n == MAX_CHOICES || !one_line(option->choices[n].name, 64))
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "choice %u of its option '%s' has no usable name", n, option->name);
        holds_default = holds_default || option->choices[n].value == value;
    }
    if (n == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' has no choices", option->name);
    if (!holds_default)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the default of its option '%s' (%d) is none of the choices", option->name,
                        value);
    return EPA_OK;
}

static enum epa_status check_option(const struct epa_options *options, uint32_t i,
                                    struct epa_error *err)
{
    const struct epa_option *option = &options->table[i];
    uint32_t type = option->type;

    if (!name_of(option->name, 64))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the name of its option %u is not made of a-z, 0-9 and _", i);
    if (strcmp(option->name, "name") == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "its option 'name' has the key that names the plugin");
    for (uint32_t j = 0; j < i; j++) {
        if (strcmp(option->name, options->table[j].name) == 0)
            return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' is there twice",
                            option->name);
    }
    if (option->help == NULL || !one_line(option->help, 500))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' has no line of help",
                        option->name);
    if (type >= sizeof(fields) / sizeof(fields[0]))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' has the unknown type %u",
                        option->name, type);
    if (fields[type].bytes > options->size || option->offset > options->size - fields[type].bytes ||
        option->offset % fields[type].align != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "its option '%s' is at offset %zu, which does not fit a struct of %zu "
                        "bytes",
                        option->name, option->offset, options->size);
    if ((option->max != 0 && option->min > option->max) || option->least > option->most)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its option '%s' allows no value", option->name);
    return type == EPA_OPTION_CHOICE ? check_choices(option, options->defaults, err) : EPA_OK;
}

static enum epa_status check_options(const struct epa_options *options, struct epa_error *err)
{
    if (options->size > MAX_CONFIG_BYTES)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its options would take %zu bytes",
                        options->size);
    if (options->table == NULL)
        return EPA_OK;
    if (options->size == 0 || options->defaults == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it has options but no defaults");
    for (uint32_t i = 0; options->table[i].name != NULL; i++) {
        enum epa_status status =
            i < MAX_OPTIONS ? check_option(options, i, err)
                            : epa_fail(err, EPA_ERR_UNSUPPORTED, "its table of options has no end");

        if (status != EPA_OK)
            return status;
    }
    return EPA_OK;
}

static enum epa_status check_numbers(const struct epa_plugin *p, enum epa_plugin_kind kind,
                                     struct epa_error *err)
{
    if (p->abi != EPA_ABI)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "it was built for plugin ABI %u, and this program has %u", p->abi, EPA_ABI);
    if ((uint32_t)p->kind >= PLUGIN_KINDS)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it is of the unknown kind %u", p->kind);
    if (p->kind != kind)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it is %s %s, not %s %s", kinds[p->kind].article,
                        kinds[p->kind].name, kinds[kind].article, kinds[kind].name);
    if (p->size != kinds[kind].size)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "its descriptor has %u bytes, and %s %s of this program has %u", p->size,
                        kinds[kind].article, kinds[kind].name, kinds[kind].size);
    return EPA_OK;
}

enum epa_status plugin_check(const struct epa_plugin *plugin, enum epa_plugin_kind kind,
                             const char *name, struct epa_error *err)
{
    enum epa_status status = check_numbers(plugin, kind, err);
    uint32_t memory = EPA_MEMORY_HOST;
    void (*function)(void);

    if (status != EPA_OK)
        return status;
    if (plugin->name == NULL || !plugin_name_ok(plugin->name))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its name is not 1 to %d of a-z, 0-9 and _",
                        PLUGIN_NAME_MAX);
    if (strcmp(plugin->name, name) != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it calls itself '%s'", plugin->name);
    if (plugin->summary == NULL || !one_line(plugin->summary, MAX_SUMMARY))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its summary is not one line of text");
    for (uint32_t i = 0; i < 2 && kinds[kind].must[i].name != NULL; i++) {
        memcpy(&function, (const char *)plugin + kinds[kind].must[i].offset, sizeof(function));
        if (function == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED, "its function %s is missing",
                            kinds[kind].must[i].name);
    }
    if (kinds[kind].memory != 0)
        memcpy(&memory, (const char *)plugin + kinds[kind].memory, sizeof(memory));
    if ((memory & (EPA_MEMORY_HOST | EPA_MEMORY_CUDA)) == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it supports no kind of memory");
    return check_options(&plugin->options, err);
}
