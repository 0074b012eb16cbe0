/* Top-level keys of a file that do not belong to the experiment. */
#include "experiment/batch_keys.h"

#include <string.h>

const struct batch_key batch_keys[] = {
    {"include", "another file, or model/NAME, whose keys are the base of this file"},
    {"runs", "named runs: {plain: {}, wide: {from: plain, moe.hidden: 8192}}"},
    {"matrix", "a run for each combination: {moe.topk: [4, 8], transport: [shm, ucx]}"},
    {"zip", "lists of one length, taken together: {ranks: [2, 4], moe.experts: [8, 16]}"},
    {"repeat", "how often each run runs"},
    {"baseline", "label or glob of the runs that ratios are over: baseline: '*ll_v1*'"},
    {0},
};

bool batch_is_key_of(const char *text, size_t bytes)
{
    for (const struct batch_key *k = batch_keys; k->name != NULL; k++)
        if (strlen(k->name) == bytes && memcmp(k->name, text, bytes) == 0)
            return true;
    return false;
}

bool batch_is_key(const char *key)
{
    return batch_is_key_of(key, strlen(key));
}
