/* .npy headers: a magic, a length, and a Python dict literal with three keys, `descr`,
 * `fortran_order` and `shape`. Read by a cursor that knows its offset in the file, so that
 * each message can name it. */
#include "op/moe/routing.h"

#include <stdbool.h>
#include <string.h>

enum { MAGIC_BYTES = 6, HEADER_MAX = 16384 };

static const char magic[] = "\x93NUMPY";

struct cursor {
    const char *name;
    const char *data;
    size_t at, end;
    struct epa_error *err;
};

static enum epa_status refuse(const struct cursor *c, const char *what)
{
    return epa_fail(c->err, EPA_ERR_CONFIG, "%s: offset %zu: %s", c->name, c->at, what);
}

static void skip_blanks(struct cursor *c)
{
    while (c->at < c->end && strchr(" \t\n", c->data[c->at]) != NULL && c->data[c->at] != 0)
        c->at++;
}

/* Takes `what` if it comes next. */
static bool take(struct cursor *c, const char *what)
{
    size_t n = strlen(what);

    skip_blanks(c);
    if (c->end - c->at < n || memcmp(c->data + c->at, what, n) != 0)
        return false;
    c->at += n;
    return true;
}

static enum epa_status take_string(struct cursor *c, char *out, size_t room)
{
    size_t start;
    char quote;

    skip_blanks(c);
    if (c->at == c->end || (c->data[c->at] != '\'' && c->data[c->at] != '"'))
        return refuse(c, "a quoted word should be here");
    quote = c->data[c->at++];
    start = c->at;
    while (c->at < c->end && c->data[c->at] != quote)
        c->at++;
    if (c->at == c->end || c->at - start >= room) {
        c->at = start;
        return refuse(c, "this word has no end, or is too long to be one of a .npy header");
    }
    memcpy(out, c->data + start, c->at - start);
    out[c->at - start] = 0;
    c->at++;
    return EPA_OK;
}

static enum epa_status take_number(struct cursor *c, uint64_t *out)
{
    uint64_t v = 0;
    size_t start;

    skip_blanks(c);
    start = c->at;
    for (; c->at < c->end && c->data[c->at] >= '0' && c->data[c->at] <= '9'; c->at++) {
        if (v > UINT64_MAX / 100) {
            c->at = start;
            return refuse(c, "this dimension is too large");
        }
        v = v * 10 + (uint64_t)(c->data[c->at] - '0');
    }
    if (c->at == start)
        return refuse(c, "a dimension should be here, a number that is not negative");
    *out = v;
    return EPA_OK;
}

static enum epa_status read_descr(struct cursor *c, struct npy *out)
{
    static const char *const known[] = {"|u1", "|i1", "<u2", "<i2", "<u4", "<i4",
                                        "<i8", "<u8", "<f2", "<f4", "<f8"};
    size_t start;
    char descr[16];
    enum epa_status status;

    skip_blanks(c);
    start = c->at;
    if (c->at < c->end && c->data[c->at] == '[')
        return refuse(c, "this is an array of structures; save one plain array");
    status = take_string(c, descr, sizeof(descr));
    if (status != EPA_OK)
        return status;
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
        if (strcmp(descr, known[i]) == 0) {
            out->kind = descr[1];
            out->item_bytes = (uint32_t)(descr[2] - '0');
            return EPA_OK;
        }
    c->at = start;
    if (descr[0] == '>')
        return refuse(c, "big-endian numbers; save with .astype('<...')");
    if (strchr(descr, 'O') != NULL)
        return refuse(c, "an array of Python objects; save one of numbers");
    return epa_fail(c->err, EPA_ERR_CONFIG,
                    "%s: offset %zu: type '%s' is neither an integer nor a float array", c->name,
                    c->at, descr);
}

static enum epa_status read_order(struct cursor *c)
{
    if (take(c, "False"))
        return EPA_OK;
    if (take(c, "True"))
        return refuse(c, "Fortran order; save numpy.ascontiguousarray(...) of it");
    return refuse(c, "fortran_order should be True or False");
}

static enum epa_status read_shape(struct cursor *c, struct npy *out)
{
    enum epa_status status;

    if (!take(c, "("))
        return refuse(c, "a shape should be here: (tokens, ...)");
    while (!take(c, ")")) {
        if (out->dimensions == NPY_DIMENSIONS)
            return refuse(c, "more than 3 dimensions");
        status = take_number(c, &out->shape[out->dimensions]);
        if (status != EPA_OK)
            return status;
        out->dimensions++;
        if (take(c, ","))
            continue;
        if (take(c, ")"))
            break;
        return refuse(c, "a comma or the end of the shape should be here");
    }
    if (out->dimensions == 0)
        return refuse(c, "a single number, not an array");
    return EPA_OK;
}

static enum epa_status read_dict(struct cursor *c, struct npy *out)
{
    bool descr = false, order = false, shape = false, *seen;
    enum epa_status status;
    char key[16];

    if (!take(c, "{"))
        return refuse(c, "the header should begin with {");
    while (!take(c, "}")) {
        status = take_string(c, key, sizeof(key));
        if (status != EPA_OK)
            return status;
        seen = strcmp(key, "descr") == 0           ? &descr
               : strcmp(key, "fortran_order") == 0 ? &order
               : strcmp(key, "shape") == 0         ? &shape
                                                   : NULL;
        if (seen == NULL || *seen)
            return refuse(c, "this key is not known, or is given twice");
        *seen = true;
        if (!take(c, ":"))
            return refuse(c, "a colon should be here");
        status = seen == &descr   ? read_descr(c, out)
                 : seen == &order ? read_order(c)
                                  : read_shape(c, out);
        if (status != EPA_OK)
            return status;
        if (!take(c, ",") && (c->at == c->end || c->data[c->at] != '}'))
            return refuse(c, "a comma or } should be here");
    }
    if (!descr || !order || !shape)
        return refuse(c, "the header must have descr, fortran_order and shape");
    skip_blanks(c);
    return c->at == c->end ? EPA_OK : refuse(c, "the header should end after its }");
}

/* Sets c to the dict. */
static enum epa_status find_dict(struct cursor *c, size_t bytes)
{
    const unsigned char *byte = (const unsigned char *)c->data;
    uint32_t length = 0, length_bytes;

    if (!npy_is(c->data, bytes))
        return refuse(c, "no .npy file: it should begin with \\x93NUMPY");
    c->at = MAGIC_BYTES;
    if (bytes < MAGIC_BYTES + 2)
        return refuse(c, "truncated in its header; write it again");
    if (byte[MAGIC_BYTES] < 1 || byte[MAGIC_BYTES] > 3)
        return epa_fail(c->err, EPA_ERR_CONFIG,
                        "%s: offset %zu: version %u of .npy; 1, 2 and 3 can be read", c->name,
                        c->at, byte[MAGIC_BYTES]);
    c->at += 2;
    length_bytes = byte[MAGIC_BYTES] == 1 ? 2 : 4;
    if (bytes - c->at < length_bytes)
        return refuse(c, "truncated in its header; write it again");
    for (uint32_t i = 0; i < length_bytes; i++)
        length |= (uint32_t)byte[c->at + i] << (8 * i);
    if (length > HEADER_MAX)
        return epa_fail(c->err, EPA_ERR_CONFIG,
                        "%s: offset %zu: a header of %u bytes; one of a plain array has less "
                        "than %d",
                        c->name, c->at, length, HEADER_MAX);
    c->at += length_bytes;
    if (bytes - c->at < length)
        return refuse(c, "truncated in its header; write it again");
    c->end = c->at + length;
    return EPA_OK;
}

int npy_is(const void *data, size_t bytes)
{
    return bytes >= MAGIC_BYTES && memcmp(data, magic, MAGIC_BYTES) == 0;
}

enum epa_status npy_parse(const char *name, const void *data, size_t bytes, struct npy *out,
                          struct epa_error *err)
{
    struct cursor c = {.name = name, .data = data, .err = err};
    struct npy npy = {.items = 1};
    enum epa_status status = find_dict(&c, bytes);
    uint64_t room;

    if (status == EPA_OK)
        status = read_dict(&c, &npy);
    if (status != EPA_OK)
        return status;
    npy.offset = c.end;
    room = bytes - c.end;
    for (uint32_t i = 0; i < npy.dimensions; i++) {
        if (npy.shape[i] == 0)
            return refuse(&c, "an empty array: a dimension of its shape is 0");
        /* Items are at least a byte: more of them than bytes means truncated. */
        if (npy.shape[i] > room / npy.items) {
            npy.items = UINT64_MAX;
            break;
        }
        npy.items *= npy.shape[i];
    }
    if (npy.items > room / npy.item_bytes)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: offset %zu: truncated: %llu bytes of data, its shape says more; "
                        "write it again",
                        name, bytes, (unsigned long long)room);
    if (npy.items * npy.item_bytes != room)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: offset %llu: %llu bytes after the end of the array", name,
                        (unsigned long long)(npy.offset + npy.items * npy.item_bytes),
                        (unsigned long long)(room - npy.items * npy.item_bytes));
    *out = npy;
    return EPA_OK;
}
