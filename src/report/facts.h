/* The machine, the build, the environment and the user's notes that a result came from. */
#ifndef FACTS_H
#define FACTS_H

#include <stdbool.h>
#include <stdint.h>

enum { FACTS_ENVIRONMENT = 64 };

/* What cannot be read is "" or 0. */
struct facts {
    char host[65], kernel[136], arch[32], cpu[128], governor[32], clocksource[32];
    char isa[32], isa_refused[32]; /* EPA2A_ISA where this CPU or program lacks it */
    uint32_t cores;                /* that this process may use */
    uint32_t sockets, numa_nodes, threads_per_core;
    uint64_t l1d_bytes, l2_bytes, l3_bytes, memory_bytes;
    char huge_pages[32], shmem_huge_pages[32];
    char compiler[64], build_type[32], sanitizers[32], version[32], libc[48];
    char git[64];                  /* the commit it was built from */
    bool debug_build;              /* asserts, sanitizers or -O0: not to be called a benchmark */
    double load_average, timer_ns; /* timer: the smallest step of the clock that was seen */
    char *environment[FACTS_ENVIRONMENT]; /* "KEY=value", from an allow-list only; owned */
    uint32_t n_environment;
    const char *const *context; /* "NAME=TEXT" that the user noted; not owned */
    uint32_t n_context;
};

void facts_collect(struct facts *out);
void facts_finish(struct facts *);

/* `root` stands before /proc and /sys: "" but in tests. */
void facts_collect_from(const char *root, struct facts *out);

#endif
