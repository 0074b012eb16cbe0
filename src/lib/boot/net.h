/* Addresses of rank 0, listening and dialling. */
#ifndef NET_H
#define NET_H

#include <poll.h>

#include "boot/conn.h"
#include "boot/contact.h"

struct addrinfo;

/* Listens at the local name of `contact`, or at its address (or on `interface`) and port. Without
 * either, listens at a free port, on `interface` or on all, and fills `contact` with the addresses that
 * other hosts may reach and with a random token. */
enum epa_status net_listen(struct contact *contact, const char *interface, int *out,
                           struct epa_error *);

/* Accepts a connection and returns its origin ("": this host). Returns -1 without a connection, or for
 * another user at the local name. */
int net_accept(int listener, char *from, size_t room);

/* Returns true if all addresses of `name` are loopback addresses, which no other host can reach. Returns
 * false for an unknown name. */
bool net_is_loopback(const char *name);

/* Finds the interface of this host that a connection uses; "": unknown, or no route to another host.
 * `out` has IF_NAMESIZE bytes. */
void net_interface(int fd, char *out);

/* Writes an address of this host that other hosts may reach, or a loopback address; "": none. */
void net_own_address(char out[CONTACT_ADDRESS]);

/* Finds the interface of this host on the route to an address, as net_interface(). */
void net_route_interface(const char *address, char *out);

/* Dials the addresses of a contact cyclically until both sides have proved that they know the token. */
struct net_dial {
    const struct contact *contact;
    enum net_dial_state { NET_PAUSE, NET_CONNECTING, NET_GREETING, NET_PROVING } state;
    uint32_t at; /* index of the next address */
    struct addrinfo *list, *next;
    struct conn conn;
    struct conn_greet greet;
    uint64_t since_ns, again_ns;
    char name[80], why[256]; /* present address; reason of the last failure */
};

enum net_dialed {
    NET_TRYING,
    NET_PROVED,
    NET_REFUSED, /* final; `why` contains the reason */
};

/* `fd`: a connection to try first, or -1. */
void net_dial_init(struct net_dial *out, const struct contact *, int fd);
void net_dial_finish(struct net_dial *);

struct pollfd net_dial_poll(const struct net_dial *);

/* With NET_PROVED the caller owns the connection *out. */
enum net_dialed net_dial_turn(struct net_dial *, short revents, uint64_t now, struct conn *out);

#endif
