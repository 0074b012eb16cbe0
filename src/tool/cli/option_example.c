/* Examples of options in help: a valid value that is not the default, and the settings that the option
 * depends on. */
#include "cli/option_example.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "config/option_text.h"
#include "options/option.h"

static bool in_range(const struct epa_option *option, double value)
{
    if (option->type == EPA_OPTION_REAL)
        return (option->least == 0 && option->most == 0) ||
               (value >= option->least && value <= option->most);
    return value >= (double)option->min && (option->max == 0 || value <= (double)option->max);
}

/* Adds a valid number that is not the default: twice or half the default; for a default of 0 half
 * the maximum, 1 s or 1. */
static void add_other_number(const struct epa_option *option, const void *defaults,
                             struct text *out)
{
    const void *at = (const char *)defaults + option->offset;
    char buf[64];
    double value = option->type == EPA_OPTION_REAL  ? *(const double *)at
                   : option->type == EPA_OPTION_U32 ? *(const uint32_t *)at
                                                    : (double)*(const uint64_t *)at;

    if (value == 0)
        value = option->type == EPA_OPTION_REAL && option->most > 0 ? option->most / 2
                : option->type == EPA_OPTION_DURATION               ? 1e9
                                                                    : 1;
    else
        value = in_range(option, 2 * value) ? 2 * value : value / 2;
    if (option->type == EPA_OPTION_REAL)
        text_add(out, "%g", value);
    else
        text_add(out, "%s", option_number_text(option, (uint64_t)value, buf, sizeof(buf)));
}

void option_example_add(const struct epa_option *option, const void *defaults, struct text *out)
{
    text_auto usual = {0}, other = {0};
    char buf[64];

    if (option_is_set(option, defaults))
        option_text(option, defaults, &usual);
    for (uint32_t i = 0; option_candidate(option, true, i, &other); i++) {
        if (usual.data == NULL || strcmp(other.data, usual.data) != 0) {
            text_add(out, "%s", other.data);
            return;
        }
        text_free(&other);
    }
    if (option->type == EPA_OPTION_STRING)
        text_add(out, "TEXT");
    else if (option->type == EPA_OPTION_BOOL)
        text_add(out, "%s", strcmp(usual.data, "true") == 0 ? "false" : "true");
    else if (option->type == EPA_OPTION_CHOICE)
        text_add(
            out, "%s",
            option->choices[usual.data != NULL && strcmp(option->choices[0].name, usual.data) == 0]
                .name);
    else if (option->type == EPA_OPTION_U32_LIST)
        text_add(out, "[%llu, %llu]", (unsigned long long)option->min,
                 (unsigned long long)option->min + 1);
    else if (usual.data != NULL && strchr("0123456789", usual.data[0]) != NULL)
        add_other_number(option, defaults, out);
    else if (option->type == EPA_OPTION_REAL)
        text_add(out, "%g", option->least);
    else /* a number without a default, or with a name as default: the minimum */
        text_add(out, "%s", option_number_text(option, option->min, buf, sizeof(buf)));
}

void option_example_add_needs(const struct section *section, const struct epa_option *option,
                              struct text *out)
{
    for (const struct option_rule *r = option_rules; r->section != NULL && section != NULL; r++) {
        const struct epa_option *other;

        if (strcmp(r->section, section->name) != 0 || strcmp(r->option, option->name) != 0 ||
            option_rule_holds(r, experiment_options.defaults))
            continue;
        other = option_find(&section->options, r->other);
        text_add(out, "--set %s.%s=", r->section, r->other);
        if (r->values == 0) {
            option_example_add(other, section->options.defaults, out);
        } else {
            const struct epa_choice *c = other->choices;

            while ((r->values >> c->value & 1u) == 0)
                c++;
            text_add(out, "%s", c->name);
        }
        text_add(out, " ");
    }
}
