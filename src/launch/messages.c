/* See messages.h. What comes from another host is looked at here, and nowhere else. */
#include "launch/messages.h"

#include <string.h>

const char conn_magic[8] = "epa2ahub";

bool conn_get(const struct conn_message *m, void *out, size_t bytes, struct conn_message *rest)
{
    if (m->bytes < bytes)
        return false;
    memcpy(out, m->data, bytes);
    *rest = (struct conn_message){m->type, m->data + bytes, m->bytes - bytes};
    return true;
}

void conn_clean(char *text, size_t room)
{
    text[room - 1] = 0;
    for (; *text != 0; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

bool conn_get_greet(const struct conn_message *m, struct conn_greet *out)
{
    struct conn_message rest;

    return conn_get(m, out, sizeof(*out), &rest) && rest.bytes == 0 &&
           memcmp(out->magic, conn_magic, sizeof(out->magic)) == 0;
}

bool conn_get_hello(const struct conn_message *m, struct conn_hello *out, struct conn_message *rest)
{
    if (m->type != CONN_HELLO || !conn_get(m, out, sizeof(*out), rest) ||
        out->mask_bytes > rest->bytes || out->mask_bytes > CONN_MASK_MAX)
        return false;
    conn_clean(out->host, sizeof(out->host));
    conn_clean(out->machine, sizeof(out->machine));
    conn_clean(out->identity, sizeof(out->identity));
    return true;
}

bool conn_get_welcome(const struct conn_message *m, uint32_t ranks, struct conn_welcome *out,
                      uint32_t *node)
{
    struct conn_message nodes;
    uint32_t known = 0;

    if (!conn_get(m, out, sizeof(*out), &nodes) || nodes.bytes != ranks * sizeof(*node) ||
        out->share >= out->shares || out->shares > ranks || out->local_cores == 0 ||
        out->hosts == 0 || out->hosts > ranks)
        return false;
    memcpy(node, nodes.data, nodes.bytes);
    for (uint32_t r = 0; r < ranks; r++) { /* numbered as they appear */
        if (node[r] > known)
            return false;
        known += node[r] == known;
    }
    conn_clean(out->host, sizeof(out->host));
    conn_clean(out->interface, sizeof(out->interface));
    return true;
}

bool conn_get_word(const struct conn_message *m, struct conn_word *out)
{
    struct conn_message rest;

    if (!conn_get(m, out, sizeof(*out), &rest) || rest.bytes != 0)
        return false;
    conn_clean(out->text, sizeof(out->text));
    return out->status <= 0 && out->status >= EPA_ERR_INTERRUPTED && out->signal < 65;
}

bool conn_get_step(const struct conn_message *m, uint32_t ranks, size_t most, struct conn_step *out)
{
    struct conn_message rest;
    struct conn_piece piece;

    if (!conn_get(m, &piece, sizeof(piece), &rest))
        return false;
    *out = (struct conn_step){.number = piece.number, .missing = ranks, .data = rest.data};
    if (m->type == CONN_MISSING) {
        if (rest.bytes != sizeof(out->missing))
            return false;
        memcpy(&out->missing, rest.data, sizeof(out->missing));
        return out->missing < ranks;
    }
    out->bytes = rest.bytes / ranks;
    return rest.bytes % ranks == 0 && out->bytes <= most;
}

bool conn_get_block(const struct conn_message *m, size_t block_bytes, struct conn_piece *out,
                    struct conn_message *data)
{
    return conn_get(m, out, sizeof(*out), data) && out->number <= block_bytes &&
           data->bytes <= block_bytes - out->number;
}
