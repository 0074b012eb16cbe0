/* All fuzzers in one program:
 *       fuzz list
 *       fuzz TARGET [OPTION OF LIBFUZZER...] [NEW-CORPUS [SEEDS]] */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

static const struct target {
    const char *name;
    void (*run)(const uint8_t *data, size_t bytes);
} targets[] = {
    {"yaml", fuzz_yaml},         {"options", fuzz_options}, {"rendezvous", fuzz_rendezvous},
    {"messages", fuzz_messages}, {"results", fuzz_results}, {"trace", fuzz_trace},
    {"npy", fuzz_npy},           {"jsonl", fuzz_jsonl},
};

static const struct target *target;

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    const char *name = *argc > 1 ? (*argv)[1] : "list";

    for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++) {
        if (strcmp(name, "list") == 0)
            printf("%s\n", targets[i].name);
        else if (strcmp(name, targets[i].name) == 0)
            target = &targets[i];
    }
    if (target == NULL)
        exit(strcmp(name, "list") == 0 ? 0 : 2);
    for (int i = 1; i < *argc; i++) /* includes the final NULL */
        (*argv)[i] = (*argv)[i + 1];
    --*argc;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    target->run(data, bytes);
    return 0;
}

const char *fuzz_file(const void *data, size_t bytes)
{
    static _Thread_local int fd = -1;
    static _Thread_local char path[64];

    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    demand(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && lseek(fd, 0, SEEK_SET) == 0 &&
           write(fd, data, bytes) == (ssize_t)bytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return path;
}
