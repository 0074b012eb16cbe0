/* Addresses: where the hub listens, and how an agent gets to it. */
#ifndef NET_H
#define NET_H

#include "launch/launcher.h"

struct addrinfo;

enum { NET_LISTENERS = 2 };

/* Listens where `contact` says, or on `interface` at its port. */
enum epa_status net_listen_at(const struct launcher_contact *contact, const char *interface,
                              int *out, struct epa_error *);

/* Listens at a port that is free, on `interface` or, where that is NULL, everywhere; fills
 * `contact` with all addresses that others may reach, and with a token that is random. */
enum epa_status net_listen_anywhere(const char *interface, struct launcher_contact *contact,
                                    int *out, struct epa_error *);

/* Whether all that `name` means here is this host itself and no other can reach. False where
 * it means nothing. */
bool net_is_loopback(const char *name);

/* Tries the addresses of a contact in turn, again and again. */
struct net_dial {
    const struct launcher_contact *contact;
    uint32_t at; /* the address whose turn it is */
    struct addrinfo *list, *next;
    int fd; /* to poll for writing; -1: a pause */
    uint64_t since_ns, again_ns;
    char why[256]; /* the last attempt failed */
};

void net_dial_init(struct net_dial *out, const struct launcher_contact *);
void net_dial_finish(struct net_dial *);

/* A socket that is connected, then the caller's; -1: not yet. */
int net_dial_turn(struct net_dial *, short revents, uint64_t now);

/* Who is there is not the hub: goes on with the next. */
void net_dial_again(struct net_dial *, const char *why);

#endif
