/* Passes file descriptors over sockets: each rank connects to all lower ranks and accepts all higher
 * ranks. A connection carries one message in each direction.
 *
 * The kernel chooses abstract names for the sockets, so no file remains. An allgather distributes
 * the names and a random token per rank, which other processes cannot know: a rank accepts a message
 * only from a process of the same user and with the rank's own token. Ranks cannot deadlock: all
 * ranks connect and send first, then serve connections, then read the answers; a sent message waits
 * in the socket's queue. */
#include "exchange.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <epa2a/wait.h>

enum { POLL_MS = 20, TOKEN_WORDS = 2, FDS_FIT = 2 /* descriptors that fit into `control` */ };

/* Time limit for the message of a new connection; a rank sends it at once. */
static const uint64_t visit_ns = 2000000000u;

/* Name and token of a rank's socket. */
struct card {
    uint64_t token[TOKEN_WORDS];
    struct sockaddr_un name;
    uint32_t name_bytes;
};

struct message {
    uint64_t token[TOKEN_WORDS]; /* token of the receiver */
    uint32_t from;
};

/* Buffer for the descriptor of one message, with the alignment that CMSG macros require. */
union control {
    char bytes[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
};

struct exchange {
    struct epa_bootstrap *boot;
    struct epa_error *err;
    const bool *near;
    uint32_t rank, size;
    struct epa_wait wait; /* of the whole exchange */
    int mine, listener, to[EXCHANGE_RANKS];
    struct card card[EXCHANGE_RANKS];
    int *out;
};

/* Reads the clock; returns whether the time limit has expired. */
static bool wait_is_over(struct epa_wait *wait)
{
    wait->waited_ns = epa_waited_ns(&wait->begun_ns, wait->waited_ns, wait->timeout_ns);
    return wait->waited_ns > wait->timeout_ns;
}

/* Waits until `fd` is readable, or until the time limit. */
static enum epa_status await(const struct exchange *x, int fd, struct epa_wait *wait)
{
    for (;;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        int n = poll(&one, 1, POLL_MS);

        if (n > 0)
            return EPA_OK;
        if (n < 0 && errno != EINTR)
            return epa_fail_errno(x->err, EPA_ERR_SYSTEM, errno, "nvlink: poll: %s",
                                  strerror(errno));
        if (epa_aborted(x->boot))
            return EPA_ERR_ABORTED;
        if (wait_is_over(wait))
            return EPA_ERR_TIMEOUT;
    }
}

/* Waits for a message of rank `r`. */
static enum epa_status await_rank(struct exchange *x, int fd, uint32_t r)
{
    enum epa_status status = await(x, fd, &x->wait);

    if (status == EPA_ERR_TIMEOUT)
        (void)epa_fail(epa_awaits(x->err, r), status,
                       "nvlink: rank %u waited in vain for the descriptor of rank %u", x->rank, r);
    return status;
}

static enum epa_status listen_for_peers(struct exchange *x, struct card *mine)
{
    socklen_t bytes = sizeof(mine->name);

    if (getrandom(mine->token, sizeof(mine->token), 0) != (ssize_t)sizeof(mine->token))
        return epa_fail_errno(x->err, EPA_ERR_SYSTEM, errno, "nvlink: getrandom: %s",
                              strerror(errno));
    mine->name.sun_family = AF_UNIX;
    x->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* An empty name: the kernel chooses a free abstract name. */
    if (x->listener < 0 ||
        bind(x->listener, (struct sockaddr *)&mine->name, sizeof(sa_family_t)) != 0 ||
        listen(x->listener, (int)x->size) != 0 ||
        getsockname(x->listener, (struct sockaddr *)&mine->name, &bytes) != 0)
        return epa_fail_errno(x->err, EPA_ERR_SYSTEM, errno,
                              "nvlink: a socket to pass descriptors through: %s", strerror(errno));
    mine->name_bytes = bytes;
    return EPA_OK;
}

/* Returns true if the process at the other end belongs to this user. */
static bool is_ours(int fd)
{
    struct ucred cred;
    socklen_t bytes = sizeof(cred);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &bytes) == 0 && bytes == sizeof(cred) &&
           cred.uid == geteuid();
}

/* Sends one message. A new socket accepts one small message without blocking. */
static enum epa_status send_fd(const struct exchange *x, int fd, uint32_t to)
{
    struct message message = {.from = x->rank};
    union control control = {{0}};
    struct iovec part = {&message, sizeof(message)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&header);

    memcpy(message.token, x->card[to].token, sizeof(message.token));
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(c), &x->mine, sizeof(int));
    if (sendmsg(fd, &header, MSG_NOSIGNAL) != (ssize_t)sizeof(message))
        return epa_fail_errno(x->err, EPA_ERR_SYSTEM, errno,
                              "nvlink: rank %u cannot send its descriptor to rank %u: %s", x->rank,
                              to, strerror(errno));
    return EPA_OK;
}

static void close_all(int *fd, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (fd[i] >= 0)
            close(fd[i]);
        fd[i] = -1;
    }
}

/* Reads one message. Returns its sender, or `size` for an invalid message, whose descriptors are
 * closed. */
static uint32_t receive_fd(const struct exchange *x, int fd, int *out)
{
    struct message message = {.from = 0};
    union control control;
    struct iovec part = {&message, sizeof(message)};
    struct msghdr header = {.msg_iov = &part,
                            .msg_iovlen = 1,
                            .msg_control = control.bytes,
                            .msg_controllen = sizeof(control.bytes)};
    ssize_t bytes = recvmsg(fd, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    int got[FDS_FIT];
    uint32_t n = 0;

    if (bytes < 0)
        return x->size;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&header); c != NULL; c = CMSG_NXTHDR(&header, c)) {
        uint32_t here = (uint32_t)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        for (uint32_t i = 0; i < here && n < FDS_FIT; i++)
            memcpy(&got[n++], CMSG_DATA(c) + i * sizeof(int), sizeof(int));
    }
    if (bytes != (ssize_t)sizeof(message) || (header.msg_flags & MSG_CTRUNC) != 0 ||
        message.from >= x->size || n != 1 ||
        memcmp(message.token, x->card[x->rank].token, sizeof(message.token)) != 0) {
        close_all(got, n);
        return x->size;
    }
    *out = got[0];
    return message.from;
}

static enum epa_status connect_to(struct exchange *x, uint32_t r)
{
    const struct card *card = &x->card[r];

    x->to[r] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (x->to[r] < 0)
        return epa_fail_errno(x->err, EPA_ERR_SYSTEM, errno, "nvlink: socket: %s", strerror(errno));
    /* EAGAIN: connections of foreign processes fill the queue, which has room for every rank. */
    while (connect(x->to[r], (const struct sockaddr *)&card->name, card->name_bytes) != 0) {
        enum epa_status status;

        if (errno != EAGAIN && errno != EINTR)
            return epa_fail_errno(
                x->err, EPA_ERR_SYSTEM, errno,
                "nvlink: rank %u cannot connect to rank %u: %s; has it left, or is "
                "it in another network namespace?",
                x->rank, r, strerror(errno));
        poll(NULL, 0, 1);
        if (!wait_is_over(&x->wait) && !epa_aborted(x->boot))
            continue;
        status = epa_aborted(x->boot) ? EPA_ERR_ABORTED : EPA_ERR_TIMEOUT;
        return epa_fail(epa_awaits(x->err, r), status,
                        "nvlink: rank %u found no room in the queue of rank %u", x->rank, r);
    }
    if (!is_ours(x->to[r]))
        return epa_fail(x->err, EPA_ERR_SYSTEM,
                        "nvlink: the socket of rank %u belongs to another user; all ranks "
                        "must run as one",
                        r);
    return send_fd(x, x->to[r], r);
}

/* Serves a connection: answers a higher rank that was not served yet, and closes any other
 * connection. */
static enum epa_status serve(struct exchange *x, int fd, uint32_t *missing)
{
    struct epa_wait visit = {.timeout_ns = visit_ns};
    enum epa_status status;
    uint32_t r = x->size;
    int got;

    if (!is_ours(fd))
        return EPA_OK;
    status = await(x, fd, &visit);
    if (status == EPA_OK)
        r = receive_fd(x, fd, &got);
    if (r >= x->size)
        return status == EPA_ERR_TIMEOUT ? EPA_OK : status;
    if (r <= x->rank || !x->near[r] || x->out[r] >= 0) {
        close(got);
        return EPA_OK;
    }
    x->out[r] = got;
    (*missing)--;
    return send_fd(x, fd, r);
}

static uint32_t first_missing(const struct exchange *x)
{
    uint32_t r = x->rank + 1;

    while (r + 1 < x->size && (!x->near[r] || x->out[r] >= 0))
        r++;
    return r;
}

static enum epa_status serve_all(struct exchange *x)
{
    enum epa_status status = EPA_OK;
    uint32_t missing = 0;

    for (uint32_t r = x->rank + 1; r < x->size; r++)
        missing += x->near[r];
    while (missing > 0 && status == EPA_OK) {
        int fd;

        status = await_rank(x, x->listener, first_missing(x));
        if (status != EPA_OK)
            break;
        fd = accept4(x->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            status = serve(x, fd, &missing);
            close(fd);
        } else if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
            status = epa_fail_errno(x->err, EPA_ERR_SYSTEM, errno, "nvlink: accept: %s",
                                    strerror(errno));
        }
    }
    return status;
}

static enum epa_status read_outputs(struct exchange *x)
{
    enum epa_status status = EPA_OK;

    for (uint32_t r = 0; r < x->rank && status == EPA_OK; r++) {
        uint32_t from;
        int got;

        if (!x->near[r])
            continue;
        status = await_rank(x, x->to[r], r);
        if (status != EPA_OK)
            break;
        from = receive_fd(x, x->to[r], &got);
        if (from == r) {
            x->out[r] = got;
            continue;
        }
        if (from < x->size)
            close(got);
        status = epa_fail(x->err, EPA_ERR_SYSTEM,
                          "nvlink: rank %u did not send its descriptor to rank %u", r, x->rank);
    }
    return status;
}

enum epa_status exchange_fds(struct epa_bootstrap *boot, const bool *near, int mine,
                             uint64_t timeout_ns, int *out, struct epa_error *err)
{
    struct exchange x = {.boot = boot,
                         .err = err,
                         .near = near,
                         .mine = mine,
                         .rank = boot->world.rank,
                         .size = boot->world.size,
                         .wait = {.timeout_ns = timeout_ns},
                         .listener = -1,
                         .out = out};
    struct card card = {.name_bytes = 0};
    enum epa_status status;

    if (x.size > EXCHANGE_RANKS)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "nvlink: %u ranks are more than %d", x.size,
                        EXCHANGE_RANKS);
    for (uint32_t r = 0; r < x.size; r++)
        x.to[r] = out[r] = -1;
    status = listen_for_peers(&x, &card);
    if (status == EPA_OK) {
        status = boot->allgather(boot, &card, sizeof(card), x.card);
        boot->explain(boot, err);
    }
    for (uint32_t r = 0; r < x.rank && status == EPA_OK; r++)
        status = near[r] ? connect_to(&x, r) : EPA_OK;
    if (status == EPA_OK)
        status = serve_all(&x);
    if (status == EPA_OK)
        status = read_outputs(&x);
    close_all(x.to, x.size);
    close_all(&x.listener, 1);
    if (status != EPA_OK)
        close_all(out, x.size);
    return status;
}

/* ---- access between GPUs ---- */

int pairs_find(const struct gpu *seen, int n, const struct gpu *gpu)
{
    for (int i = 0; i < n; i++) {
        if (memcmp(seen[i].uuid, gpu->uuid, sizeof(gpu->uuid)) == 0)
            return i;
    }
    return -1;
}

static enum epa_status refuse(const struct gpu *gpu, enum reach how, uint32_t i, uint32_t j,
                              struct epa_error *err)
{
    char from[64], to[64];

    snprintf(from, sizeof(from), "GPU %d (rank %u, %s)", gpu[i].number, i, gpu[i].bus);
    snprintf(to, sizeof(to), "GPU %d (rank %u, %s)", gpu[j].number, j, gpu[j].bus);
    if (how == REACH_UNSEEN)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "nvlink: %s and %s do not see each other; let each rank see all GPUs, "
                        "with one CUDA_VISIBLE_DEVICES for all or none",
                        from, to);
    if (how == REACH_NO_ATOMICS)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "nvlink: %s accesses %s without atomics, so not over NVLink; take "
                        "GPUs that NVLink joins (nvidia-smi topo -m shows them)",
                        from, to);
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "nvlink: %s cannot access %s directly; take GPUs that NVLink joins "
                    "(nvidia-smi topo -m shows them)",
                    from, to);
}

enum epa_status pairs_check(const struct gpu *gpu, const unsigned char *reach, uint32_t size,
                            struct epa_error *err)
{
    for (uint32_t i = 0; i < size; i++) {
        for (uint32_t j = 0; j < size; j++) {
            enum reach how = reach[i * size + j];

            if (how == REACH_UNSEEN)
                how = reach[j * size + i];
            if (how != REACH_SELF && how != REACH_DIRECT)
                return refuse(gpu, how, i, j, err);
        }
    }
    return EPA_OK;
}
