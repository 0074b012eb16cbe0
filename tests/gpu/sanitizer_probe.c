/* Does on purpose what a tool of compute-sanitizer must find, so that sanitizer.sh knows that the
 * tool looks: in this process, or in one that it forks, as the ranks of epa2a are.
 *
 *   gpu-sanitizer-probe memcheck|racecheck|initcheck thread|fork */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sanitizer_probe.h"

static const struct {
    const char *name;
    void (*run)(void);
} tools[] = {
    {"memcheck", probe_memcheck},
    {"racecheck", probe_racecheck},
    {"initcheck", probe_initcheck},
};

static void (*find(const char *name))(void)
{
    for (size_t i = 0; i < sizeof(tools) / sizeof(tools[0]); i++) {
        if (strcmp(tools[i].name, name) == 0)
            return tools[i].run;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    void (*probe)(void) = argc == 3 ? find(argv[1]) : NULL;
    pid_t child;

    if (probe == NULL) {
        fprintf(stderr, "usage: %s memcheck|racecheck|initcheck thread|fork\n", argv[0]);
        return 2;
    }
    if (strcmp(argv[2], "fork") != 0) {
        probe();
        return 0;
    }
    child = fork();
    if (child == 0) {
        probe();
        _exit(0);
    }
    return child > 0 && waitpid(child, NULL, 0) == child ? 0 : 1;
}
