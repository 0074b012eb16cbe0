/* A network cable that delays and loses frames, for kernels without netem.
 *   cable NAME PID NAME_THERE DELAY_US LOSS_PERCENT
 * One end is the network interface NAME here, the other NAME_THERE in the network namespace
 * of PID. Both are gone when this program is. It says "ready" once they are there. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* As many as a thousand packets in flight, which is netem's limit; then frames are lost. */
enum { FRAMES = 1000, FRAME_BYTES = 2048 };

struct frame {
    uint64_t due_ns;
    size_t bytes;
    char data[FRAME_BYTES];
};

/* One direction: a ring of frames, due in the order in which they came. */
struct lane {
    int from, to;
    uint32_t head, held;
    struct frame *frame; /* [FRAMES] */
};

struct cable {
    uint64_t delay_ns;
    double loss; /* of frames, 0 to 1 */
    uint64_t random;
    struct lane lane[2];
};

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what)
{
    fprintf(stderr, "cable: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* splitmix64: the same frames are lost in each run that sends the same. */
static bool is_lost(struct cable *c)
{
    uint64_t x = c->random += 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-53 < c->loss;
}

static int open_end(const char *name)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI};
    int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0)
        die("/dev/net/tun");
    snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", name);
    if (ioctl(fd, TUNSETIFF, &request) != 0)
        die(name);
    return fd;
}

static void enter_network_of(const char *pid)
{
    char path[64];
    int fd;

    snprintf(path, sizeof(path), "/proc/%s/ns/net", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
        die(path);
    close(fd);
}

static void take(struct cable *c, struct lane *lane)
{
    char spill[FRAME_BYTES];

    for (;;) {
        struct frame *f = &lane->frame[(lane->head + lane->held) % FRAMES];
        bool full = lane->held == FRAMES;
        ssize_t got = read(lane->from, full ? spill : f->data, FRAME_BYTES);

        if (got <= 0)
            return;
        if (full || is_lost(c))
            continue;
        f->bytes = (size_t)got;
        f->due_ns = now_ns() + c->delay_ns;
        lane->held++;
    }
}

/* An end that is down takes no frame: it is lost, as on a cable with nothing behind it. */
static void give(struct lane *lane, uint64_t now)
{
    while (lane->held > 0 && lane->frame[lane->head].due_ns <= now) {
        struct frame *f = &lane->frame[lane->head];
        ssize_t written = write(lane->to, f->data, f->bytes);

        (void)written;
        lane->head = (lane->head + 1) % FRAMES;
        lane->held--;
    }
}

static void run(struct cable *c)
{
    for (;;) {
        struct pollfd fds[2];
        uint64_t now = now_ns(), next = now + 1000000000u;
        struct timespec pause;

        for (int i = 0; i < 2; i++) {
            struct lane *lane = &c->lane[i];

            fds[i] = (struct pollfd){.fd = lane->from, .events = POLLIN};
            if (lane->held > 0 && lane->frame[lane->head].due_ns < next)
                next = lane->frame[lane->head].due_ns;
        }
        next = next > now ? next - now : 0;
        pause.tv_sec = (time_t)(next / 1000000000u);
        pause.tv_nsec = (long)(next % 1000000000u);
        if (ppoll(fds, 2, &pause, NULL) < 0 && errno != EINTR)
            die("ppoll");
        now = now_ns();
        for (int i = 0; i < 2; i++) {
            take(c, &c->lane[i]);
            give(&c->lane[i], now);
        }
    }
}

int main(int argc, char **argv)
{
    static struct cable c;
    int here, there;

    if (argc != 6) {
        fprintf(stderr, "usage: cable NAME PID NAME_THERE DELAY_US LOSS_PERCENT\n");
        return 2;
    }
    here = open_end(argv[1]);
    enter_network_of(argv[2]);
    there = open_end(argv[3]);
    c.delay_ns = strtoull(argv[4], NULL, 10) * 1000u;
    c.loss = strtod(argv[5], NULL) / 100;
    c.lane[0] = (struct lane){.from = here, .to = there};
    c.lane[1] = (struct lane){.from = there, .to = here};
    for (int i = 0; i < 2; i++) {
        c.lane[i].frame = malloc(FRAMES * sizeof(struct frame));
        if (c.lane[i].frame == NULL)
            die("no memory");
    }
    /* A real one waits for no core. Where that is not allowed, this one does. */
    (void)sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1});
    printf("ready\n");
    fflush(stdout);
    run(&c);
}
