/* Non-blocking sockets. Only the lookup of names can block, within the limits of the resolver.
 *
 * Ranks of one host without a token connect over an abstract UNIX socket, since the kernel reports the
 * user of the other process to both sides. */
#include "boot/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <epa2a/wait.h>

static const uint64_t try_ns = 2000000000, pause_ns = 100000000;

static enum epa_status resolve(const char *name, uint32_t port, struct addrinfo **out,
                               struct epa_error *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    char service[16];
    int failed;

    snprintf(service, sizeof(service), "%u", port);
    failed = getaddrinfo(name, service, &hints, out);
    if (failed != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "cannot look up the address '%.200s': %s", name,
                        gai_strerror(failed));
    return EPA_OK;
}

static socklen_t address_bytes(const struct sockaddr *at)
{
    return at->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
}

static void address_text(const struct sockaddr *at, char *out, size_t room)
{
    if (getnameinfo(at, address_bytes(at), out, (socklen_t)room, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(out, room, "?");
}

static bool is_loopback(const struct sockaddr *at)
{
    if (at->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)at)->sin_addr.s_addr) >> 24) ==
               127;
    return at->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)at)->sin6_addr);
}

bool net_is_loopback(const char *name)
{
    struct addrinfo *list = NULL;
    bool all = true;

    if (resolve(name, 0, &list, NULL) != EPA_OK)
        return false;
    for (const struct addrinfo *a = list; a != NULL; a = a->ai_next)
        all &= is_loopback(a->ai_addr);
    freeaddrinfo(list);
    return all;
}

static socklen_t local_address(const char *name, struct sockaddr_un *out)
{
    size_t bytes = strnlen(name, sizeof(out->sun_path) - 1);

    *out = (struct sockaddr_un){.sun_family = AF_UNIX}; /* sun_path[0] == 0: an abstract name */
    memcpy(out->sun_path + 1, name, bytes);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + bytes);
}

/* Returns true if a process of this user or of root is at the other end of a local socket. */
static bool is_ours(int fd)
{
    struct ucred other;
    socklen_t bytes = sizeof(other);

    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 &&
           (other.uid == geteuid() || other.uid == 0);
}

/* Finds the user of the process that listens at a local name. */
static bool find_owner(const struct sockaddr_un *at, socklen_t bytes, uid_t *out)
{
    struct ucred other;
    socklen_t room = sizeof(other);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool found = fd >= 0 && connect(fd, (const struct sockaddr *)at, bytes) == 0 &&
                 getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &room) == 0;

    if (fd >= 0)
        close(fd);
    if (found)
        *out = other.uid;
    return found;
}

/* ---- listening ---- */

static int listen_on(const struct sockaddr *at, socklen_t bytes)
{
    int one = 1, zero = 0, failed;
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    if (at->sa_family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (at->sa_family == AF_INET6) /* "::" must accept IPv4, too */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    if (bind(fd, at, bytes) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    failed = errno;
    close(fd);
    errno = failed;
    return -1;
}

static bool is_usable(const struct ifaddrs *i)
{
    const struct sockaddr *at = i->ifa_addr;

    if (at == NULL || (i->ifa_flags & IFF_UP) == 0)
        return false;
    if (at->sa_family == AF_INET)
        return true;
    return at->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)at)->sin6_addr);
}

/* Lists the addresses of an interface; NULL: of all interfaces, loopback addresses last. */
static enum epa_status list_addresses(const char *interface,
                                      char out[CONTACT_ADDRESSES][CONTACT_ADDRESS],
                                      struct epa_error *err)
{
    struct ifaddrs *list = NULL;
    char names[200] = "";
    uint32_t n = 0;

    if (getifaddrs(&list) != 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "getifaddrs: %s", strerror(errno));
    for (uint32_t turn = 0; turn < 3; turn++) /* IPv4, IPv6, loopback */
        for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
            size_t used = strlen(names);

            if (!is_usable(i) || turn != (is_loopback(i->ifa_addr)             ? 2
                                          : i->ifa_addr->sa_family == AF_INET6 ? 1
                                                                               : 0))
                continue;
            if (n < CONTACT_ADDRESSES && (interface == NULL || strcmp(i->ifa_name, interface) == 0))
                address_text(i->ifa_addr, out[n++], CONTACT_ADDRESS);
            if (strstr(names, i->ifa_name) == NULL)
                snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "",
                         i->ifa_name);
        }
    freeifaddrs(list);
    if (n == 0 && interface == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "no network interface is up, not even the loopback");
    return n > 0 ? EPA_OK
                 : epa_fail_key(
                       err, EPA_ERR_CONFIG, "launcher.interface",
                       "launcher.interface: '%.32s' is not an interface of this host that is "
                       "up and has an address; this host has %s",
                       interface, names);
}

static enum epa_status explain_listen(int failed, const char *where, uint32_t port,
                                      struct epa_error *err)
{
    return epa_fail_key(err, EPA_ERR_SYSTEM, "launcher.port launcher.address",
                        "rank 0 cannot listen at %s port %u: %s%s", where, port, strerror(failed),
                        failed == EADDRINUSE ? "; set MASTER_PORT or launcher.port to a free port"
                        : failed == EADDRNOTAVAIL ? "; MASTER_ADDR or launcher.address must be "
                                                    "an address of rank 0's host"
                                                  : "");
}

static enum epa_status listen_at(const char *name, uint32_t port, int *out, struct epa_error *err)
{
    struct addrinfo *list;
    char text[80] = "", where[300];
    enum epa_status status = resolve(name, port, &list, err);
    int failed = 0;

    if (status != EPA_OK)
        return status;
    *out = -1;
    for (const struct addrinfo *a = list; a != NULL && *out < 0; a = a->ai_next) {
        *out = listen_on(a->ai_addr, a->ai_addrlen);
        failed = *out < 0 ? errno : 0;
        address_text(a->ai_addr, text, sizeof(text));
    }
    freeaddrinfo(list);
    snprintf(where, sizeof(where), "%.200s (%s)", name, text);
    return *out >= 0 ? EPA_OK : explain_listen(failed, where, port, err);
}

static enum epa_status make_token(char *out, struct epa_error *err)
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "getrandom: %s", strerror(errno));
    for (uint32_t i = 0; i < sizeof(bytes); i++)
        snprintf(out + (size_t)2 * i, 3, "%02x", bytes[i]);
    return EPA_OK;
}

static uint32_t port_of(int fd)
{
    struct sockaddr_storage at;
    socklen_t bytes = sizeof(at);

    if (getsockname(fd, (struct sockaddr *)&at, &bytes) != 0)
        return 0;
    return ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                         : ((struct sockaddr_in6 *)&at)->sin6_port);
}

enum epa_status net_listen(struct contact *contact, const char *interface, int *out,
                           struct epa_error *err)
{
    bool anywhere = contact->address[0][0] == 0;
    char at[CONTACT_ADDRESSES][CONTACT_ADDRESS] = {"0.0.0.0"};
    enum epa_status status = EPA_OK;

    if (contact->local[0] != 0) {
        struct sockaddr_un local;
        socklen_t bytes = local_address(contact->local, &local);
        uid_t owner;
        int failed;

        *out = listen_on((struct sockaddr *)&local, bytes);
        failed = *out < 0 ? errno : 0;
        if (failed == EADDRINUSE && find_owner(&local, bytes, &owner) && owner != geteuid())
            return epa_fail_key(
                err, EPA_ERR_SYSTEM, "launcher.port",
                "rank 0 cannot listen at %s: a process of user %u has taken this name; "
                "set another launcher.port, or export "
                "EPA2A_JOB_TOKEN=$(openssl rand -hex 16) for all ranks",
                contact->local, (unsigned)owner);
        return *out >= 0 ? EPA_OK : explain_listen(failed, contact->local, contact->port, err);
    }
    if (interface != NULL)
        status = list_addresses(interface, at, err);
    else if (!anywhere)
        memcpy(at[0], contact->address[0], sizeof(at[0]));
    /* "::" accepts IPv6 and IPv4; without IPv6 rank 0 listens at 0.0.0.0. */
    if (status == EPA_OK &&
        (interface != NULL || !anywhere || listen_at("::", 0, out, NULL) != EPA_OK))
        status = listen_at(at[0], contact->port, out, err);
    if (status != EPA_OK || !anywhere)
        return status;
    contact->port = port_of(*out);
    status = make_token(contact->token, err);
    if (status == EPA_OK && interface != NULL)
        memcpy(contact->address[0], at[0], sizeof(at[0]));
    else if (status == EPA_OK)
        status = list_addresses(NULL, contact->address, err);
    if (status != EPA_OK) {
        close(*out);
        *out = -1;
    }
    return status;
}

/* Removes the prefix of an IPv4 address on a socket for both families. */
static const char *without_mark(const char *address)
{
    return address + (strncmp(address, "::ffff:", 7) == 0 ? 7 : 0);
}

void net_interface(int fd, char *out)
{
    char here[CONTACT_ADDRESS], there[CONTACT_ADDRESS];
    struct sockaddr_storage at;
    socklen_t bytes = sizeof(at);
    struct ifaddrs *list = NULL;

    *out = 0;
    if (getsockname(fd, (struct sockaddr *)&at, &bytes) != 0 || at.ss_family == AF_UNIX ||
        getifaddrs(&list) != 0)
        return;
    address_text((struct sockaddr *)&at, here, sizeof(here));
    for (const struct ifaddrs *i = list; i != NULL && *out == 0; i = i->ifa_next) {
        if (!is_usable(i) || is_loopback(i->ifa_addr))
            continue;
        address_text(i->ifa_addr, there, sizeof(there));
        if (strcmp(without_mark(here), there) == 0)
            snprintf(out, IF_NAMESIZE, "%s", i->ifa_name);
    }
    freeifaddrs(list);
}

void net_own_address(char out[CONTACT_ADDRESS])
{
    char all[CONTACT_ADDRESSES][CONTACT_ADDRESS] = {""};

    (void)list_addresses(NULL, all, NULL);
    memcpy(out, all[0], CONTACT_ADDRESS);
}

void net_route_interface(const char *address, char *out)
{
    struct addrinfo *list = NULL;
    int fd;

    *out = 0;
    if (*address == 0 || resolve(address, 9, &list, NULL) != EPA_OK)
        return;
    /* A datagram socket selects its route in connect() and sends nothing. */
    fd = socket(list->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, list->ai_addr, list->ai_addrlen) == 0)
        net_interface(fd, out);
    if (fd >= 0)
        close(fd);
    freeaddrinfo(list);
}

int net_accept(int listener, char *from, size_t room)
{
    struct sockaddr_storage at;
    socklen_t bytes = sizeof(at);
    int one = 1;
    int fd = accept4(listener, (struct sockaddr *)&at, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

    *from = 0;
    if (fd < 0)
        return -1;
    if (at.ss_family != AF_UNIX) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        address_text((struct sockaddr *)&at, from, room);
    } else if (!is_ours(fd)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* ---- dialling ---- */

static void send_greeting(struct net_dial *dial, int fd)
{
    conn_init(&dial->conn, fd, CONN_GREET_MAX);
    if (!conn_make_greet(&dial->greet))
        conn_close(&dial->conn, "getrandom: %s", strerror(errno));
    conn_put(&dial->conn, CONN_GREET, &dial->greet, sizeof(dial->greet), NULL, 0);
    dial->state = NET_GREETING;
}

void net_dial_init(struct net_dial *out, const struct contact *contact, int fd)
{
    *out = (struct net_dial){.contact = contact, .conn = {.fd = -1}, .since_ns = epa_now_ns()};
    snprintf(out->why, sizeof(out->why), "no time for an attempt");
    if (fd >= 0)
        send_greeting(out, fd);
}

static void forget_list(struct net_dial *dial)
{
    if (dial->list != NULL)
        freeaddrinfo(dial->list);
    dial->list = dial->next = NULL;
}

void net_dial_finish(struct net_dial *dial)
{
    conn_finish(&dial->conn);
    forget_list(dial);
}

/* The address did not answer, or the peer is not rank 0: tries the next address after a pause. */
static void try_next(struct net_dial *dial, const char *why)
{
    snprintf(dial->why, sizeof(dial->why), "%s port %u: %.120s", dial->name, dial->contact->port,
             why);
    conn_finish(&dial->conn);
    dial->state = NET_PAUSE;
}

/* Returns the length of the next address to dial, or 0 to pause. */
static socklen_t next_target(struct net_dial *dial, struct sockaddr_storage *at, uint64_t now)
{
    struct epa_error err = {EPA_OK, ""};
    const struct contact *contact = dial->contact;
    socklen_t bytes;

    if (contact->local[0] != 0) {
        dial->again_ns = now + pause_ns / 10;
        snprintf(dial->name, sizeof(dial->name), "%s", contact->local);
        return local_address(contact->local, (struct sockaddr_un *)at);
    }
    if (dial->next == NULL) {
        if (dial->at == CONTACT_ADDRESSES || contact->address[dial->at][0] == 0) {
            dial->at = 0;
            dial->again_ns = now + pause_ns;
            return 0;
        }
        forget_list(dial);
        if (resolve(contact->address[dial->at++], contact->port, &dial->list, &err) != EPA_OK) {
            snprintf(dial->why, sizeof(dial->why), "%.250s", err.text);
            return 0;
        }
        dial->next = dial->list;
    }
    bytes = dial->next->ai_addrlen;
    memcpy(at, dial->next->ai_addr, bytes);
    address_text((struct sockaddr *)at, dial->name, sizeof(dial->name));
    dial->next = dial->next->ai_next;
    return bytes;
}

/* Returns true for a socket that is connected to itself: for a port without listener, the kernel may
 * choose this port as the local one. */
static bool is_myself(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t a = sizeof(here), b = sizeof(there);

    memset(&here, 0, sizeof(here));
    memset(&there, 0, sizeof(there));
    return getsockname(fd, (struct sockaddr *)&here, &a) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &b) == 0 && a == b &&
           here.ss_family != AF_UNIX && memcmp(&here, &there, a) == 0;
}

static void connect_next(struct net_dial *dial, uint64_t now)
{
    struct sockaddr_storage at;
    socklen_t bytes = next_target(dial, &at, now);
    int fd;

    if (bytes == 0)
        return;
    dial->since_ns = now;
    dial->state = NET_CONNECTING;
    fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    dial->conn.fd = fd;
    if (fd < 0 || (connect(fd, (struct sockaddr *)&at, bytes) != 0 && errno != EINPROGRESS))
        try_next(dial, strerror(errno));
}

static void check_connected(struct net_dial *dial)
{
    int failed = 0, one = 1, fd = dial->conn.fd;
    socklen_t bytes = sizeof(failed);

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) != 0)
        failed = errno;
    if (failed == 0 && dial->contact->local[0] != 0 && !is_ours(fd)) {
        try_next(dial, "a process of another user listens at this name; set another "
                       "launcher.port, or EPA2A_JOB_TOKEN for all ranks");
        return;
    }
    if (failed == 0 && is_myself(fd))
        failed = ECONNREFUSED;
    if (failed != 0) {
        try_next(dial, strerror(failed));
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    send_greeting(dial, fd);
}

static enum net_dialed on_message(struct net_dial *dial, const struct conn_message *m)
{
    struct conn_greet challenge;

    if (dial->state == NET_PROVING && m->type == CONN_PROOF) /* with a correct MAC */
        return NET_PROVED;
    if (dial->state == NET_PROVING && m->type == CONN_REFUSED) {
        snprintf(dial->why, sizeof(dial->why),
                 "another job: this rank's token differs from rank 0's; EPA2A_JOB_TOKEN, if set, "
                 "must be identical for all ranks");
        return NET_REFUSED;
    }
    if (dial->state == NET_PROVING || m->type != CONN_CHALLENGE || !conn_get_greet(m, &challenge)) {
        conn_close(&dial->conn, "the peer does not speak the epa2a protocol");
        return NET_TRYING;
    }
    if (challenge.protocol != CONN_PROTOCOL) {
        snprintf(dial->why, sizeof(dial->why),
                 "another version of epa2a: this rank speaks protocol %d, rank 0 protocol %u",
                 CONN_PROTOCOL, challenge.protocol);
        return NET_REFUSED;
    }
    conn_seal(&dial->conn, dial->contact->token, &dial->greet, &challenge, true);
    conn_say(&dial->conn, CONN_PROOF);
    dial->state = NET_PROVING;
    return NET_TRYING;
}

struct pollfd net_dial_poll(const struct net_dial *dial)
{
    return (struct pollfd){.fd = dial->conn.fd,
                           .events =
                               dial->state == NET_CONNECTING ? POLLOUT : conn_events(&dial->conn)};
}

enum net_dialed net_dial_turn(struct net_dial *dial, short revents, uint64_t now, struct conn *out)
{
    enum net_dialed dialed = NET_TRYING;
    struct conn_message m;

    if (dial->state == NET_PAUSE) {
        if (now >= dial->again_ns)
            connect_next(dial, now);
        return NET_TRYING;
    }
    if (dial->state == NET_CONNECTING) {
        if ((revents & (POLLOUT | POLLERR | POLLHUP)) != 0)
            check_connected(dial);
    } else {
        conn_turn(&dial->conn, revents);
        while (dialed == NET_TRYING && conn_take(&dial->conn, &m))
            dialed = on_message(dial, &m);
    }
    if (dialed == NET_PROVED) {
        *out = dial->conn;
        dial->conn = (struct conn){.fd = -1};
        dial->state = NET_PAUSE;
    } else if (dialed == NET_TRYING && dial->state != NET_PAUSE) {
        if (dial->conn.forged)
            try_next(dial, "the peer does not know this job's token");
        else if (dial->conn.fd < 0)
            try_next(dial, dial->conn.why);
        else if (now - dial->since_ns > try_ns)
            try_next(dial, "no answer");
        else
            conn_turn(&dial->conn, 0);
    }
    return dialed;
}
