/* The machine and the build of this program: read once at the start, from /proc, /sys and the
 * compiler. */
#ifndef MACHINE_FACTS_H
#define MACHINE_FACTS_H

#include <stdbool.h>
#include <stdint.h>

/* "": an unreadable text; 0: an unreadable number. */
struct machine_facts {
    char host[65], kernel[140], arch[65], cpu[128], clocksource[64], governor[64];
    char huge_pages[32], shmem_huge_pages[32];
    uint32_t cores; /* that this process may use */
    uint64_t sockets, numa_nodes, threads_per_core, memory_bytes;
    uint64_t cache_bytes[4]; /* of levels 1 (data) to 3; [0] is unused */
    double timer_ns;         /* least step of the clock */
    double load_average;
    struct build_facts {
        const char *version, *git, *compiler, *type, *sanitizers, *libc, *isa;
        const char *isa_refused; /* EPA2A_ISA that this CPU lacks; NULL: none */
        bool debug;
    } build;
};

/* `root` is the prefix of /proc and /sys: "" except in tests. */
void machine_facts_read(const char *root, struct machine_facts *out);
/* Returns the facts of this build alone. */
struct build_facts build_facts(void);

#endif
