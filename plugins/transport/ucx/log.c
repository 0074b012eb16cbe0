/* UCX's log messages, which UCX prints to standard output by default. */
#include "log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <ucs/config/global_opts.h>
#include <ucs/debug/log_def.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int muted; /* shared by ranks as threads; relaxed atomics */

/* UCX itself continues with messages to a log file of the user and with fatal messages. */
static ucs_log_func_rc_t print(const char *file, unsigned line, const char *function,
                               ucs_log_level_t level, const ucs_log_component_config_t *component,
                               const char *format, va_list args)
{
    char text[1024];

    (void)file;
    (void)line;
    (void)function;
    if (level <= ucs_global_opts.log_level_trigger || ucs_global_opts.log_file[0] != '\0')
        return UCS_LOG_FUNC_RC_CONTINUE;
    /* "invalid configuration": region.c sets values for transports that UCX may not have loaded. */
    if (__atomic_load_n(&muted, __ATOMIC_RELAXED) > 0 ||
        strncmp(format, "invalid configuration", 21) == 0)
        return UCS_LOG_FUNC_RC_STOP;
    if (level > component->log_level && level != UCS_LOG_LEVEL_PRINT)
        return UCS_LOG_FUNC_RC_STOP;
    vsnprintf(text, sizeof(text), format, args);
    fprintf(stderr, "UCX %s: %s\n", ucs_log_level_names[level], text);
    return UCS_LOG_FUNC_RC_STOP;
}

static void push(void)
{
    ucs_log_push_handler(print);
}

void log_to_stderr(void)
{
    pthread_once(&once, push);
}

void log_mute(bool mute)
{
    __atomic_fetch_add(&muted, mute ? 1 : -1, __ATOMIC_RELAXED);
}
