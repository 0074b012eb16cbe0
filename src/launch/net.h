/* Addresses: where rank 0 listens, and how the others get to it. */
#ifndef NET_H
#define NET_H

#include "launch/launcher.h"

struct addrinfo;

/* Listens where `contact` says: at its local name, at its address (or on `interface`) and port,
 * or, where it names none, at a port that is free, on `interface` or everywhere; then fills it
 * with all addresses that others may reach, and with a token that is random. */
enum epa_status net_listen(struct launcher_contact *contact, const char *interface, int *out,
                           struct epa_error *);

/* Somebody who has come, and from where ("": this host); -1: nobody, or another user at our
 * local name. */
int net_accept(int listener, char *from, size_t room);

/* Whether all that `name` means here is this host itself and no other can reach. False where
 * it means nothing. */
bool net_is_loopback(const char *name);

/* Tries the addresses of a contact in turn, again and again. */
struct net_dial {
    const struct launcher_contact *contact;
    uint32_t at; /* the address whose turn is next */
    struct addrinfo *list, *next;
    int fd; /* to poll for writing; -1: a pause */
    uint64_t since_ns, again_ns;
    char name[80], why[256]; /* who is tried; why the last attempt failed */
};

void net_dial_init(struct net_dial *out, const struct launcher_contact *);
void net_dial_finish(struct net_dial *);

/* A socket that is connected, then the caller's; -1: not yet. */
int net_dial_turn(struct net_dial *, short revents, uint64_t now);

/* Who is there is not rank 0: goes on with the next. */
void net_dial_again(struct net_dial *, const char *why);

#endif
