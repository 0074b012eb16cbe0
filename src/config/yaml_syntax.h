/* Where libyaml's marks are in the user's text, and its complaints in words. */
#ifndef YAML_SYNTAX_H
#define YAML_SYNTAX_H

#include <stdint.h>
#include <yaml.h>

#include "config/diag.h"

/* What is parsed: `source` from byte `shift` on, which are as many columns in its first
 * line that marks do not count. */
struct yaml_text {
    const char *file, *source;
    uint32_t shift;
};

/* `end` may be NULL: one column wide. */
struct source_location yaml_location(const struct yaml_text *, const yaml_mark_t *start,
                                     const yaml_mark_t *end);

/* Where byte `at` of a scalar's value stands, if all before it stands there as it is; else
 * the scalar's place. */
struct source_location yaml_location_in(const struct source_location *scalar, const char *value,
                                        size_t at);

/* Why the parser stopped. */
void yaml_tell_syntax(const struct yaml_text *, const yaml_parser_t *, struct diag *);

#endif
