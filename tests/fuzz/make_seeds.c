/* Writes the seeds of fuzz messages and fuzz rendezvous: a message of each type as its struct is
 * today, and what launchers say from their hello to their end. It ends badly where a seed is not
 * taken, so that no change of a struct leaves a corpus behind that covers nothing.
 *     make_seeds FOLDER */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <epa2a/plugin.h>

#include "launch/conn.h"

#include "../../plugins/transport/ucx/lanes.h"
#include "messages.h"

struct seed {
    unsigned char data[2048];
    size_t bytes;
};

static const char *folder;

static void add(struct seed *s, const void *data, size_t bytes)
{
    if (bytes > sizeof(s->data) - s->bytes)
        abort();
    if (bytes > 0)
        memcpy(s->data + s->bytes, data, bytes);
    s->bytes += bytes;
}

static void write_seed(const char *of, const char *name, const struct seed *s)
{
    char path[1024];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, of);
    mkdir(path, 0777);
    snprintf(path, sizeof(path), "%s/%s/%s", folder, of, name);
    file = fopen(path, "w");
    if (file == NULL || fwrite(s->data, 1, s->bytes, file) != s->bytes || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void refuse(const char *name)
{
    fprintf(stderr, "make_seeds: '%s' is not taken as what it is\n", name);
    exit(1);
}

/* ---- messages: a byte of kind, one of ranks, the message ---- */

static const unsigned char nonce[32] = {1, 2, 3}, mask[8] = {0x0f}, payload[24] = {7, 8, 9};

static struct conn_message begin(struct seed *s, enum messages_kind kind, uint32_t ranks,
                                 const void *head, size_t head_bytes, const void *tail,
                                 size_t tail_bytes)
{
    const unsigned char first[2] = {(unsigned char)kind, (unsigned char)(ranks - 1)};

    s->bytes = 0;
    add(s, first, sizeof(first));
    add(s, head, head_bytes);
    add(s, tail, tail_bytes);
    return (struct conn_message){messages_type[kind], s->data + 2, s->bytes - 2};
}

static void write_messages(void)
{
    static const char prints[] = "bench:\n  warmup: 10\n";
    struct conn_greet greet = {.protocol = CONN_PROTOCOL};
    struct conn_hello hello = {
        .rank = 1, .size = 4, .pid = 4711, .abi = EPA_ABI, .host = "h", .mask_bytes = sizeof(mask)};
    struct conn_welcome welcome = {.pid = 4711,
                                   .share = 1,
                                   .shares = 2,
                                   .local_cores = 8,
                                   .hosts = 2,
                                   .host = "h",
                                   .interface = "eth0"};
    struct conn_word word = {.status = EPA_ERR_DIED, .rank = 2, .signal = 9, .text = "is gone"};
    struct conn_piece step = {.number = 1, .rank = 3}, block = {.number = 100};
    struct conn_message m, rest;
    struct card cards[4];
    const uint32_t node[4] = {0, 0, 1, 1};
    unsigned char tail[sizeof(mask) + sizeof(prints)];
    struct epa_error err = {EPA_OK, ""};
    struct seed s;

    memcpy(greet.magic, conn_magic, sizeof(greet.magic));
    memcpy(greet.nonce, nonce, sizeof(nonce));
    m = begin(&s, MESSAGES_GREET, 4, &greet, sizeof(greet), NULL, 0);
    if (!conn_get_greet(&m, &greet))
        refuse("greet");
    write_seed("messages", "greet", &s);
    memcpy(tail, mask, sizeof(mask));
    memcpy(tail + sizeof(mask), prints, sizeof(prints));
    m = begin(&s, MESSAGES_HELLO, 4, &hello, sizeof(hello), tail, sizeof(tail));
    if (!conn_get_hello(&m, &hello, &rest))
        refuse("hello");
    write_seed("messages", "hello", &s);
    m = begin(&s, MESSAGES_WELCOME, 4, &welcome, sizeof(welcome), node, sizeof(node));
    if (!conn_get_welcome(&m, 4, &welcome, (uint32_t[4]){0}))
        refuse("welcome");
    write_seed("messages", "welcome", &s);
    m = begin(&s, MESSAGES_WORD, 4, &word, sizeof(word), NULL, 0);
    if (!conn_get_word(&m, &word))
        refuse("word");
    write_seed("messages", "word", &s);
    m = begin(&s, MESSAGES_STEP, 4, &step, sizeof(step), payload, sizeof(payload));
    if (!conn_get_step(&m, 4, MESSAGES_SLOT, &step, &rest))
        refuse("step");
    write_seed("messages", "step", &s);
    m = begin(&s, MESSAGES_BLOCK, 4, &block, sizeof(block), payload, sizeof(payload));
    if (!conn_get_block(&m, MESSAGES_BLOCK_BYTES, &block, &rest))
        refuse("block");
    write_seed("messages", "block", &s);
    memset(cards, 0, sizeof(cards));
    for (uint32_t r = 0; r < 4; r++)
        cards[r] = (struct card){.base = 0x7f0000000000 + r * 0x10000,
                                 .heap_bytes = 0x8000,
                                 .region_bytes = 0x9000,
                                 .signals = 5,
                                 .address_bytes = 77 + r,
                                 .key_bytes = 30,
                                 .version = {1, 13}};
    (void)begin(&s, MESSAGES_CARDS, 4, cards, sizeof(cards), NULL, 0);
    if (cards_check(cards, 4, 3, &err) != EPA_OK)
        refuse("cards");
    write_seed("messages", "cards", &s);
}

/* ---- what launchers say to a rendezvous of two: a byte that says who and how, a type, a length,
 * the bytes ---- */

static void say(struct seed *s, uint32_t from, uint32_t how, uint32_t type, const void *data,
                size_t n)
{
    const unsigned char head[3] = {(unsigned char)(from | how), (unsigned char)type,
                                   (unsigned char)n};

    add(s, head, sizeof(head));
    add(s, data, n);
}

static void say_piece(struct seed *s, uint32_t rank, uint32_t type, uint64_t number,
                      const void *data, size_t n)
{
    const struct conn_piece piece = {.number = number, .rank = rank};
    unsigned char both[sizeof(piece) + sizeof(payload)];

    memcpy(both, &piece, sizeof(piece));
    memcpy(both + sizeof(piece), data, n);
    say(s, rank, 0, type, both, sizeof(piece) + n);
}

static void say_word(struct seed *s, uint32_t rank, enum epa_status status, const char *text)
{
    unsigned char data[64] = {(unsigned char)-status, (unsigned char)rank, 0};

    memcpy(data + 3, text, strlen(text) + 1);
    say(s, rank, 0, CONN_WORD, data, 3 + strlen(text) + 1);
}

static void meet(struct seed *s)
{
    s->bytes = 0;
    for (uint32_t r = 0; r < 2; r++)
        say(s, r, RENDEZVOUS_HELLO, r, NULL, 0);
}

/* Two steps of the set-up, results, and both are done. */
static void write_well(struct seed *s)
{
    meet(s);
    for (uint32_t r = 0; r < 4; r++)
        say_piece(s, r % 2, CONN_STEP, 1 + r / 2, payload, sizeof(payload));
    say_word(s, 0, EPA_OK, "");
    say_word(s, 1, EPA_OK, "");
    say_piece(s, 1, CONN_BLOCK, RENDEZVOUS_BLOCK - sizeof(payload), payload, sizeof(payload));
    say(s, 1, 0, CONN_DONE, NULL, 0);
    say(s, 0, 0, CONN_DONE, NULL, 0);
    write_seed("rendezvous", "well", s);
}

static void write_rendezvous(void)
{
    static const struct {
        const char *name;
        uint32_t how;
        unsigned char data[12];
        uint32_t n;
    } hello[] = {
        {"other experiment", RENDEZVOUS_HELLO, "\0b: 1\n", 6},
        {"other value", RENDEZVOUS_HELLO, "\0a: 2\n", 6},
        {"a mask", RENDEZVOUS_HELLO, "\3\377\1\2a: 1\n", 9},
        {"a mask too long", RENDEZVOUS_HELLO, "\310\1\2", 3},
        {"other abi", RENDEZVOUS_HELLO | RENDEZVOUS_ABI, "", 0},
        {"other size", RENDEZVOUS_HELLO | RENDEZVOUS_SIZE, "", 0},
        {"names without an end", RENDEZVOUS_HELLO | RENDEZVOUS_NAMES, "", 0},
    };
    static const char *const type_name[] = {
        [CONN_GREET] = "greet", [CONN_CHALLENGE] = "challenge", [CONN_PROOF] = "proof",
        [CONN_HELLO] = "hello", [CONN_WORD] = "word",           [CONN_BLOCK] = "block",
        [CONN_DONE] = "done",   [CONN_REFUSED] = "refused",     [CONN_WELCOME] = "welcome",
        [CONN_ABORT] = "abort", [CONN_VERDICT] = "verdict",     [CONN_STEP] = "step",
        [CONN_ALIVE] = "alive",
    };
    const struct conn_greet stranger = {.protocol = CONN_PROTOCOL + 1};
    struct conn_greet greet = stranger;
    const uint32_t large[4] = {CONN_STEP, 1u << 30, 0, 0};
    char name[64];
    struct seed s;

    write_well(&s);
    meet(&s);
    say_piece(&s, 0, CONN_STEP, 1, payload, 8);
    say_piece(&s, 1, CONN_STEP, 1, payload, 16);
    write_seed("rendezvous", "steps of two lengths", &s);
    meet(&s);
    say_word(&s, 1, EPA_ERR_DIED, "it is gone \033[2J");
    write_seed("rendezvous", "fails", &s);
    meet(&s);
    say(&s, 1, 0, CONN_DONE, NULL, 0);
    say_piece(&s, 1, CONN_BLOCK, 0, payload, 8);
    write_seed("rendezvous", "more after done", &s);
    meet(&s);
    say_piece(&s, 1, CONN_BLOCK, RENDEZVOUS_BLOCK - 1, payload, 8);
    write_seed("rendezvous", "block beyond its end", &s);
    meet(&s);
    say(&s, 1, RENDEZVOUS_RAW, 0, large, sizeof(large));
    write_seed("rendezvous", "too large", &s);
    meet(&s);
    say(&s, 2, RENDEZVOUS_HELLO, 0, NULL, 0);
    write_seed("rendezvous", "twice", &s);
    for (uint32_t type = CONN_GREET; type <= CONN_ALIVE; type++) {
        meet(&s);
        say(&s, 1, 0, type, payload, sizeof(payload));
        snprintf(name, sizeof(name), "says %s", type_name[type]);
        write_seed("rendezvous", name, &s);
        s.bytes = 0;
        say(&s, RENDEZVOUS_STRANGER, 0, type, payload, sizeof(payload));
        snprintf(name, sizeof(name), "stranger says %s", type_name[type]);
        write_seed("rendezvous", name, &s);
    }
    memcpy(greet.magic, conn_magic, sizeof(greet.magic));
    s.bytes = 0;
    say(&s, RENDEZVOUS_STRANGER, 0, CONN_GREET, &greet, sizeof(greet));
    write_seed("rendezvous", "other protocol", &s);
    s.bytes = 0;
    greet.protocol = CONN_PROTOCOL;
    say(&s, RENDEZVOUS_STRANGER, 0, CONN_GREET, &greet, sizeof(greet));
    say(&s, RENDEZVOUS_STRANGER, 0, CONN_PROOF, payload, sizeof(payload));
    write_seed("rendezvous", "no proof", &s);
    for (size_t i = 0; i < sizeof(hello) / sizeof(hello[0]); i++) {
        s.bytes = 0;
        say(&s, 1, hello[i].how, 1, hello[i].data, hello[i].n);
        say(&s, 0, RENDEZVOUS_HELLO, 0, NULL, 0);
        write_seed("rendezvous", hello[i].name, &s);
    }
}

int main(int n, char **arg)
{
    if (n != 2)
        return 2;
    folder = arg[1];
    mkdir(folder, 0777);
    write_messages();
    write_rendezvous();
    return 0;
}
