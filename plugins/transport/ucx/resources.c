/* Resources that UCX needs and whose absence it does not report: UCX 1.13 aborts the process without
 * its thread or a file descriptor for a connection, and tries to bind a listener for ever without a
 * free port. All ranks hold these resources at the same time before the first call of UCX, so that
 * the failed rank names the limit. */
#include "resources.h"

#include <errno.h>
#include <ifaddrs.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    FILES = 12,        /* of a rank without connections, at its peak */
    FILES_OF_PEER = 2, /* both ranks of a pair may connect at the same time */
    THREADS_MOST = 2,  /* the thread of UCX and the helper */
    PORTS_MOST = 2,    /* the listener and a connection */
};

struct held {
    int *file;
    uint32_t files, threads, ports;
    int port[PORTS_MOST];
    pthread_t thread[THREADS_MOST];
    sem_t end;
};

/* Number of resources that a rank lacks; all ranks exchange it. */
struct lack {
    int32_t pid;
    uint32_t files, threads, ports;
};

static bool may_use_tcp(const struct ucx *u)
{
    const char *tls = u->config.tls[0] != '\0' ? u->config.tls : getenv("UCX_TLS");

    if (tls == NULL)
        return u->boot->world.interface != NULL;
    return tls[0] == '^' ? strstr(tls, "tcp") == NULL
                         : strstr(tls, "tcp") != NULL || strstr(tls, "all") != NULL;
}

/* Raises the soft limit by `more`, as far as the hard limit permits. */
static bool raise_file_limit(uint32_t more)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max)
        return false;
    limit.rlim_cur =
        limit.rlim_max - limit.rlim_cur < more ? limit.rlim_max : limit.rlim_cur + more;
    return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

static uint32_t hold_files(struct held *held, uint32_t n)
{
    held->file = calloc(n, sizeof(*held->file));
    while (held->file != NULL && held->files < n) {
        int file = eventfd(0, EFD_CLOEXEC);

        if (file >= 0)
            held->file[held->files++] = file;
        else if (errno != EMFILE || !raise_file_limit(n - held->files))
            break;
    }
    return n - held->files;
}

static void *wait_for_end(void *arg)
{
    struct held *held = arg;

    while (sem_wait(&held->end) != 0)
        continue;
    return NULL;
}

static uint32_t hold_threads(struct held *held, uint32_t n)
{
    sigset_t all, before;

    sigfillset(&all); /* the launcher handles signals */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    while (held->threads < n &&
           pthread_create(&held->thread[held->threads], NULL, wait_for_end, held) == 0)
        held->threads++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return n - held->threads;
}

/* Address of the interface to which UCX binds its listener; any address without one. */
static struct sockaddr_in address_of(const char *interface)
{
    struct sockaddr_in out = {.sin_family = AF_INET};
    struct ifaddrs *all;

    if (interface == NULL)
        interface = "lo";
    if (getifaddrs(&all) != 0)
        return out;
    for (const struct ifaddrs *one = all; one != NULL; one = one->ifa_next)
        if (one->ifa_addr != NULL && one->ifa_addr->sa_family == AF_INET &&
            strcmp(one->ifa_name, interface) == 0)
            memcpy(&out, one->ifa_addr, sizeof(out));
    freeifaddrs(all);
    out.sin_port = 0;
    return out;
}

/* A port is lacking only if the kernel has no free one. UCX reports other errors itself. */
static uint32_t hold_ports(struct held *held, uint32_t n, const char *interface)
{
    const struct sockaddr_in address = address_of(interface);

    for (uint32_t i = 0; i < n; i++) {
        held->port[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (held->port[i] < 0)
            break;
        held->ports++;
        if (bind(held->port[i], (const void *)&address, sizeof(address)) != 0 &&
            errno == EADDRINUSE)
            return n - i;
    }
    return 0;
}

static void release(struct held *held)
{
    for (uint32_t i = 0; i < held->threads; i++)
        sem_post(&held->end);
    for (uint32_t i = 0; i < held->threads; i++)
        pthread_join(held->thread[i], NULL);
    for (uint32_t i = 0; i < held->files; i++)
        close(held->file[i]);
    for (uint32_t i = 0; i < held->ports; i++)
        close(held->port[i]);
    free(held->file);
    sem_destroy(&held->end);
}

/* Sums the missing resources: descriptors of this process, threads and ports of this node. */
static struct lack sum_lacks(const struct ucx *u, const struct lack *all)
{
    struct lack sum = {0};

    for (uint32_t r = 0; r < u->base.size; r++) {
        if (!epa_same_node(&u->boot->world, r))
            continue;
        sum.files += all[r].pid == getpid() ? all[r].files : 0;
        sum.threads += all[r].threads;
        sum.ports += all[r].ports;
    }
    return sum;
}

static enum epa_status explain_files(const struct ucx *u, uint32_t lacking, struct epa_error *err)
{
    struct rlimit limit = {0};

    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return epa_fail(err, EPA_ERR_SYSTEM,
                    "ucx: rank %u has too few file descriptors for UCX: RLIMIT_NOFILE is %" PRIu64
                    " and needs to be %" PRIu64 "; raise it: `ulimit -n %" PRIu64 "`",
                    u->base.rank, (uint64_t)limit.rlim_cur, (uint64_t)limit.rlim_cur + lacking,
                    (uint64_t)limit.rlim_cur + lacking);
}

static enum epa_status explain_threads(const struct ucx *u, uint32_t lacking, struct epa_error *err)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

    (void)getrlimit(RLIMIT_NPROC, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        return epa_fail_errno(
            err, EPA_ERR_SYSTEM, EAGAIN,
            "ucx: rank %u cannot create a thread for UCX: %s; ranks of this node need "
            "%u more: raise pids.max of the cgroup or kernel.threads-max",
            u->base.rank, strerror(EAGAIN), lacking);
    return epa_fail(err, EPA_ERR_SYSTEM,
                    "ucx: rank %u cannot create a thread for UCX: RLIMIT_NPROC is %" PRIu64
                    " and needs to be %" PRIu64 "; raise it: `ulimit -u %" PRIu64 "`",
                    u->base.rank, (uint64_t)limit.rlim_cur, (uint64_t)limit.rlim_cur + lacking,
                    (uint64_t)limit.rlim_cur + lacking);
}

static enum epa_status explain_ports(const struct ucx *u, uint32_t lacking, struct epa_error *err)
{
    char range[64] = "unknown\n";
    FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");

    if (file != NULL) {
        if (fgets(range, sizeof(range), file) == NULL)
            range[0] = '\0';
        fclose(file);
    }
    for (char *c = range; *c != '\0'; c++)
        *c = *c == '\t' ? ' ' : *c == '\n' ? '\0' : *c;
    return epa_fail(err, EPA_ERR_SYSTEM,
                    "ucx: rank %u has no free TCP port for UCX: ranks of this node need %u more "
                    "than net.ipv4.ip_local_port_range (%s) has free; widen this range",
                    u->base.rank, lacking, range);
}

enum epa_status limits_check(struct ucx *u, struct epa_error *err)
{
    bool tcp = may_use_tcp(u);
    uint32_t files = FILES + (tcp ? FILES_OF_PEER * (u->base.size - 1) : 0);
    bool helper =
        u->config.progress == PROGRESS_THREAD || (u->config.progress == PROGRESS_AUTO && tcp);
    struct held held = {.files = 0};
    struct lack mine = {.pid = (int32_t)getpid()}, sum;
    struct lack *all = calloc(u->base.size, sizeof(*all));
    bool complete = true;
    enum epa_status status;

    if (all == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ucx: no memory for %u ranks", u->base.size);
    sem_init(&held.end, 0, 0);
    mine.threads = hold_threads(&held, helper ? 2 : 1);
    mine.ports = tcp ? hold_ports(&held, PORTS_MOST, u->boot->world.interface) : 0;
    mine.files = hold_files(&held, files > held.ports ? files - held.ports : 0);
    status = u->boot->allgather(u->boot, &mine, sizeof(mine), all);
    release(&held);
    sum = sum_lacks(u, all);
    for (uint32_t r = 0; r < u->base.size && status == EPA_OK; r++)
        complete = complete && all[r].files + all[r].threads + all[r].ports == 0;
    free(all);
    if (status != EPA_OK)
        u->boot->explain(u->boot, err);
    else if (mine.threads > 0)
        status = explain_threads(u, sum.threads, err);
    else if (mine.files > 0)
        status = explain_files(u, sum.files, err);
    else if (mine.ports > 0)
        status = explain_ports(u, sum.ports, err);
    else if (!complete)
        status = EPA_ERR_ABORTED; /* the failed rank reports the reason */
    return status;
}
