/* Source locations of the values of an experiment, and of the values that a message is about. */
#include "config/origin.h"

#include <stdio.h>
#include <string.h>

#include "config/experiment.h"
#include "config/node.h"
#include "options/option.h"

const struct node *origin_find(const struct experiment *x, const char *key)
{
    const char *dot = strchr(key, '.');
    char section[64];

    if (x->origin == NULL || dot == NULL) /* built in code, not read from a file */
        return node_find(x->origin, key);
    snprintf(section, sizeof(section), "%.*s", (int)(dot - key), key);
    return node_find(node_find(x->origin, section), dot + 1);
}

/* Ways in which a message may name a key, most reliable first. */
enum spelling {
    WITH_SECTION,    /* moe.hidden */
    OF_ALGORITHM,    /* "mode: shared", "tail_workers (2)": of the algorithm's section */
    AT_TOP,          /* "ranks_per_node: 2" */
    NAMED,           /* "transport 'shm'" */
    OF_ALGORITHM_IN, /* anywhere: "profile is for" */
    AT_TOP_IN,       /* "ranks" */
    SPELLINGS,
};

/* Returns the key that `word` names, with the text that follows it, if it names one. */
static const struct node *find_spelt(const struct experiment *x, const char *word, size_t n,
                                     enum spelling how)
{
    static const char *const before[SPELLINGS] = {
        [OF_ALGORITHM] = "algorithm.", [OF_ALGORITHM_IN] = "algorithm."};
    const char *end = word + n;
    bool dotted = memchr(word, '.', n) != NULL;
    char key[128];

    if (dotted != (how == WITH_SECTION) ||
        ((how == OF_ALGORITHM || how == AT_TOP) && *end != ':' && strncmp(end, " (", 2) != 0) ||
        (how == NAMED && strncmp(end, " '", 2) != 0))
        return NULL;
    snprintf(key, sizeof(key), "%s%.*s%s", before[how] != NULL ? before[how] : "", (int)n, word,
             how == NAMED ? ".name" : "");
    if ((how == AT_TOP || how == AT_TOP_IN) && option_find(&experiment_options, key) == NULL)
        return NULL;
    return origin_find(x, key);
}

static const struct node *find_in(const struct experiment *x, const char *sentence,
                                  enum spelling how, bool files)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_.";

    for (const char *at = sentence + strcspn(sentence, letters); *at != '\0';
         at += strcspn(at, letters)) {
        size_t n = strspn(at, letters), stop = at[n - 1] == '.';
        const struct node *node = n > stop ? find_spelt(x, at, n - stop, how) : NULL;

        if (node != NULL && !(files && strcmp(node->location.file, "--set") == 0))
            return node;
        at += n;
    }
    return NULL;
}

const struct node *origin_of(const struct experiment *x, const char *sentence)
{
    return find_in(x, sentence, WITH_SECTION, true);
}

/* A message about the contents of a file begins with its path. */
static const struct node *find_file(const struct experiment *x, const char *sentence)
{
    const struct routing_options *r = &x->routing;

    if (r->path != NULL && strncmp(sentence, r->path, strlen(r->path)) == 0)
        return origin_find(x, "routing.path");
    if (r->hidden_states != NULL &&
        strncmp(sentence, r->hidden_states, strlen(r->hidden_states)) == 0)
        return origin_find(x, "routing.hidden_states");
    return NULL;
}

struct source_location origin_of_refusal(const struct experiment *x, const char *sentence)
{
    const struct node *node = find_file(x, sentence);

    for (enum spelling how = WITH_SECTION; node == NULL && how < SPELLINGS; how++)
        node = find_in(x, sentence, how, false);
    if (node == NULL)
        node = origin_find(x, "algorithm.name");
    return node != NULL ? node->location : (struct source_location){.file = x->file};
}
