/* What this machine is, beyond what reports have of it: limits, /dev/shm, huge pages, RDMA
 * ports, GPUs, networks, programs. */
#ifndef MACHINE_H
#define MACHINE_H

#include "report/facts.h"

enum { MACHINE_PORTS = 16, MACHINE_NETWORKS = 16, MACHINE_PROGRAMS = 3 };

struct machine_port {
    char device[32], state[24], link[24], rate[48]; /* "mlx5_0", "ACTIVE", "InfiniBand" */
    uint32_t port;
};

struct machine_network {
    char name[32];
    uint64_t megabits; /* 0: it does not say */
};

struct machine_program {
    char name[16], path[256], version[128]; /* path "": not on PATH */
};

struct machine {
    struct facts facts;
    char isas[64];         /* kernels that this CPU can run: "scalar, avx2" */
    bool virtual_machine;  /* says the CPU */
    double cores_quota;    /* of the cgroup, in cores; 0: none */
    uint32_t cores_online; /* of the machine; facts.cores are those that may be used */
    bool numa_balancing;

    uint64_t available_bytes; /* UINT64_MAX: not known */
    char available_by[64];    /* what limits it */
    uint64_t address_space;   /* RLIMIT_AS, UINT64_MAX: none; so are the next two */
    uint64_t locked_bytes;    /* RLIMIT_MEMLOCK */
    uint64_t files;           /* RLIMIT_NOFILE */
    uint64_t huge_bytes;      /* of a reserved huge page; 0: none can be had */
    uint64_t huge_pages, huge_free;

    uint64_t shm_bytes, shm_free; /* /dev/shm; bytes 0: not mounted */
    uint64_t left_bytes;          /* of files there that runs of UCX or MPI left */
    uint32_t left_files;
    char left_first[64];

    struct machine_port port[MACHINE_PORTS];
    struct machine_network network[MACHINE_NETWORKS];
    struct machine_program program[MACHINE_PROGRAMS];
    uint32_t ports, networks, programs;
    uint32_t gpus;        /* of NVIDIA, on PCI */
    char gpu_driver[128]; /* "": not loaded */
};

/* `root` stands before /proc, /sys and /dev: "" but in tests. Programs are looked for on
 * PATH whatever it is. Nothing fails: what a machine does not tell stays empty. */
void machine_collect(const char *root, struct machine *out);
void machine_finish(struct machine *);

const struct machine_program *machine_program(const struct machine *, const char *name);

#endif
