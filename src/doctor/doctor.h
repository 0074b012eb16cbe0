/* `epa2a doctor`: what this machine has, what plugins can do with it, what its links give, and
 * what is wrong or missing with the command that mends it. */
#ifndef DOCTOR_H
#define DOCTOR_H

#include <stdio.h>

#include <epa2a/algorithm.h>

#include "base/json.h"
#include "report/facts.h"
#include "session/session.h"

enum {
    DOCTOR_PLUGINS = 48,
    DOCTOR_FINDINGS = 40,
    DOCTOR_SCHEMA = 2,
    MACHINE_PORTS = 16,
    MACHINE_NETWORKS = 16,
    MACHINE_PROGRAMS = 3,
};

/* ---- machine.c: what this machine is, beyond what reports have of it ---- */

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

/* `root` is put before /proc, /sys and /dev: "" but in tests. Programs are looked for on
 * PATH whatever it is. Nothing fails: what a machine does not tell stays empty. */
void machine_collect(const char *root, struct machine *out);
void machine_finish(struct machine *);

const struct machine_program *machine_program(const struct machine *, const char *name);

/* ---- doctor.c ---- */

struct doctor_plugin {
    enum epa_plugin_kind kind;
    char name[40];
    bool loaded, usable;
    char text[512];             /* how, or why not */
    enum epa_status status;     /* why not */
    uint32_t ranks;             /* that it was opened on; 0: on none */
    struct peak peak;           /* of the links, of transports; zeros: not measured */
    struct session_facts facts; /* what rank 0 says of itself */
};

/* Something that makes runs slower, noisier or impossible, or that is not there. */
struct doctor_finding {
    bool missing;
    char what[320], fix[320]; /* fix "": nothing can be done about it */
};

struct doctor {
    struct machine machine;
    struct doctor_plugin plugin[DOCTOR_PLUGINS];
    struct doctor_finding finding[DOCTOR_FINDINGS];
    uint32_t plugins, findings;
    char empty[320];     /* which folders hold no plugins; "": none */
    enum epa_status shm; /* EPA_OK: ranks of this host can talk */
};

/* Plugins that are not there as they should be are no failure: they are findings. `quick`: links
 * are not measured. */
enum epa_status doctor_examine(const char *const *plugin_path, bool quick, struct doctor **out,
                               struct epa_error *);
void doctor_destroy(struct doctor *);

const struct doctor_plugin *doctor_plugin(const struct doctor *, enum epa_plugin_kind,
                                          const char *name);

/* Fills `finding` from all the rest. */
void doctor_judge(struct doctor *);

/* print.c: as a table for people; as JSON, whose shape tests/cli/doctor.py has. */
void doctor_print(FILE *, const struct doctor *);
json_t *doctor_json(const struct doctor *); /* NULL: no memory */

#endif
