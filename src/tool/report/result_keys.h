/* Keys of results and their values as text: of experiments, machines, plugins, ranks and clocks. Results
 * of this process and results of files have the same notation. */
#ifndef RESULT_KEYS_H
#define RESULT_KEYS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/text.h"

struct arena;
struct experiment;
struct session_facts;

/* A key, "moe.hidden", and its value in plain notation and, `shown`, in JSON notation: strings in
 * quotes. */
struct results_key {
    const char *path, *value, *shown;
    bool is_means; /* RESULTS_MEANS */
};

/* A growing list of keys; their texts are in the arena. */
struct key_list {
    struct arena *arena;
    struct results_key *key; /* [n] */
    uint32_t n, room;
};

/* Copies the texts. */
void key_list_add(struct key_list *, const char *path, const char *value, const char *shown);
/* Adds the value null. */
void key_list_add_null(struct key_list *, const char *path);
void key_list_add_text(struct key_list *, const char *path, const char *value);
void key_list_add_count(struct key_list *, const char *path, uint64_t value);
/* Adds a real number with the digits of result files. Not finite: null. */
void key_list_add_real(struct key_list *, const char *path, double value);

/* Returns the keys of an experiment, as a file of its result has them; they are in the arena. */
uint32_t experiment_keys(const struct experiment *, struct arena *, struct results_key **out);
/* Adds the facts of the device of rank 0: "device.NAME". */
void device_keys_add(struct key_list *, const struct session_facts *);

/* Returns the key of that path; NULL: none. */
const struct results_key *key_find(const struct results_key *, uint32_t n, const char *path);

/* Returns a copy of a text as JSON has it: if the text is not UTF-8, bytes beyond ASCII are ?. */
const char *key_text(struct arena *, const char *text);

/* Add a string in double quotes, or a real number with 9 digits, as result files have them. */
void key_add_quoted(struct text *, const char *text);
void key_add_real(struct text *, double x);

/* Adds the keys as a nested object in JSON, which is YAML, too, a line for each key: "moe.hidden" belongs
 * to the object "moe". Lines after the first begin with `indent` blanks. */
void keys_add_nested(struct text *, const struct results_key *, uint32_t n, uint32_t indent);

#endif
