/* Sockets that do not block. Only name lookup may, within the limits of the resolver. */
#include "launch/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

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
        return epa_fail(err, EPA_ERR_CONFIG, "the address '%.200s' cannot be looked up: %s", name,
                        gai_strerror(failed));
    return EPA_OK;
}

static void address_text(const struct sockaddr *at, char *out, size_t room)
{
    socklen_t bytes =
        at->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);

    if (getnameinfo(at, bytes, out, (socklen_t)room, NULL, 0, NI_NUMERICHOST) != 0)
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

/* ---- listening ---- */

static int listen_on(const struct sockaddr *at, socklen_t bytes)
{
    int one = 1, zero = 0, failed;
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (at->sa_family == AF_INET6) /* the address of all is meant for IPv4, too */
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof(zero));
    if (bind(fd, at, bytes) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    failed = errno;
    close(fd);
    errno = failed;
    return -1;
}

static bool usable(const struct ifaddrs *i)
{
    const struct sockaddr *at = i->ifa_addr;

    if (at == NULL || (i->ifa_flags & IFF_UP) == 0)
        return false;
    if (at->sa_family == AF_INET)
        return true;
    return at->sa_family == AF_INET6 &&
           !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)at)->sin6_addr);
}

/* The names of interfaces that have an address, once each. */
static void list_interfaces(const struct ifaddrs *list, char *out, size_t room)
{
    size_t used = 0;

    *out = 0;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
        bool again = false;

        for (const struct ifaddrs *p = list; p != i; p = p->ifa_next)
            again |= usable(p) && strcmp(p->ifa_name, i->ifa_name) == 0;
        if (again || !usable(i) || used >= room)
            continue;
        used +=
            (size_t)snprintf(out + used, room - used, "%s%s", used > 0 ? ", " : "", i->ifa_name);
    }
}

static enum epa_status listen_interface(const char *name, uint32_t port, char *address, size_t room,
                                        int *out, struct epa_error *err)
{
    struct ifaddrs *list = NULL;
    const struct ifaddrs *best = NULL;
    struct sockaddr_storage at;
    socklen_t bytes;
    char names[200];

    if (getifaddrs(&list) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "getifaddrs: %s", strerror(errno));
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        if (usable(i) && strcmp(i->ifa_name, name) == 0 &&
            (best == NULL || best->ifa_addr->sa_family != AF_INET))
            best = i;
    if (best == NULL) {
        list_interfaces(list, names, sizeof(names));
        freeifaddrs(list);
        return epa_fail(err, EPA_ERR_CONFIG,
                        "launcher.interface: '%.32s' is no interface here that is up and "
                        "has an address; there is %s",
                        name, names);
    }
    bytes = best->ifa_addr->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                                 : sizeof(struct sockaddr_in6);
    memcpy(&at, best->ifa_addr, bytes);
    freeifaddrs(list);
    address_text((struct sockaddr *)&at, address, room);
    if (at.ss_family == AF_INET)
        ((struct sockaddr_in *)&at)->sin_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in6 *)&at)->sin6_port = htons((uint16_t)port);
    *out = listen_on((struct sockaddr *)&at, bytes);
    if (*out < 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "rank 0 cannot listen at %s port %u: %s", address,
                        port, strerror(errno));
    return EPA_OK;
}

enum epa_status net_listen_at(const struct launcher_contact *contact, const char *interface,
                              int *out, struct epa_error *err)
{
    const char *name = contact->address[0];
    struct addrinfo *list;
    char text[80] = "";
    enum epa_status status;
    int failed = 0;

    if (interface != NULL)
        return listen_interface(interface, contact->port, text, sizeof(text), out, err);
    status = resolve(name, contact->port, &list, err);
    if (status != EPA_OK)
        return status;
    *out = -1;
    for (const struct addrinfo *a = list; a != NULL && *out < 0; a = a->ai_next) {
        *out = listen_on(a->ai_addr, a->ai_addrlen);
        failed = *out < 0 ? errno : 0;
        address_text(a->ai_addr, text, sizeof(text));
    }
    freeaddrinfo(list);
    if (*out >= 0)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_SYSTEM, "rank 0 cannot listen at %.200s (%s) port %u: %s%s", name,
                    text, contact->port, strerror(failed),
                    failed == EADDRINUSE      ? "; set launcher.port to one that is free"
                    : failed == EADDRNOTAVAIL ? "; MASTER_ADDR or launcher.address must be "
                                                "one of the host that rank 0 runs on"
                                              : "");
}

/* What others may reach, those that reach far first. */
static enum epa_status list_addresses(struct launcher_contact *contact, struct epa_error *err)
{
    struct ifaddrs *list = NULL;
    uint32_t n = 0;

    if (getifaddrs(&list) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "getifaddrs: %s", strerror(errno));
    for (uint32_t turn = 0; turn < 3; turn++) { /* IPv4, IPv6, loopback */
        for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next) {
            uint32_t its;

            if (!usable(i) || n == LAUNCHER_ADDRESSES)
                continue;
            its = is_loopback(i->ifa_addr) ? 2 : i->ifa_addr->sa_family == AF_INET6 ? 1 : 0;
            if (its == turn)
                address_text(i->ifa_addr, contact->address[n++], LAUNCHER_ADDRESS);
        }
    }
    freeifaddrs(list);
    return n > 0 ? EPA_OK
                 : epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "no network interface is up, not even the loopback");
}

static enum epa_status listen_everywhere(int *out, struct epa_error *err)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET};

    *out = listen_on((struct sockaddr *)&six, sizeof(six));
    if (*out < 0)
        *out = listen_on((struct sockaddr *)&four, sizeof(four));
    if (*out < 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "rank 0 cannot listen: %s", strerror(errno));
    return EPA_OK;
}

static enum epa_status make_token(char *out, struct epa_error *err)
{
    unsigned char bytes[16];

    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes))
        return epa_fail(err, EPA_ERR_SYSTEM, "getrandom: %s", strerror(errno));
    for (uint32_t i = 0; i < sizeof(bytes); i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return EPA_OK;
}

enum epa_status net_listen_anywhere(const char *interface, struct launcher_contact *contact,
                                    int *out, struct epa_error *err)
{
    struct sockaddr_storage at;
    socklen_t bytes = sizeof(at);
    enum epa_status status;

    memset(contact, 0, sizeof(*contact));
    status = make_token(contact->token, err);
    if (status == EPA_OK && interface != NULL)
        status = listen_interface(interface, 0, contact->address[0], LAUNCHER_ADDRESS, out, err);
    else if (status == EPA_OK)
        status = listen_everywhere(out, err);
    if (status != EPA_OK)
        return status;
    if (interface == NULL)
        status = list_addresses(contact, err);
    if (status == EPA_OK && getsockname(*out, (struct sockaddr *)&at, &bytes) != 0)
        status = epa_fail(err, EPA_ERR_SYSTEM, "getsockname: %s", strerror(errno));
    if (status != EPA_OK) {
        close(*out);
        return status;
    }
    contact->port = ntohs(at.ss_family == AF_INET ? ((struct sockaddr_in *)&at)->sin_port
                                                  : ((struct sockaddr_in6 *)&at)->sin6_port);
    return EPA_OK;
}

/* ---- dialling ---- */

void net_dial_init(struct net_dial *out, const struct launcher_contact *contact)
{
    *out = (struct net_dial){.contact = contact, .fd = -1};
    snprintf(out->why, sizeof(out->why), "there was no time to try");
}

void net_dial_finish(struct net_dial *dial)
{
    if (dial->fd >= 0)
        close(dial->fd);
    if (dial->list != NULL)
        freeaddrinfo(dial->list);
    dial->list = dial->next = NULL;
    dial->fd = -1;
}

static void give_up(struct net_dial *dial, const char *how)
{
    char text[80] = "?";

    if (dial->next != NULL) {
        address_text(dial->next->ai_addr, text, sizeof(text));
        snprintf(dial->why, sizeof(dial->why), "%s port %u: %.120s", text, dial->contact->port,
                 how);
        dial->next = dial->next->ai_next;
    }
    if (dial->fd >= 0)
        close(dial->fd);
    dial->fd = -1;
}

void net_dial_again(struct net_dial *dial, const char *why)
{
    give_up(dial, why);
}

/* Looks the next address up; false: it is time for a pause. */
static bool next_address(struct net_dial *dial, uint64_t now)
{
    struct epa_error err = {EPA_OK, ""};
    const char *name;

    if (dial->at == LAUNCHER_ADDRESSES || dial->contact->address[dial->at][0] == 0) {
        dial->at = 0;
        dial->again_ns = now + pause_ns;
        return false;
    }
    if (dial->list != NULL)
        freeaddrinfo(dial->list);
    dial->list = dial->next = NULL;
    name = dial->contact->address[dial->at++];
    if (resolve(name, dial->contact->port, &dial->list, &err) == EPA_OK)
        dial->next = dial->list;
    else
        snprintf(dial->why, sizeof(dial->why), "%.250s", err.text);
    return true;
}

static void connect_next(struct net_dial *dial, uint64_t now)
{
    const struct addrinfo *a = dial->next;

    dial->since_ns = now;
    dial->fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (dial->fd < 0 || (connect(dial->fd, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS))
        give_up(dial, strerror(errno));
}

/* A port that nobody listens at may be given to us as our own, and connect to itself. */
static bool is_myself(int fd)
{
    struct sockaddr_storage here, there;
    socklen_t a = sizeof(here), b = sizeof(there);

    memset(&here, 0, sizeof(here));
    memset(&there, 0, sizeof(there));
    return getsockname(fd, (struct sockaddr *)&here, &a) == 0 &&
           getpeername(fd, (struct sockaddr *)&there, &b) == 0 && a == b &&
           memcmp(&here, &there, a) == 0;
}

int net_dial_turn(struct net_dial *dial, short revents, uint64_t now)
{
    int failed = 0, one = 1, fd = dial->fd;
    socklen_t bytes = sizeof(failed);

    if (fd < 0) {
        if (now >= dial->again_ns && (dial->next != NULL || next_address(dial, now)) &&
            dial->next != NULL)
            connect_next(dial, now);
        return -1;
    }
    if ((revents & (POLLOUT | POLLERR | POLLHUP)) == 0) {
        if (now - dial->since_ns > try_ns)
            give_up(dial, "no expert output");
        return -1;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &bytes) != 0)
        failed = errno;
    if (failed == 0 && is_myself(fd))
        failed = ECONNREFUSED;
    if (failed != 0) {
        give_up(dial, strerror(failed));
        return -1;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    dial->fd = -1;
    return fd;
}
