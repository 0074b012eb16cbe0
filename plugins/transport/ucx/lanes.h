/* What UCX says of an endpoint, in the text of ucp_ep_print_info(): the only place where
 * version 1.13 tells which transport carries what. */
#ifndef UCX_LANES_H
#define UCX_LANES_H

#include <stdbool.h>
#include <stddef.h>

enum { LANES_NAMES = 96 };

struct lanes {
    char names[LANES_NAMES]; /* "posix/memory", "sysv/memory, posix/memory", "tcp/eth0" */
    bool puts;               /* by the transport; else a message that the peer executes */
    bool additions;          /* same */
};

/* What it does not understand it takes for emulated, which is slower and always right. */
struct lanes lanes_read(const char *text);

/* What UCX may choose from here, of the text of ucp_context_print_info(): "self/memory0,
 * tcp/eth0, posix/memory"; what there is no room for is left out. */
void lanes_choices(const char *text, char *out, size_t room);

#endif
