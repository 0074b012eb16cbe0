/* Loaded into the command: its ranks are killed before they can say anything. */
#include <pthread.h>
#include <signal.h>

static void die(void)
{
    raise(SIGKILL);
}

__attribute__((constructor)) static void load(void)
{
    pthread_atfork(NULL, NULL, die);
}
