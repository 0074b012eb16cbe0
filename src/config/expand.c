/* One pass over the value, from one "${" to the next; all between is kept. The node notes
 * which variables there were, so that `config show --origin` can tell. */
#include "config/expand.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/text.h"
#include "config/yaml_syntax.h"

enum { MAX_BYTES = 64 << 10, NAMES = 1024 };

/* "${NAME:-else}": the parts of one, in the value. */
struct use {
    const char *at, *name, *otherwise; /* otherwise NULL: there is none */
    size_t bytes, name_bytes, otherwise_bytes;
};

struct expansion {
    struct arena *arena;
    struct diag *diag;
    struct node *node;
    struct text text, variables;
};

__attribute__((format(printf, 4, 5))) static bool refuse(struct expansion *e, const struct use *use,
                                                         const char *hint, const char *fmt, ...)
{
    struct source_location location =
        yaml_location_in(&e->node->location, e->node->text, (size_t)(use->at - e->node->text));
    char what[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    if (location.column != e->node->location.column || use->bytes < location.width)
        location.width = (uint32_t)use->bytes;
    diag_error(e->diag, &location, hint, "%s", what);
    e->node->refused = true;
    return false;
}

static size_t name_length(const char *s)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
    size_t n = strspn(s, letters);

    while (n > 0 && s[n] != 0 && (strchr(letters, s[n]) || (s[n] >= '0' && s[n] <= '9')))
        n++;
    return n;
}

/* use->at stands at "${". */
static bool parse(struct expansion *e, struct use *use)
{
    const char *rest = use->at + 2, *end = strchr(rest, '}');

    use->bytes = end == NULL ? strlen(use->at) : (size_t)(end + 1 - use->at);
    if (end == NULL)
        return refuse(e, use, "$${ is a literal ${", "'${' without its '}'");
    use->name = rest;
    use->name_bytes = name_length(rest);
    rest += use->name_bytes;
    if (use->name_bytes == 0 || (rest != end && strncmp(rest, ":-", 2) != 0))
        return refuse(e, use, "write ${NAME} or ${NAME:-default}; $${ is a literal ${",
                      "'%.*s' is not a variable of the environment",
                      use->bytes > 80 ? 80 : (int)use->bytes, use->at);
    if (rest == end)
        return true;
    use->otherwise = rest + 2;
    use->otherwise_bytes = (size_t)(end - use->otherwise);
    if (memmem(use->otherwise, use->otherwise_bytes, "${", 2) != NULL)
        return refuse(e, use, "a default is plain text", "'${' inside of '${...}'");
    return true;
}

static bool refuse_unset(struct expansion *e, const struct use *use, const char *name)
{
    const char *names[NAMES], *near;
    struct text hint = {0};
    uint32_t n = 0;

    for (char **at = environ; at != NULL && *at != NULL && n < NAMES; at++)
        names[n++] = arena_strndup(e->arena, *at, strcspn(*at, "="));
    near = text_nearest(name, names, n);
    if (near != NULL && strlen(near) > 2) /* not such as _, for anything short */
        text_add(&hint, "did you mean '%s'? Else set", near);
    else
        text_add(&hint, "set");
    text_add(&hint, " %.64s, or write ${%.64s:-default}", name, name);
    (void)refuse(e, use, hint.data, "the environment has no variable '%.64s'", name);
    text_free(&hint);
    return false;
}

/* What a file could not hold either. */
static bool is_text(struct expansion *e, const struct use *use, const char *name, const char *value)
{
    uint32_t point = 0;

    for (size_t n; *value != 0; value += n) {
        n = text_decode(value, &point);
        if (n == 0)
            return refuse(e, use, "set it to UTF-8 text",
                          "the value of '%.64s' has byte 0x%02x, which is not UTF-8 text", name,
                          (unsigned char)*value);
        if (point < 0x20 || point == 0x7f)
            return refuse(e, use, "set it to one line of text",
                          "the value of '%.64s' has control character 0x%02x", name,
                          (unsigned)point);
    }
    return true;
}

static bool add_value(struct expansion *e, const struct use *use)
{
    const char *name = arena_strndup(e->arena, use->name, use->name_bytes);
    const char *value = getenv(name), *separator = e->variables.bytes == 0 ? "" : ", ";

    if (use->otherwise != NULL && (value == NULL || *value == 0)) {
        text_add_bytes(&e->text, use->otherwise, use->otherwise_bytes);
        text_add(&e->variables, "%sdefault of ${%s}", separator, name);
        return true;
    }
    if (value == NULL)
        return refuse_unset(e, use, name);
    if (!is_text(e, use, name, value))
        return false;
    text_add(&e->text, "%s", value);
    text_add(&e->variables, "%s${%s}", separator, name);
    return e->text.bytes <= MAX_BYTES ||
           refuse(e, use, NULL, "with '%.64s' this value is longer than 64 KiB", name);
}

static bool expand(struct expansion *e)
{
    const char *from = e->node->text;
    struct use use = {0};

    for (const char *at = from; (at = strstr(at, "${")) != NULL; from = at) {
        bool escaped = at > from && at[-1] == '$';

        text_add_bytes(&e->text, from, (size_t)(at - from) - escaped);
        use = (struct use){.at = at};
        if (escaped) {
            text_add(&e->text, "${");
            at += 2;
            continue;
        }
        if (!parse(e, &use) || !add_value(e, &use))
            return false;
        at += use.bytes;
    }
    text_add(&e->text, "%s", from);
    return true;
}

bool expand_scalar(struct arena *arena, struct diag *diag, struct node *node)
{
    struct expansion e = {.arena = arena, .diag = diag, .node = node};
    bool good;

    if (strstr(node->text, "${") == NULL)
        return true;
    good = expand(&e);
    if (good)
        node->text = arena_strndup(arena, e.text.data, e.text.bytes);
    if (good && e.variables.bytes > 0)
        node->variables = arena_strndup(arena, e.variables.data, e.variables.bytes);
    text_free(&e.text);
    text_free(&e.variables);
    return good;
}

void expand_escape(const char *text, struct text *out)
{
    for (const char *at; (at = strstr(text, "${")) != NULL; text = at + 2) {
        text_add_bytes(out, text, (size_t)(at - text));
        text_add(out, "$${");
    }
    text_add(out, "%s", text);
}
