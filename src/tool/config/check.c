/* Checks between values, and values that messages suggest. */
#include "config/check.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "config/diag.h"
#include "options/option.h"
#include "config/origin.h"

struct config_trial {
    const char *key, *why; /* why NULL: no conflict of that key so far */
};

const char *check_value(const struct config_check *c, const char *key, uint64_t value)
{
    bool tried = c->trial != NULL && strcmp(c->trial->key, key) == 0;

    return arena_printf(c->x->arena, "%s (%llu%s)", key, (unsigned long long)value,
                        !tried && origin_find(c->x, key) == NULL ? ", the default" : "");
}

/* Returns the option of a key, and its value in `x`; NULL: there is no such number. */
static const struct epa_option *find_number(const char *key, const struct experiment *x,
                                            const void **at)
{
    const char *dot = strchr(key, '.');
    char name[64];
    const struct section *section = NULL;
    const struct epa_option *option;

    snprintf(name, sizeof(name), "%.*s", dot != NULL ? (int)(dot - key) : 0, key);
    if (dot != NULL)
        section = section_find(name);
    if (dot != NULL && (section == NULL || section->plugin))
        return NULL;
    option = option_find(dot != NULL ? &section->options : &experiment_options,
                         dot != NULL ? dot + 1 : key);
    if (option == NULL || (option->type != EPA_OPTION_U32 && option->type != EPA_OPTION_U64 &&
                           option->type != EPA_OPTION_BYTES))
        return NULL;
    *at = (const char *)x + (dot != NULL ? section->offset : 0) + option->offset;
    return option;
}

bool check_takes(const struct config_check *c, const char *key, uint64_t value, const char **why)
{
    struct experiment x = *c->x;
    struct config_trial trial = {.key = key};
    const struct config_check tried = {&x, c->diag, c->check_operation, &trial};
    const void *at = NULL;
    const struct epa_option *option = find_number(key, &x, &at);
    void *field = (void *)(uintptr_t)at;
    char range[OPTION_RANGE_ROOM] = "";

    if (option == NULL || value < option->min || value > option_greatest(option)) {
        if (option != NULL)
            option_range(option, "", range, sizeof(range));
        if (why != NULL)
            *why = arena_printf(x.arena, "%s has to be %s", key,
                                *range == '\0' ? "a smaller number" : range);
        return false;
    }
    if (option->type == EPA_OPTION_U32)
        *(uint32_t *)field = (uint32_t)value;
    else
        *(uint64_t *)field = value;
    if (c->check_operation != NULL)
        c->check_operation(&tried);
    if (why != NULL)
        *why = trial.why;
    return trial.why == NULL;
}

enum { MULTIPLES_TRIED = 64 };

const char *check_multiples(const struct config_check *c, const char *key, uint32_t of)
{
    const void *at = NULL;
    const struct epa_option *option = find_number(key, c->x, &at);
    uint64_t value, found[2] = {0, 0};
    const char *name = "";

    if (option == NULL || c->trial != NULL)
        return NULL;
    value = option->type == EPA_OPTION_U32 ? *(const uint32_t *)at : *(const uint64_t *)at;
    for (uint64_t k = 0, below = value / of * of;
         k < MULTIPLES_TRIED && (found[0] == 0 || found[1] == 0); k++) {
        uint64_t less = below >= k * of ? below - k * of : 0, more = below + (k + 1) * of;

        if (found[0] == 0 && less > 0 && check_takes(c, key, less, NULL))
            found[0] = less;
        if (found[1] == 0 && check_takes(c, key, more, NULL))
            found[1] = more;
    }
    if (found[0] == 0 && found[1] == 0)
        return NULL;
    if (origin_find(c->x, key) == NULL) /* the error is at another key */
        name = arena_printf(c->x->arena, "%s: ", key);
    if (found[0] == 0 || found[1] == 0)
        return arena_printf(c->x->arena, "write %s%llu", name,
                            (unsigned long long)(found[0] + found[1]));
    return arena_printf(c->x->arena, "write %s%llu or %llu", name, (unsigned long long)found[0],
                        (unsigned long long)found[1]);
}

void check_conflict(const struct config_check *c, const char *wrong, const char *other,
                    const char *hint, const char *fmt, ...)
{
    const struct node *w = origin_find(c->x, wrong);
    const struct node *o = other == NULL ? NULL : origin_find(c->x, other);
    const struct source_location nowhere = {.file = c->x->file};
    char text[512];
    va_list args;

    if (c->trial == NULL && ((w != NULL && w->refused) || (o != NULL && o->refused)))
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (c->trial != NULL) {
        if (c->trial->why == NULL && (strcmp(wrong, c->trial->key) == 0 ||
                                      (other != NULL && strcmp(other, c->trial->key) == 0)))
            c->trial->why = arena_strndup(c->x->arena, text, strlen(text));
        return;
    }
    diag_error(c->diag,
               w != NULL   ? &w->location
               : o != NULL ? &o->location
                           : &nowhere,
               hint, "%s", text);
    if (w != NULL && o != NULL)
        diag_note(c->diag, &o->location, "'%s' was set here", other);
}

void check_rules(const struct config_check *c, const struct section *section)
{
    const char *last = "";

    for (const struct option_rule *r = option_rules; r->section != NULL; r++) {
        const char *key;

        if (strcmp(r->section, section->name) != 0 || strcmp(r->option, last) == 0)
            continue;
        key = arena_printf(c->x->arena, "%s.%s", r->section, r->option);
        if (origin_find(c->x, key) == NULL || origin_find(c->x, key)->from_model ||
            option_rule_holds(r, c->x))
            continue;
        check_conflict(c, key, arena_printf(c->x->arena, "%s.%s", r->section, r->other),
                       "remove it, or set that", "%s needs %s", key, r->needs);
        last = r->option;
    }
}
