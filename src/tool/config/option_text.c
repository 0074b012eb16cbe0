/* Texts of option values, and the values that `epa2a tune` tries. */
#include "config/option_text.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "options/option.h"

static uint64_t number_at(const struct epa_option *option, const void *from)
{
    const void *field = (const char *)from + option->offset;

    return option->type == EPA_OPTION_U32 ? *(const uint32_t *)field : *(const uint64_t *)field;
}

bool option_is_set(const struct epa_option *option, const void *from)
{
    const void *field = (const char *)from + option->offset;
    double real;

    switch (option->type) {
    case EPA_OPTION_STRING:
        return *(const char *const *)field != NULL;
    case EPA_OPTION_U32_LIST:
        return ((const struct epa_u32_list *)field)->item != NULL;
    case EPA_OPTION_REAL:
        real = *(const double *)field;
        return !option_is_bounded(option) || (real >= option->least && real <= option->most);
    default:
        return !option_is_number(option) || (number_at(option, from) >= option->min &&
                                             number_at(option, from) <= option_greatest(option));
    }
}

static void list_text(const struct epa_u32_list *list, struct text *out)
{
    text_add(out, "[");
    for (uint32_t i = 0; i < list->n; i++)
        text_add(out, "%s%" PRIu32, i == 0 ? "" : ", ", list->item[i]);
    text_add(out, "]");
}

void option_text(const struct epa_option *option, const void *from, struct text *out)
{
    const void *field = (const char *)from + option->offset;
    char buf[64];

    switch (option->type) {
    case EPA_OPTION_BOOL:
        text_add(out, "%s", *(const bool *)field ? "true" : "false");
        break;
    case EPA_OPTION_REAL:
        text_add(out, "%s", value_real_text(buf, sizeof(buf), *(const double *)field));
        break;
    case EPA_OPTION_STRING:
        text_add(out, "%s", *(const char *const *)field);
        break;
    case EPA_OPTION_CHOICE:
        for (const struct epa_choice *c = option->choices; c->name != NULL; c++)
            if (c->value == *(const int *)field)
                text_add(out, "%s", c->name);
        break;
    case EPA_OPTION_U32_LIST:
        list_text(field, out);
        break;
    default:
        text_add(out, "%s", option_number_text(option, number_at(option, from), buf, sizeof(buf)));
    }
}

bool option_candidate(const struct epa_option *o, bool on_gpus, uint32_t i, struct text *out)
{
    static const char gpus[] = "cuda: ";
    bool gpus_only = o->tune != NULL && strncmp(o->tune, gpus, sizeof(gpus) - 1) == 0;
    const char *at = gpus_only ? o->tune + sizeof(gpus) - 1 : o->tune;

    if (at == NULL || (gpus_only && !on_gpus))
        return false;
    if (strcmp(at, "*") == 0 && o->type == EPA_OPTION_BOOL) {
        if (i < 2)
            text_add(out, "%s", i == 0 ? "false" : "true");
        return i < 2;
    }
    if (strcmp(at, "*") == 0) {
        const struct epa_choice *c = o->choices;

        while (c->name != NULL && i-- > 0)
            c++;
        if (c->name != NULL)
            text_add(out, "%s", c->name);
        return c->name != NULL;
    }
    for (; i > 0 && *at != '\0'; i--)
        at += strcspn(at, " ") + strspn(at + strcspn(at, " "), " ");
    for (size_t k = 0, bytes = strcspn(at, " "); k < bytes;
         k++) /* a list as option_text() has it */
        text_add(out, at[k] == ',' ? "%c " : "%c", at[k]);
    return *at != '\0';
}
