/* The hardware of this machine, and findings about it. */
#ifndef DOCTOR_MACHINE_H
#define DOCTOR_MACHINE_H

#include "kernels/libraries.h"
#include "registry/registry.h"
#include "result/machine_facts.h"

struct arena;
struct session_facts;

/* Limits and free memory. UINT64_MAX: no limit, or unknown. */
struct machine_memory {
    uint64_t available_bytes, address_space_bytes, locked_bytes, open_files;
    char available_by[64];                      /* "": unknown */
    uint64_t huge_bytes, huge_pages, huge_free; /* reserved huge pages; size 0: unknown */
    uint64_t shm_bytes, shm_free_bytes;         /* of /dev/shm; size 0: unknown */
    uint64_t left_files, left_bytes;            /* of UCX and MPI in /dev/shm */
    char left_first[64];                        /* name of one of these files */
};

/* A port of an RDMA device; "": unknown. */
struct machine_port {
    const char *device, *state, *link, *rate;
    uint64_t number;
};

struct machine_network {
    const char *name;
    uint64_t megabits; /* 0: unknown */
};

/* A program that starts ranks. */
struct machine_program {
    const char *name, *path;
    const char *version; /* "": unknown */
};

struct machine {
    struct machine_facts facts;
    double cores_quota;   /* NaN: no quota */
    int64_t cores_online; /* -1: unknown */
    bool virtual, numa_balancing;
    const char *isa[8];
    uint32_t n_isas;
    struct machine_memory memory;
    struct machine_port *port;
    const char **gpu;       /* addresses on the PCI bus */
    const char *gpu_driver; /* "": none */
    struct machine_network *network;
    struct machine_program *program;
    struct library_found library[LIBRARY_IDS];
    uint32_t n_ports, n_gpus, n_networks, n_programs, n_libraries;
};

/* Reads the machine. `root` is the prefix of /proc, /sys and /dev: "" except in tests. Programs are
 * searched on PATH in any case. The function does not fail: unknown values are marked. */
void machine_collect(const char *root, struct arena *, struct machine *out);

/* Finds the matrix libraries on this machine; returns their number. */
uint32_t machine_libraries(struct library_found out[LIBRARY_IDS]);

/* A problem of the machine, or a missing part, and its remedy; fix "": none. */
struct finding {
    const char *what, *fix;
};

enum { FINDINGS = 48 };

struct findings {
    struct finding warning[FINDINGS], missing[FINDINGS];
    uint32_t n_warnings, n_missing;
};

/* A plugin with its use, or the reason why it cannot be used. */
struct examined {
    enum epa_plugin_kind kind;
    const char *name, *text; /* text "": none */
    bool loaded, usable;
    uint32_t ranks;                    /* that measured the links */
    double bytes_per_ns, latency_ns;   /* of the links; 0: unknown */
    const struct session_facts *facts; /* NULL: the plugin was not opened */
};

/* Finds the problems of a machine with those `n` plugins, of the `n_entries` entries of the registry.
 * `no_plugins`: folders without plugins; NULL: there are plugins. */
void machine_judge(const struct machine *, const struct examined *, uint32_t n,
                   const char *no_plugins, const struct registry_entry *, uint32_t n_entries,
                   struct arena *, struct findings *out);

#endif
