/* Does on purpose what a tool of compute-sanitizer must find, so that sanitizer.sh knows that the
 * tool looks: in this process, or in one that it forks, as the ranks of epa2a are.
 *
 *   gpu-sanitizer-probe memcheck|racecheck|initcheck thread|fork */
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void probe(const char *tool); /* sanitizer_probe_kernels.cu */

int main(int argc, char **argv)
{
    pid_t child;

    if (argc != 3) {
        fprintf(stderr, "usage: %s memcheck|racecheck|initcheck thread|fork\n", argv[0]);
        return 2;
    }
    child = strcmp(argv[2], "fork") == 0 ? fork() : 0;
    if (child == 0)
        probe(argv[1]);
    return child == 0 || waitpid(child, NULL, 0) == child ? 0 : 1;
}
