/* Texts of numbers, sizes, durations and booleans, and the values that they denote. The functions
 * allocate no memory and do not depend on the locale. */
#ifndef OPTIONS_VALUE_H
#define OPTIONS_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reason why a text is rejected, phrased to follow it ("'4x' is not a whole number"), and a
 * suggestion; hint is "" if only the type can be suggested. */
struct value_error {
    char what[160], hint[256];
};

bool value_u64(const char *text, uint64_t *out, struct value_error *);
bool value_real(const char *text, double *out, struct value_error *); /* 0.5 of "50%" */
bool value_bool(const char *text, bool *out, struct value_error *);
bool value_bytes(const char *text, uint64_t *out, struct value_error *);    /* 65536 of "64KiB" */
bool value_duration(const char *text, uint64_t *out, struct value_error *); /* ns of "10us" */

/* Write a text that reads back as the same value. Return buf. */
char *value_bytes_text(char *buf, size_t room, uint64_t bytes);
char *value_duration_text(char *buf, size_t room, uint64_t ns);
/* The same for a real number: the shortest text. */
char *value_real_text(char *buf, size_t room, double value);

#endif
