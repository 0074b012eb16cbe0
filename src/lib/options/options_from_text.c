/* Options as text. A text is divided into entries first; then the setter of options/option.h stores
 * each value. */
#include "options/options_from_text.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* ---- memory ---- */

struct options_block {
    struct options_block *before;
    max_align_t data[];
};

void *options_memory_alloc(struct options_memory *memory, size_t bytes)
{
    struct options_block *block = calloc(1, sizeof(*block) + bytes);

    if (block == NULL)
        return NULL;
    block->before = memory->last;
    memory->last = block;
    return block->data;
}

void options_memory_free(struct options_memory *memory)
{
    while (memory->last != NULL) {
        struct options_block *before = memory->last->before;

        free(memory->last);
        memory->last = before;
    }
}

/* ---- syntax ---- */

/* Place in the text. */
struct splitting {
    const char *source, *at;
    struct options_memory *memory;
    struct epa_error *err;
};

static enum epa_status fail_text_memory(const char *source, struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for the options", source);
}

/* Spaces between words. A newline separates options, except in a list. */
static const char spaces[] = " \t\r", spaces_of_list[] = " \t\r\n";

/* Copies the bytes before `end` without the spaces at their end. */
static const char *copy_word(struct splitting *s, const char *begin, const char *end)
{
    char *word;

    while (end > begin && strchr(spaces_of_list, end[-1]) != NULL)
        end--;
    word = options_memory_alloc(s->memory, (size_t)(end - begin) + 1);
    if (word == NULL)
        fail_text_memory(s->source, s->err);
    else
        memcpy(word, begin, (size_t)(end - begin));
    return word;
}

static enum epa_status check_characters(const char *source, const char *text, struct epa_error *err)
{
    uint32_t point = 0;
    size_t n;

    for (const char *at = text; *at != '\0'; at += n) {
        n = text_decode(at, &point);
        if (n == 0)
            return epa_fail(err, EPA_ERR_CONFIG, "%s: byte %zu is not UTF-8", source,
                            (size_t)(at - text));
        if (point == 0x7f || (point < 0x20 && strchr(spaces_of_list, (int)point) == NULL))
            return epa_fail(err, EPA_ERR_CONFIG, "%s: byte %zu is a control character", source,
                            (size_t)(at - text));
    }
    return EPA_OK;
}

/* Reads a value up to one of the bytes of `ends`, or to its closing quote. */
static enum epa_status read_scalar(struct splitting *s, const char *key, const char *ends,
                                   struct option_value *out)
{
    const char *begin = s->at, *end, quote = *begin;
    bool quoted = quote == '"' || quote == '\'';

    if (quoted) {
        end = strchr(++begin, quote);
        if (end == NULL)
            return epa_fail(s->err, EPA_ERR_CONFIG, "%s: %.64s: the closing %c is missing",
                            s->source, key, quote);
        out->text = options_memory_alloc(s->memory, (size_t)(end - begin) + 1);
        if (out->text == NULL)
            return fail_text_memory(s->source, s->err);
        memcpy((char *)(uintptr_t)out->text, begin, (size_t)(end - begin));
        s->at = end + 1;
    } else {
        s->at = begin + strcspn(begin, ends);
        out->text = copy_word(s, begin, s->at);
        if (out->text == NULL)
            return EPA_ERR_NOMEM;
    }
    out->form = OPTION_SCALAR;
    out->quoted = quoted;
    return EPA_OK;
}

static enum epa_status read_list(struct splitting *s, struct options_entry *entry)
{
    const char *end = s->at + strcspn(s->at, "]");
    struct option_value *item;
    enum epa_status status;
    size_t most = 1;

    for (const char *c = s->at; c < end; c++)
        most += *c == ',';
    item = options_memory_alloc(s->memory, most * sizeof(*item));
    if (item == NULL)
        return fail_text_memory(s->source, s->err);
    entry->value = (struct option_value){.form = OPTION_LIST, .text = ""};
    entry->item = item;
    do {
        s->at += 1 + strspn(s->at + 1, spaces_of_list);
        if (*s->at == ']')
            break; /* an empty list, or a comma after the last item */
        status = read_scalar(s, entry->key, ",]", &item[entry->n]);
        if (status != EPA_OK)
            return status;
        entry->n++;
        s->at += strspn(s->at, spaces_of_list);
    } while (*s->at == ',' && entry->n < most);
    if (*s->at != ']')
        return epa_fail(s->err, EPA_ERR_CONFIG, "%s: %.64s: the closing ] of the list is missing",
                        s->source, entry->key);
    s->at++;
    return EPA_OK;
}

static enum epa_status read_entry(struct splitting *s, struct options_entry *out)
{
    size_t bytes = strcspn(s->at, "=,\n");
    enum epa_status status;

    out->key = copy_word(s, s->at, s->at + bytes);
    if (out->key == NULL)
        return EPA_ERR_NOMEM;
    if (s->at[bytes] != '=')
        return epa_fail(s->err, EPA_ERR_CONFIG, "%s: '%.64s' has no value; write %.64s=VALUE",
                        s->source, out->key, out->key);
    if (*out->key == '\0')
        return epa_fail(s->err, EPA_ERR_CONFIG, "%s: '%.64s' has no key; write KEY=VALUE",
                        s->source, s->at);
    s->at += bytes + 1;
    s->at += strspn(s->at, spaces);
    status = *s->at == '[' ? read_list(s, out) : read_scalar(s, out->key, ",\n", &out->value);
    if (status != EPA_OK)
        return status;
    s->at += strspn(s->at, spaces);
    if (*s->at != '\0' && *s->at != ',' && *s->at != '\n')
        return epa_fail(s->err, EPA_ERR_CONFIG,
                        "%s: %.64s: '%.40s' follows the value; a comma separates options",
                        s->source, out->key, s->at);
    return EPA_OK;
}

enum epa_status options_split(const char *source, const char *text, struct options_memory *memory,
                              const struct options_entry **out, uint32_t *n, struct epa_error *err)
{
    struct splitting s = {source, text, memory, err};
    struct options_entry *entry;
    enum epa_status status;
    uint32_t found = 0;
    size_t most = 1;

    if (strnlen(text, OPTIONS_TEXT_BYTES + 1) > OPTIONS_TEXT_BYTES)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: the text has more than %d bytes", source,
                        OPTIONS_TEXT_BYTES);
    status = check_characters(source, text, err);
    if (status != EPA_OK)
        return status;
    for (const char *c = text; *c != '\0' && most < OPTIONS_ENTRIES; c++)
        most += *c == ',' || *c == '\n';
    entry = options_memory_alloc(memory, most * sizeof(*entry));
    if (entry == NULL)
        return fail_text_memory(source, err);
    for (;;) {
        s.at += strspn(s.at, " \t\r\n,");
        if (*s.at == '\0')
            break;
        if (found == most)
            return epa_fail(err, EPA_ERR_CONFIG, "%s: more than %d options", source,
                            OPTIONS_ENTRIES);
        status = read_entry(&s, &entry[found++]);
        if (status != EPA_OK)
            return status;
    }
    *out = entry;
    *n = found;
    return EPA_OK;
}

/* ---- values ---- */

static enum epa_status fail_value(const char *source, const char *key,
                                  const struct value_error *error, struct epa_error *err)
{
    return epa_fail_key(err, EPA_ERR_CONFIG, key, "%s: %.64s: %s; %s", source, key, error->what,
                        error->hint);
}

static enum epa_status store_list(const char *source, const struct epa_option *option,
                                  const struct options_entry *entry, struct options_memory *memory,
                                  struct epa_u32_list *out, struct epa_error *err)
{
    struct value_error error;
    uint32_t *item;

    if (!option_check_list(option, &entry->value, &error))
        return fail_value(source, entry->key, &error, err);
    item = options_memory_alloc(memory, entry->n * sizeof(*item));
    if (item == NULL)
        return fail_text_memory(source, err);
    for (uint32_t i = 0; i < entry->n; i++)
        if (!option_set_item(option, &entry->item[i], &item[i], &error))
            return fail_value(source, entry->key, &error, err);
    *out = (struct epa_u32_list){item, entry->n};
    return EPA_OK;
}

enum epa_status options_store(const char *source, const struct epa_option *option,
                              const struct options_entry *entry, struct options_memory *memory,
                              void *out, struct epa_error *err)
{
    struct value_error error;

    if (option->type == EPA_OPTION_U32_LIST)
        return store_list(source, option, entry, memory, (void *)((char *)out + option->offset),
                          err);
    if (!option_set(option, &entry->value, out, &error))
        return fail_value(source, entry->key, &error, err);
    return EPA_OK;
}

enum epa_status options_from_text(const struct epa_options *options, const char *text,
                                  struct options_memory *memory, void *out, struct epa_error *err)
{
    static const char source[] = "options";
    const struct options_entry *entry = NULL;
    enum epa_status status = EPA_OK;
    char hint[OPTION_HINT_ROOM];
    uint32_t n = 0;
    void *filled;

    if (text != NULL)
        status = options_split(source, text, memory, &entry, &n, err);
    if (status != EPA_OK)
        return status;
    filled = options_memory_alloc(memory, options->size);
    if (filled == NULL)
        return fail_text_memory(source, err);
    if (options->size != 0)
        memcpy(filled, options->defaults, options->size);
    for (uint32_t i = 0; i < n && status == EPA_OK; i++) {
        const struct epa_option *option = option_find(options, entry[i].key);

        for (uint32_t k = 0; k < i; k++)
            if (strcmp(entry[k].key, entry[i].key) == 0)
                return epa_fail(err, EPA_ERR_CONFIG,
                                "%s: key '%.64s' is set twice; keep one of them", source,
                                entry[i].key);
        if (option == NULL) {
            option_unknown_hint(options, NULL, entry[i].key, hint, sizeof(hint));
            return epa_fail(err, EPA_ERR_CONFIG, "%s: unknown key '%.64s'; %s", source,
                            entry[i].key, hint);
        }
        status = options_store(source, option, &entry[i], memory, filled, err);
    }
    if (status == EPA_OK && options->size != 0)
        memcpy(out, filled, options->size);
    return status;
}
