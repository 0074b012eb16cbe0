/* The text of a YAML file: where libyaml's marks are in it, its complaints in words, and
 * variables of the environment in its values. */
#ifndef YAML_TEXT_H
#define YAML_TEXT_H

#include <yaml.h>

#include "config/tree.h"

/* What is parsed: `source` from byte `shift` on, which are as many columns in its first
 * line that marks do not count. */
struct yaml_text {
    const char *file, *source;
    uint32_t shift;
};

/* `end` may be NULL: one column wide. */
struct source_location yaml_location(const struct yaml_text *, const yaml_mark_t *start,
                                     const yaml_mark_t *end);

/* Why the parser stopped. */
void yaml_tell_syntax(const struct yaml_text *, const yaml_parser_t *, struct diag *);

/* Replaces ${NAME} and ${NAME:-default} in the text of a scalar that was just read; $${ is a
 * literal ${. What is put in is not looked at again and stays text: it makes no lists or maps. The
 * node notes which variables there were. False: told why not, and the scalar is marked as
 * refused. */
bool expand_scalar(struct arena *, struct diag *, struct node *);

/* As a value of a file has to be written to come out as `text`. */
void expand_escape(const char *text, struct text *out);

#endif
