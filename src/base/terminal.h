/* What a terminal gets to see: text, and colours of our own. Names, paths, messages of libraries
 * and of other hosts may hold sequences that move its cursor, set its title, type on its keyboard
 * or reverse what is read. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes and code point of the character at `s`; 0: it is not UTF-8. */
size_t text_decode(const char *s, uint32_t *out);

/* In place, makes a '?' of each control character (C0 and C1, whole or as UTF-8), of each mark that
 * changes the direction of writing, and of each byte that is not UTF-8; new lines and tabs stay if
 * `lines`. Returns the bytes that are left. */
size_t terminal_clean(char *text, size_t bytes, bool lines);

/* From here on what goes to stdout and stderr passes terminal_clean() where that is a terminal.
 * Once, before anything is printed. */
void terminal_guard(void);

/* What stands for a sequence of ours of the form "\033[31m" in text for a guarded stream, and is of
 * this process alone: nobody else can have it in a file. `number` < TERMINAL_MARKS. */
enum { TERMINAL_MARKS = 8 };
const char *terminal_mark(int number, const char *sequence);

#endif
