/* Where the launchers of a job connect: in that of rank 0, within its poll loop. */
#ifndef RENDEZVOUS_H
#define RENDEZVOUS_H

#include <poll.h>

#include <epa2a/world.h>

#include "launch/conn.h"
#include "launch/launch.h"

struct rendezvous;

struct rendezvous_params {
    const struct epa_launch *asked; /* rank 0's; its block is filled with those of others */
    const char *token;
    int listener;                    /* not owned; -1: none */
    uint64_t start_ns, heartbeat_ns; /* as in launcher_settings */
};

/* What params point to must outlive it. */
enum epa_status rendezvous_create(const struct rendezvous_params *, struct rendezvous **out,
                                  struct epa_error *);
void rendezvous_destroy(struct rendezvous *);

/* A connection that did not arrive at the listener: rank 0's own. Takes the descriptor. */
void rendezvous_adopt(struct rendezvous *, int fd);

/* In a process that was forked: closes its copies of the connections. */
void rendezvous_close_inherited(const struct rendezvous *);

/* As many as rendezvous_polls() fills at most, and as it has filled; poll() in between. */
uint32_t rendezvous_poll_room(uint32_t ranks);
uint32_t rendezvous_polls(const struct rendezvous *, struct pollfd *out);
void rendezvous_turn(struct rendezvous *, const struct pollfd *, uint32_t n);

/* After a failure nobody else is about to connect, and is waited for. */
void rendezvous_expect_nobody(struct rendezvous *);

/* The verdict has reached every launcher that can be reached. */
bool rendezvous_over(const struct rendezvous *);

/* ---- net.c: addresses, where rank 0 listens and how the others get to it ---- */

struct addrinfo;

/* Listens where `contact` says: at its local name, at its address (or on `interface`) and port,
 * or, where it names none, at a port that is free, on `interface` or everywhere; then fills it
 * with all addresses that others may reach, and with a token that is random. */
enum epa_status net_listen(struct launcher_contact *contact, const char *interface, int *out,
                           struct epa_error *);

/* A new connection, and from where ("": this host); -1: nobody, or another user at our
 * local name. */
int net_accept(int listener, char *from, size_t room);

/* Whether all that `name` means here is this host itself and no other can reach. False where
 * it means nothing. */
bool net_is_loopback(const char *name);

/* The interface of this host that a connection leaves by; "": none that leads to another host, or
 * it is not known. `out` has IF_NAMESIZE bytes. */
void net_interface(int fd, char *out);

/* Tries the addresses of a contact in turn, again and again, until one proves to know
 * the token, as it is proved to it. */
struct net_dial {
    const struct launcher_contact *contact;
    enum net_dial_state { NET_PAUSE, NET_CONNECTING, NET_GREETING, NET_PROVING } state;
    uint32_t at; /* the address whose turn is next */
    struct addrinfo *list, *next;
    struct conn conn;
    struct conn_greet greet;
    uint64_t since_ns, again_ns;
    char name[80], why[256]; /* who is tried; why the last attempt failed */
};

enum net_dialed {
    NET_TRYING,
    NET_PROVED,
    NET_REFUSED, /* and it makes no sense to try again: `why` */
};

/* `fd` is a connection to try first, or -1. */
void net_dial_init(struct net_dial *out, const struct launcher_contact *, int fd);
void net_dial_finish(struct net_dial *);

struct pollfd net_dial_poll(const struct net_dial *);

/* With NET_PROVED the connection is the caller's. */
enum net_dialed net_dial_turn(struct net_dial *, short revents, uint64_t now, struct conn *out);

#endif
