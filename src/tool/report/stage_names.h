/* Names of the stages of a document. */
#ifndef STAGE_NAMES_H
#define STAGE_NAMES_H

/* Calls `fn` once for each stage name in results or in a trace. A file that cannot be read has
 * none. */
void stage_names_each(const char *path, void (*fn)(void *arg, const char *name), void *arg);

#endif
