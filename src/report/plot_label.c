/* Labels from the experiments that results hold. A key of a plugin is compared among runs of
 * that plugin only: what another does not have is no difference. */
#include "report/plot_label.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

struct naming {
    struct arena *arena;
    struct plot_source *source;
    uint32_t n;
    const char *key[64]; /* in which they differ */
    uint32_t n_keys;
};

static const json_t *experiment_of(const struct plot_source *s)
{
    return json_object_get((const json_t *)s->run->json, "experiment");
}

static const char *plugin_of(const struct plot_source *s, const char *section)
{
    const char *name =
        json_string_value(json_object_get(json_object_get(experiment_of(s), section), "name"));

    return name != NULL ? name : "?";
}

const json_t *plot_value(const struct plot_source *s, const char *key)
{
    const char *dot = strchr(key, '.');
    const json_t *at = experiment_of(s);

    if (dot != NULL)
        at = json_object_getn(at, key, (size_t)(dot - key));
    return json_object_get(at, dot != NULL ? dot + 1 : key);
}

/* What says nothing of what a line shows, or is told anyway. */
static bool is_reported(const char *key)
{
    static const char *const whole[] = {
        "version",       "name",           "seed",         "timeout",
        "bench.check",   "algorithm.name", "bench.warmup", "bench.iterations",
        "transport.name"};
    static const char *const section[] = {"run.", "verify.", "profile.", "expect."};

    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        if (strcmp(key, whole[i]) == 0)
            return true;
    }
    for (uint32_t i = 0; operation_at(i) != NULL; i++) {
        if (strcmp(key, operation_at(i)->size_key) == 0)
            return true;
    }
    for (size_t i = 0; i < sizeof(section) / sizeof(section[0]); i++) {
        if (strncmp(key, section[i], strlen(section[i])) == 0)
            return true;
    }
    return false;
}

/* Whether both may have the key: it is none of a plugin, or they have that plugin. */
static bool comparable(const struct plot_source *a, const struct plot_source *b, const char *key)
{
    static const char *const plugin[] = {"algorithm", "transport", "backend", "launcher"};

    for (size_t i = 0; i < sizeof(plugin) / sizeof(plugin[0]); i++) {
        size_t bytes = strlen(plugin[i]);

        if (strncmp(key, plugin[i], bytes) == 0 && key[bytes] == '.' &&
            strcmp(key + bytes, ".name") != 0)
            return strcmp(plugin_of(a, plugin[i]), plugin_of(b, plugin[i])) == 0;
    }
    return true;
}

/* Adds the key if any run differs in it from run `at`, which has it. */
static void look_at(struct naming *c, uint32_t at, const char *key)
{
    const json_t *value;

    if (is_reported(key) || c->n_keys == sizeof(c->key) / sizeof(c->key[0]))
        return;
    for (uint32_t i = 0; i < c->n_keys; i++) {
        if (strcmp(c->key[i], key) == 0)
            return;
    }
    value = plot_value(&c->source[at], key);
    for (uint32_t i = 0; i < c->n; i++) {
        const json_t *other = plot_value(&c->source[i], key);

        if (!comparable(&c->source[at], &c->source[i], key) || json_equal(value, other))
            continue;
        c->key[c->n_keys++] = arena_strndup(c->arena, key, strlen(key));
        return;
    }
}

static void find_keys(struct naming *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        const char *key, *inner;
        json_t *value, *part;

        json_object_foreach((json_t *)experiment_of(&c->source[i]), key, value)
        {
            if (!json_is_object(value)) {
                look_at(c, i, key);
                continue;
            }
            json_object_foreach(value, inner, part)
            {
                char path[160];

                snprintf(path, sizeof(path), "%s.%s", key, inner);
                look_at(c, i, path);
            }
        }
    }
}

static void add_value(struct text *out, const char *key, const json_t *value)
{
    char *dump = value == NULL ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const char *text = json_is_string(value) ? json_string_value(value) : dump;
    size_t bytes = strlen(key);

    if (bytes > 5 && strcmp(key + bytes - 5, ".name") == 0)
        bytes -= 5; /* backend=cuda */
    if (bytes > 5 && strcmp(key + bytes - 5, ".kind") == 0)
        bytes -= 5;
    if (text != NULL)
        text_add(out, " %.*s=%s", (int)bytes, key, text);
    free(dump);
}

static const char *clean(struct arena *arena, const char *text)
{
    char *copy = arena_strndup(arena, text, strlen(text));

    for (char *c = copy; *c != '\0'; c++)
        *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
    return copy;
}

/* One label in two files is two lines: A and B are there to be seen side by side. */
static void add_files(struct arena *arena, struct plot_source *s, uint32_t n)
{
    bool several = false;

    for (uint32_t i = 1; i < n && !several; i++) {
        for (uint32_t k = 0; k < i && !several; k++)
            several = strcmp(s[i].path, s[k].path) != 0 && strcmp(s[i].label, s[k].label) == 0;
    }
    for (uint32_t i = 0; i < n && several; i++)
        s[i].label = clean(arena, arena_printf(arena, "%s (%s)", s[i].label, s[i].path));
}

void plot_label_lines(struct arena *arena, struct plot_source *s, uint32_t n)
{
    struct naming naming = {.arena = arena, .source = s, .n = n};

    find_keys(&naming);
    for (uint32_t i = 0; i < n; i++) {
        struct text label = {0};

        text_add(&label, "%s/%s", plugin_of(&s[i], "algorithm"), plugin_of(&s[i], "transport"));
        for (uint32_t k = 0; k < naming.n_keys; k++)
            add_value(&label, naming.key[k], plot_value(&s[i], naming.key[k]));
        s[i].label = clean(arena, label.data);
        text_free(&label);
    }
    add_files(arena, s, n);
}

void plot_label_runs(struct arena *arena, struct plot_source *s, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        s[i].label = clean(arena, s[i].run->label);
    add_files(arena, s, n);
}
