/* Starts a rank's process and relays its output. A rank dies with its parent (PR_SET_PDEATHSIG), leaves
 * no file, and records its status in the control page: a rank that exits without this record has died,
 * for any exit code.
 *
 * The relay writes each line of a rank in one write, so that lines of ranks do not mix; it splits lines
 * longer than its buffer. A pipe keeps its contents after the death of the writer, so the relay also
 * prints the last output of a killed rank. */
#include "launch/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/text.h"

enum {
    TURN_READS = 16, /* reads of a rank per turn: it may write faster than the relay reads */
    FINISH_READS =
        256, /* more than a pipe holds; a limit, since a grandchild may continue to write */
    FULL_WAIT_MS = 100, /* wait for room in standard error */
};

/* ---- output ---- */

/* Writes to standard error in pieces that do not block if poll() reports room. The relay drops output
 * rather than delay the ranks. */
static void write_output(struct relay *relay, char *data, size_t bytes)
{
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};

    /* The text may reach a terminal, now or later from a file. */
    bytes = terminal_clean(data, bytes, true);
    if (relay->asked != NULL && relay->asked->poll_launch != NULL)
        (void)relay->asked->poll_launch(relay->asked->poll_arg, EPA_POLL_PRINTING);
    while (bytes > 0) {
        ssize_t n;

        relay->unread = poll(&out, 1, relay->unread ? 0 : FULL_WAIT_MS) <= 0;
        if (relay->unread)
            return;
        n = write(STDERR_FILENO, data, bytes < PIPE_BUF ? bytes : PIPE_BUF);
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
            return;
        }
    }
}

static void write_line(struct relay *relay)
{
    size_t bytes = relay->head + relay->held;

    relay->line[bytes] = '\n';
    write_output(relay, relay->line, bytes + 1);
    relay->held = 0;
}

static void add_to_line(struct relay *relay, const char *data, size_t bytes)
{
    size_t room = sizeof(relay->line) - 1 - relay->head;

    while (bytes > 0) {
        const char *end = memchr(data, '\n', bytes);
        size_t n = end != NULL ? (size_t)(end - data) : bytes;
        bool whole = n <= room - relay->held;

        if (!whole)
            n = room - relay->held;
        memcpy(relay->line + relay->head + relay->held, data, n);
        relay->held += n;
        data += n;
        bytes -= n;
        if (whole && end == NULL)
            return;
        write_line(relay);
        if (whole) {
            data++;
            bytes--;
        }
    }
}

static void read_pipe(struct relay *relay, uint32_t reads)
{
    char data[4096];

    for (uint32_t i = 0; i < reads && relay->from >= 0; i++) {
        ssize_t n = read(relay->from, data, sizeof(data));

        if (n > 0 && relay->prefix) {
            add_to_line(relay, data, (size_t)n);
        } else if (n > 0) {
            write_output(relay, data, (size_t)n);
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else if (n == 0 || errno != EINTR) {
            close(relay->from);
            relay->from = -1;
        }
    }
}

void relay_init(struct relay *out, int from, uint32_t rank, bool prefix)
{
    out->from = from;
    out->prefix = prefix;
    out->held = 0;
    out->unread = false;
    out->asked = NULL;
    out->head = (size_t)snprintf(out->line, sizeof(out->line), "[rank %u] ", rank);
}

void relay_turn(struct relay *relay)
{
    read_pipe(relay, TURN_READS);
}

void relay_finish(struct relay *relay)
{
    read_pipe(relay, FINISH_READS);
    if (relay->held > 0)
        write_line(relay);
    close_open(relay->from);
    relay->from = -1;
}

/* ---- processes ---- */

/* Exists in builds with LeakSanitizer only: _exit() would skip its check. */
extern void __lsan_do_leak_check(void) __attribute__((weak));

int process_code(enum epa_status status)
{
    return (int)((0u - (unsigned)status) & 0xffu);
}

/* Sends the output to the parent, closes the input, and ignores the signals of the terminal: they reach
 * ranks as well, but the parent handles them. */
static void detach_child(int output)
{
    int null;

    stdout_leave();
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    if (output > STDERR_FILENO)
        close(output);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0)
        close(STDIN_FILENO);
    if (null > STDERR_FILENO)
        close(null);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGUSR1, SIG_IGN); /* requests the status of ranks from the parent */
}

_Noreturn static void run_child(int (*run)(void *arg), void *arg, int output, pid_t parent)
{
    int code;

    /* A parent that died before prctl() sends no signal; getppid() then returns another process. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    detach_child(output);
    code = run(arg);
    fflush(stdout);
    fflush(stderr);
    if (__lsan_do_leak_check != NULL)
        __lsan_do_leak_check();
    _exit(code); /* not exit(): the exit handlers belong to the parent */
}

void process_init(struct process *out)
{
    *out = (struct process){.pidfd = -1};
    out->relay.from = -1;
}

enum epa_status process_start(struct process *process, uint32_t rank, bool prefix,
                              int (*run)(void *arg), void *arg, struct epa_error *err)
{
    pid_t parent = getpid(), pid;
    int ends[2], failed;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "pipe for the output of rank %u: %s", rank,
                        strerror(errno));
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    process_init(process);
    relay_init(&process->relay, ends[0], rank, prefix);
    pid = fork();
    failed = errno;
    if (pid == 0)
        run_child(run, arg, ends[1], parent);
    close(ends[1]);
    if (pid < 0) {
        relay_finish(&process->relay);
        return epa_fail(err, EPA_ERR_SYSTEM, "fork of rank %u: %s%s", rank, strerror(failed),
                        process_limit(failed));
    }
    process->pid = pid;
    process->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    return EPA_OK;
}

void process_close_inherited(const struct process *process)
{
    close_open(process->pidfd);
    close_open(process->relay.from);
}

void process_kill(struct process *process)
{
    if (process->pid != 0 && !process->killed)
        process->killed = kill(process->pid, SIGKILL) == 0;
}

bool process_ended(struct process *process, enum epa_status word, int *code)
{
    pid_t got = waitpid(process->pid, code, WNOHANG);

    if (got == 0 || (got < 0 && errno == EINTR))
        return false;
    if (got < 0) /* with SIGCHLD ignored the kernel has reaped it: the recorded status remains */
        *code = process_code(word) << 8;
    return true;
}

bool process_wait(struct process *process, uint32_t ms)
{
    uint64_t limit_ns = ms * UINT64_C(1000000), begun_ns = 0, waited_ns = 0;
    int code;

    while (!process_ended(process, EPA_OK, &code)) {
        relay_turn(&process->relay);
        waited_ns = epa_waited_ns(&begun_ns, waited_ns, limit_ns);
        if (waited_ns > limit_ns)
            process_kill(process);
        (void)poll(NULL, 0, 1);
    }
    return !process->killed;
}

void process_finish(struct process *process)
{
    relay_finish(&process->relay);
    close_open(process->pidfd);
    process_init(process);
}

/* ---- the rank of this process ---- */

/* Each launcher has a set of variables that names the rank and the size of the world. A process may
 * have several sets: launchers nest, and a shell or a notebook leaves variables behind. A set of one
 * rank counts only if no set has more. Of sets with several ranks the first in the table counts:
 * mpirun and torchrun run within Slurm steps, and a pod numbers its nodes by RANK and WORLD_SIZE.
 *
 * RANK and WORLD_SIZE alone may count nodes, and Slurm's variables stay behind in shells of a job:
 * a set has variables that must be set beside rank and size. Ranks find out which of them share a
 * host when they connect, so no set needs LOCAL_RANK. */

struct set {
    const char *name;
    const char *rank, *size;
    const char *also[2]; /* further required variables; or NULL */
    const char *local_size;
    const char *hosts; /* number of hosts; with 1 all ranks are local */
    const char *id[2]; /* variables that together name the job */
    bool mpi;
    bool of_srun;         /* srun --mpi=pmi2 sets the variables, too; Slurm's own tell more */
    bool names_processes; /* RANK and WORLD_SIZE count processes, not nodes */
    bool (*counts)(void); /* NULL: always */
};

/* Returns false for the pseudo steps of Slurm (batch script, interactive shell), whose numbers are at
 * the end of 32 bits. */
static bool is_step(void)
{
    const char *id = getenv("SLURM_STEP_ID");

    return id != NULL && strtoull(id, NULL, 10) < 0xfffffff0u;
}

static const struct set sets[] = {
    {.name = "Open MPI",
     .rank = "OMPI_COMM_WORLD_RANK",
     .size = "OMPI_COMM_WORLD_SIZE",
     .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
     .id = {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"},
     .mpi = true},
    {.name = "MPICH",
     .rank = "PMI_RANK",
     .size = "PMI_SIZE",
     .local_size = "MPI_LOCALNRANKS",
     .id = {"PMI_JOBID", NULL},
     .mpi = true,
     .of_srun = true},
    {.name = "torchrun",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .also = {"LOCAL_RANK", "LOCAL_WORLD_SIZE"},
     .local_size = "LOCAL_WORLD_SIZE",
     .id = {"TORCHELASTIC_RUN_ID", NULL},
     .names_processes = true},
    {.name = "environment",
     .rank = "RANK",
     .size = "WORLD_SIZE",
     .also = {"MASTER_ADDR", "MASTER_PORT"},
     .local_size = "LOCAL_WORLD_SIZE"},
    {.name = "Slurm",
     .rank = "SLURM_PROCID",
     .size = "SLURM_STEP_NUM_TASKS",
     .also = {"SLURM_STEP_ID", NULL},
     .hosts = "SLURM_STEP_NUM_NODES",
     .id = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
     .counts = is_step},
};

static bool is_set(const char *name)
{
    const char *value = name == NULL ? NULL : getenv(name);

    return value != NULL && *value != 0;
}

static bool is_complete(const struct set *set)
{
    if (!is_set(set->rank) || !is_set(set->size))
        return false;
    for (uint32_t i = 0; i < 2; i++)
        if (set->also[i] != NULL && !is_set(set->also[i]))
            return false;
    return set->counts == NULL || set->counts();
}

static enum epa_status read_number(const struct set *set, const char *name, uint32_t *out,
                                   struct epa_error *err)
{
    const char *value = getenv(name);
    char *end;
    unsigned long n;

    errno = 0;
    n = strtoul(value, &end, 10);
    if (*value < '0' || *value > '9' || *end != 0 || errno != 0 || n > INT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: %s='%.32s' is not a number; if it is left over from another "
                        "job, unset it or set launcher: fork",
                        set->name, name, value);
    *out = (uint32_t)n;
    return EPA_OK;
}

static enum epa_status read_set(const struct set *set, struct process_job *job,
                                struct epa_error *err)
{
    struct epa_process_id *place = &job->process_id;
    enum epa_status status = read_number(set, set->rank, &place->rank, err);
    size_t used = 0;

    if (status == EPA_OK)
        status = read_number(set, set->size, &place->size, err);
    if (status == EPA_OK && is_set(set->local_size))
        status = read_number(set, set->local_size, &job->local_size, err);
    if (status != EPA_OK)
        return status;
    if (set->hosts != NULL && is_set(set->hosts) && strcmp(getenv(set->hosts), "1") == 0)
        job->local_size = place->size;
    if (place->rank >= place->size)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: %s=%u is not below %s=%u; if they are left over from another "
                        "job, unset them or set launcher: fork",
                        set->name, set->rank, place->rank, set->size, place->size);
    job->mpi = set->mpi;
    job->hosts_unknown = set->hosts == NULL && job->local_size == 0;
    place->local_size = job->local_size;
    snprintf(place->source, sizeof(place->source), "%s: %s=%u of %s=%u", set->name, set->rank,
             place->rank, set->size, place->size);
    for (uint32_t i = 0; i < 2; i++)
        if (is_set(set->id[i]) && used < sizeof(job->id))
            used += (size_t)snprintf(job->id + used, sizeof(job->id) - used, "%s%s",
                                     used > 0 ? "." : "", getenv(set->id[i]));
    return EPA_OK;
}

uint32_t process_job_hash(const struct process_job *job)
{
    uint32_t h = 2166136261u; /* FNV-1a */

    for (const char *at = job->id; *at != 0; at++)
        h = (h ^ (unsigned char)*at) * 16777619u;
    return h;
}

static bool is_same_rank(const struct epa_process_id *a, const struct epa_process_id *b)
{
    return a->rank == b->rank && a->size == b->size;
}

/* Chooses between the set of *best, which precedes `set` in the table, and `set`. */
static enum epa_status choose_set(const struct set **best, struct process_job *best_job,
                                  const struct set *set, const struct process_job *job,
                                  struct epa_error *err)
{
    const struct epa_process_id *old = &best_job->process_id, *new = &job->process_id;
    bool srun = *best != NULL && (*best)->of_srun && !is_set((*best)->local_size) &&
                set->hosts != NULL && is_same_rank(old, new);

    if (*best == NULL || (old->size == 1 && new->size > 1) || srun) {
        *best = set;
        *best_job = *job;
    } else if (new->size > 1 && best_job->mpi && set->names_processes && !is_same_rank(old, new)) {
        return epa_fail(err, EPA_ERR_CONFIG,
                        "two launchers name this process: %s, and %s; unset the variables of the "
                        "one that did not start it",
                        old->source, new->source);
    }
    return EPA_OK;
}

enum epa_status process_id_find(struct process_job *out, struct epa_error *err)
{
    const struct set *best = NULL;
    struct process_job found = {0};

    for (const struct set *set = sets; set < sets + sizeof(sets) / sizeof(sets[0]); set++) {
        struct epa_error why = {EPA_OK, ""};
        struct process_job job = {0};
        enum epa_status status;

        if (!is_complete(set))
            continue;
        status = read_set(set, &job, &why);
        if (status != EPA_OK && best != NULL) /* leftovers of another job after a valid set */
            continue;
        status = status != EPA_OK ? epa_fail(err, status, "%s", why.text)
                                  : choose_set(&best, &found, set, &job, err);
        if (status != EPA_OK)
            return status;
    }
    *out = found;
    return EPA_OK;
}
