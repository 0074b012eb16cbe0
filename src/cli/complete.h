/* What may stand where the cursor is, for the shells' scripts in completions/. */
#ifndef COMPLETE_H
#define COMPLETE_H

#include "base/text.h"
#include "cli/commands.h"
#include "plugin/registry.h"

/* A command line up to the cursor, and the lines that are told of it. */
struct completing {
    const struct command *command; /* NULL: none was named yet */
    const char **file, **set;      /* what stands before the cursor */
    uint32_t n_files, n_sets;
    char **plugin_path; /* absolute; ends with NULL */
    uint32_t n_plugin_paths;
    struct registry *registry; /* NULL until somebody wants a plugin */
    const char *whole, *word;  /* what is completed; `word` is the last part of it */
    struct text out;
};

/* Tells `word` with its description, if it begins as what is typed. */
__attribute__((format(printf, 3, 4))) void complete_offer(struct completing *, const char *help,
                                                          const char *fmt, ...);
/* Words with | between them. */
void complete_words(struct completing *, const char *words, size_t bytes);
/* Leaves it to the shell: files whose names end in one of `ends` ("yaml yml"; "": any). */
void complete_files(struct completing *, const char *ends);

/* All plugins, loaded; or those of names alone. n is 0 where there are none to be had. */
uint32_t complete_plugins(struct completing *, const struct registry_entry **out);
struct registry *complete_registry(struct completing *); /* NULL: there is none */

/* complete_keys.c: KEY=VALUE, for the experiment that files and --set make. */
void complete_keys(struct completing *);
/* Labels of the file's runs. */
void complete_runs(struct completing *);

/* `word`: the arguments of epa2a, the last of which is completed. Lines of candidates:
 *     CANDIDATE <tab> DESCRIPTION
 * and for what the shell knows itself, where BYTES of the word stand before its name:
 *     :files BYTES [END...]
 *     :folders BYTES
 */
void complete(const char *const *word, uint32_t n, struct text *out);

/* `epa2a __complete WORD...`: prints them. */
int complete_main(int argc, char **argv);

#endif
