/* An option is declared once, next to the struct field that holds it. The table drives the YAML
 * reader, --set, `epa2a help`, the man page, the JSON Schema and the completions. */
#ifndef EPA2A_OPTION_H
#define EPA2A_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum epa_option_type {
    EPA_OPTION_BOOL,
    EPA_OPTION_U32, /* .choices: names of some values, such as "auto" of UINT32_MAX (-1) */
    EPA_OPTION_U64,
    EPA_OPTION_REAL,     /* double; finite */
    EPA_OPTION_BYTES,    /* uint64_t; "64KiB", "1.5MiB", "2GiB" */
    EPA_OPTION_DURATION, /* uint64_t nanoseconds; "10us", "5s" */
    EPA_OPTION_STRING,   /* const char *, owned by the experiment */
    EPA_OPTION_CHOICE,   /* int, one of .choices */
    EPA_OPTION_U32_LIST, /* struct epa_u32_list, owned by the experiment */
};

struct epa_u32_list {
    const uint32_t *item;
    uint32_t n;
};

struct epa_choice {
    const char *name; /* NULL ends the list */
    int value;
    const char *help;
};

struct epa_option {
    const char *name; /* NULL ends the table */
    const char *help; /* one sentence, no full stop; goes to --help and the man page */
    enum epa_option_type type;
    size_t offset;
    uint64_t min, max;  /* of a number; max 0: no bound */
    double least, most; /* of a REAL; both 0: no bound */
    const struct epa_choice *choices;
    /* Values that `epa2a tune` tries, "1 2 4"; "*": all choices, or both of a BOOL; "cuda: " before
     * them: on GPUs alone. NULL: none, as the user has to know what it means. */
    const char *tune;
};

/* The struct that the options fill: its size, and its values before the first line of
 * YAML is read. Defaults are values of that struct, so help prints what code will use. */
struct epa_options {
    const struct epa_option *table;
    size_t size;
    const void *defaults;
};

/* offsetof() that does not compile (-Werror) when the field has another type. */
#define EPA_FIELD(ctype, T, field) (offsetof(T, field) + 0 * sizeof((ctype *)0 == &((T *)0)->field))

#define EPA_BOOL(T, field) .type = EPA_OPTION_BOOL, .offset = EPA_FIELD(bool, T, field)
#define EPA_U32(T, field) .type = EPA_OPTION_U32, .offset = EPA_FIELD(uint32_t, T, field)
#define EPA_U64(T, field) .type = EPA_OPTION_U64, .offset = EPA_FIELD(uint64_t, T, field)
#define EPA_REAL(T, field) .type = EPA_OPTION_REAL, .offset = EPA_FIELD(double, T, field)
#define EPA_BYTES(T, field) .type = EPA_OPTION_BYTES, .offset = EPA_FIELD(uint64_t, T, field)
#define EPA_DURATION(T, field) .type = EPA_OPTION_DURATION, .offset = EPA_FIELD(uint64_t, T, field)
#define EPA_STRING(T, field) .type = EPA_OPTION_STRING, .offset = EPA_FIELD(const char *, T, field)
#define EPA_U32_LIST(T, field) \
    .type = EPA_OPTION_U32_LIST, .offset = EPA_FIELD(struct epa_u32_list, T, field)
#define EPA_CHOICE(T, field) .type = EPA_OPTION_CHOICE, .offset = EPA_FIELD(int, T, field)

#endif
