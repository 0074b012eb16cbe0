/* Values as people write them in YAML, read strictly: all of the text or nothing. */
#ifndef VALUE_H
#define VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What is wrong with a text, to stand behind it ("'4x' is not a whole number"), and what to
 * write instead; hint is "" where nothing better is known than the type. */
struct value_error {
    char what[96], hint[256];
};

bool value_u64(const char *text, uint64_t *out, struct value_error *);
bool value_real(const char *text, double *out, struct value_error *); /* 50% is 0.5 */
bool value_bool(const char *text, bool *out, struct value_error *);
bool value_bytes(const char *text, uint64_t *out, struct value_error *);    /* 64KiB */
bool value_duration(const char *text, uint64_t *out, struct value_error *); /* ns of 10us */

/* Texts that read back as the same value. Return buf. */
char *value_bytes_text(char *buf, size_t room, uint64_t bytes);
char *value_duration_text(char *buf, size_t room, uint64_t ns);
char *value_real_text(char *buf, size_t room, double value);

#endif
