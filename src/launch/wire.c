/* Messages to bytes and back. A reader keeps a cursor that goes bad once and stays so, so
 * that a message is checked in one place, at its end: nothing missing, nothing left over. */
#include "launch/wire.h"

#include <string.h>

static const unsigned char magic[8] = "epa2ahub";

struct writer {
    unsigned char *at;
    size_t used, room;
    bool full;
};

struct reader {
    const unsigned char *at;
    size_t left;
    bool bad;
};

void wire_put_u32(unsigned char *at, uint32_t value)
{
    for (uint32_t i = 0; i < 4; i++)
        at[i] = (unsigned char)(value >> (8 * i));
}

uint32_t wire_get_u32(const unsigned char *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

size_t wire_gather_bytes(uint32_t size)
{
    size_t each = WIRE_GATHER_MAX / (size > 0 ? size : 1);

    return each < 1024 ? 1024 : each;
}

/* ---- writing ---- */

static void put(struct writer *w, const void *data, size_t bytes)
{
    if (w->full || bytes > w->room - w->used) {
        w->full = true;
        return;
    }
    if (bytes > 0)
        memcpy(w->at + w->used, data, bytes);
    w->used += bytes;
}

static void put_u32(struct writer *w, uint32_t value)
{
    unsigned char data[4];

    wire_put_u32(data, value);
    put(w, data, sizeof(data));
}

static void put_u64(struct writer *w, uint64_t value)
{
    put_u32(w, (uint32_t)value);
    put_u32(w, (uint32_t)(value >> 32));
}

static void put_span(struct writer *w, struct wire_span span, size_t most)
{
    size_t bytes = span.bytes < most ? span.bytes : most;

    put_u32(w, (uint32_t)bytes);
    put(w, span.data, bytes);
}

static void put_text(struct writer *w, const char *text, size_t room)
{
    put_span(w, (struct wire_span){(const void *)text, strnlen(text, room - 1)}, room - 1);
}

static size_t written(const struct writer *w)
{
    return w->full ? 0 : w->used;
}

size_t wire_put_greet(unsigned char *at, size_t room, const struct wire_greet *greet)
{
    struct writer w = {.at = at, .room = room};

    put(&w, magic, sizeof(magic));
    put_u32(&w, greet->protocol);
    if (greet->protocol == WIRE_PROTOCOL)
        put_text(&w, greet->token, sizeof(greet->token));
    return written(&w);
}

size_t wire_put_hello(unsigned char *at, size_t room, const struct wire_hello *hello)
{
    struct writer w = {.at = at, .room = room};

    put_u32(&w, hello->rank);
    put_u32(&w, hello->size);
    put_u32(&w, hello->pid);
    put_u32(&w, hello->abi);
    put_text(&w, hello->version, sizeof(hello->version));
    put_text(&w, hello->host, sizeof(hello->host));
    put_text(&w, hello->machine, sizeof(hello->machine));
    put_text(&w, hello->identity, sizeof(hello->identity));
    put_span(&w, hello->mask, WIRE_MASK_MAX);
    put_span(&w, hello->fingerprint, WIRE_FINGERPRINT_MAX);
    return written(&w);
}

size_t wire_put_welcome(unsigned char *at, size_t room, const struct wire_welcome *welcome)
{
    struct writer w = {.at = at, .room = room};

    put_u32(&w, welcome->pid);
    put_text(&w, welcome->host, sizeof(welcome->host));
    put_u32(&w, welcome->share);
    put_u32(&w, welcome->shares);
    put_u32(&w, welcome->local_cores);
    put(&w, welcome->node.data, welcome->node.bytes);
    return written(&w);
}

size_t wire_put_word(unsigned char *at, size_t room, const struct wire_word *word)
{
    struct writer w = {.at = at, .room = room};

    put_u32(&w, (uint32_t) - (int32_t)word->status);
    put_u32(&w, word->rank);
    put_u32(&w, word->signal);
    put_text(&w, word->text, sizeof(word->text));
    return written(&w);
}

size_t wire_put_piece(unsigned char *at, size_t room, const struct wire_piece *piece)
{
    struct writer w = {.at = at, .room = room};

    put_u64(&w, piece->number);
    put(&w, piece->data.data, piece->data.bytes);
    return written(&w);
}

/* ---- reading ---- */

static const unsigned char *take(struct reader *r, size_t bytes)
{
    const unsigned char *at = r->at;

    if (r->bad || bytes > r->left) {
        r->bad = true;
        return NULL;
    }
    r->at += bytes;
    r->left -= bytes;
    return at;
}

static uint32_t take_u32(struct reader *r)
{
    const unsigned char *at = take(r, 4);

    return at == NULL ? 0 : wire_get_u32(at);
}

static uint64_t take_u64(struct reader *r)
{
    uint64_t low = take_u32(r);

    return low | (uint64_t)take_u32(r) << 32;
}

static struct wire_span take_span(struct reader *r, size_t most)
{
    uint32_t bytes = take_u32(r);
    const unsigned char *at;

    if (bytes > most)
        r->bad = true;
    at = take(r, bytes);
    return (struct wire_span){at, at == NULL ? 0 : bytes};
}

static void take_text(struct reader *r, char *out, size_t room)
{
    struct wire_span span = take_span(r, room - 1);

    for (size_t i = 0; i < span.bytes; i++)
        out[i] = span.data[i] < ' ' || span.data[i] == 127 ? '?' : (char)span.data[i];
    out[span.bytes] = 0;
}

static bool all_taken(const struct reader *r)
{
    return !r->bad && r->left == 0;
}

bool wire_get_greet(const unsigned char *data, size_t bytes, struct wire_greet *out)
{
    struct reader r = {.at = data, .left = bytes};
    const unsigned char *at = take(&r, sizeof(magic));

    *out = (struct wire_greet){0};
    if (at == NULL || memcmp(at, magic, sizeof(magic)) != 0)
        return false;
    out->protocol = take_u32(&r);
    if (out->protocol != WIRE_PROTOCOL)
        return !r.bad; /* what follows is written as we cannot know */
    take_text(&r, out->token, sizeof(out->token));
    return all_taken(&r);
}

bool wire_get_hello(const unsigned char *data, size_t bytes, struct wire_hello *out)
{
    struct reader r = {.at = data, .left = bytes};

    out->rank = take_u32(&r);
    out->size = take_u32(&r);
    out->pid = take_u32(&r);
    out->abi = take_u32(&r);
    take_text(&r, out->version, sizeof(out->version));
    take_text(&r, out->host, sizeof(out->host));
    take_text(&r, out->machine, sizeof(out->machine));
    take_text(&r, out->identity, sizeof(out->identity));
    out->mask = take_span(&r, WIRE_MASK_MAX);
    out->fingerprint = take_span(&r, WIRE_FINGERPRINT_MAX);
    return all_taken(&r);
}

bool wire_get_welcome(const unsigned char *data, size_t bytes, uint32_t size,
                      struct wire_welcome *out)
{
    struct reader r = {.at = data, .left = bytes};

    out->pid = take_u32(&r);
    take_text(&r, out->host, sizeof(out->host));
    out->share = take_u32(&r);
    out->shares = take_u32(&r);
    out->local_cores = take_u32(&r);
    out->node = (struct wire_span){take(&r, (size_t)size * 4), (size_t)size * 4};
    if (!all_taken(&r) || out->share >= out->shares || out->shares > size || out->local_cores == 0)
        return false;
    for (uint32_t i = 0; i < size; i++)
        if (wire_get_u32(out->node.data + (size_t)i * 4) > i)
            return false; /* nodes are numbered as they appear */
    return true;
}

bool wire_get_word(const unsigned char *data, size_t bytes, struct wire_word *out)
{
    struct reader r = {.at = data, .left = bytes};
    uint32_t status = take_u32(&r);

    out->status = (enum epa_status) - (int)(status & 0xff);
    out->rank = take_u32(&r);
    out->signal = take_u32(&r);
    take_text(&r, out->text, sizeof(out->text));
    return all_taken(&r) && status <= (uint32_t)-EPA_ERR_INTERRUPTED && out->signal < 65;
}

bool wire_get_piece(const unsigned char *data, size_t bytes, struct wire_piece *out)
{
    struct reader r = {.at = data, .left = bytes};

    out->number = take_u64(&r);
    out->data = (struct wire_span){r.at, r.left};
    return !r.bad;
}

/* ---- comparing ---- */

bool wire_token_is(const char *token, const char *want)
{
    char a[WIRE_TOKEN + 1] = {0}, b[WIRE_TOKEN + 1] = {0};
    unsigned char differs = 0;

    memcpy(a, token, strnlen(token, WIRE_TOKEN));
    memcpy(b, want, strnlen(want, WIRE_TOKEN));
    for (size_t i = 0; i < sizeof(a); i++)
        differs |= (unsigned char)(a[i] ^ b[i]);
    return differs == 0;
}

struct line {
    const char *at;
    size_t bytes;
};

static bool next_line(struct wire_span *rest, struct line *out)
{
    const unsigned char *end;

    *out = (struct line){(const char *)rest->data, rest->bytes};
    if (rest->bytes == 0)
        return false;
    end = memchr(rest->data, '\n', rest->bytes);
    if (end != NULL)
        out->bytes = (size_t)(end - rest->data);
    rest->data += out->bytes + (end != NULL);
    rest->bytes -= out->bytes + (end != NULL);
    return true;
}

/* Bytes of the key and its colon at the start of a line, blanks included; 0: it has none. */
static size_t key_bytes(struct line line)
{
    const char *colon = line.bytes == 0 ? NULL : memchr(line.at, ':', line.bytes);

    return colon == NULL ? 0 : (size_t)(colon - line.at) + 1;
}

static struct line trim(struct line line, size_t skip)
{
    line.at += skip;
    line.bytes -= skip;
    while (line.bytes > 0 && *line.at == ' ') {
        line.at++;
        line.bytes--;
    }
    if (line.bytes > 100)
        line.bytes = 100;
    return line;
}

static void tell(struct line section, struct line there, struct line here, char *out, size_t room)
{
    size_t key = key_bytes(here);
    struct line name, a, b;
    bool nested = key > 0 && here.at[0] == ' ' && section.bytes > 0;

    if (key == 0 || key != key_bytes(there) || memcmp(here.at, there.at, key) != 0)
        key = 0;
    name = trim((struct line){here.at, key}, 0);
    a = trim(there, key);
    b = trim(here, key);
    snprintf(out, room, "%.*s%s%.*s%s%.*s there, %.*s here",
             key > 0 && nested ? (int)section.bytes - 1 : 0, section.at,
             key > 0 && nested ? "." : "", (int)name.bytes, name.at, key > 0 ? " " : "",
             a.bytes == 0 ? 7 : (int)a.bytes, a.bytes == 0 ? "nothing" : a.at,
             b.bytes == 0 ? 7 : (int)b.bytes, b.bytes == 0 ? "nothing" : b.at);
    for (char *c = out; *c != 0; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
}

bool wire_difference(struct wire_span there, const char *here, char *out, size_t room)
{
    struct wire_span ours = {(const unsigned char *)here, strlen(here)};
    struct line section = {"", 0}, a, b;

    for (;;) {
        bool more_there = next_line(&there, &a), more_here = next_line(&ours, &b);

        if (!more_there && !more_here)
            return false;
        if (a.bytes != b.bytes || (a.bytes > 0 && memcmp(a.at, b.at, a.bytes) != 0)) {
            tell(section, a, b, out, room);
            return true;
        }
        if (b.bytes > 0 && b.at[0] != ' ')
            section = b.at[b.bytes - 1] == ':' ? b : (struct line){"", 0};
    }
}
