/* HMAC-SHA-256, by OpenSSL or, where the build found none, by the kernel (AF_ALG). */
#ifndef MAC_H
#define MAC_H

#include <stdbool.h>
#include <stddef.h>

enum { MAC_BYTES = 32 };

/* False: there is none here. Keys longer than a block of 64 bytes are refused. */
bool mac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
            unsigned char out[MAC_BYTES]);

/* Whether two are alike, in a time that does not depend on where they differ. */
bool mac_is(const unsigned char *a, const unsigned char *b);

#endif
