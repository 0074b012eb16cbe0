#!/usr/bin/env python3
"""A network cable that delays and loses frames, for kernels without netem.

cable.py NAME PID NAME_THERE DELAY_US LOSS_PERCENT: one end is the network interface NAME here, the other NAME_THERE in
the network namespace of PID. Both are gone when this program is. It says "ready" once they are there."""
import collections
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time

FRAMES, FRAME_BYTES = 1000, 2048  # as many as netem keeps in flight; then frames are lost
TUNSETIFF, IFF_TAP, IFF_NO_PI, CLONE_NEWNET = 0x400454CA, 0x0002, 0x1000, 0x40000000


def open_end(name):
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return fd


def enter_network_of(pid):
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/proc/{pid}/ns/net", "rb") as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace.name)


def frames_of(end):
    try:
        while True:
            yield os.read(end, FRAME_BYTES)
    except OSError:  # there is none, or the end is down
        pass


def give(end, frame):
    """An end that is down takes no frame: it is lost, as on a cable with nothing behind it."""
    try:
        os.write(end, frame)
    except OSError:
        pass


def main(name, pid, name_there, delay_us, loss_percent):
    delay, loss = float(delay_us) * 1e-6, float(loss_percent) / 100
    here = open_end(name)
    enter_network_of(pid)
    there = open_end(name_there)
    lanes = [(here, there, collections.deque()), (there, here, collections.deque())]  # frames in the order that they are due
    draw = random.Random(1).random  # the same frames are lost in each run that sends the same
    try:  # a real one waits for no core
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pass
    print("ready", flush=True)
    while True:
        due = min((frames[0][0] for *_, frames in lanes if frames), default=time.monotonic() + 1)
        select.select([here, there], [], [], max(0, due - time.monotonic()))
        for end, other, frames in lanes:
            for frame in frames_of(end):
                if len(frames) < FRAMES and draw() >= loss:
                    frames.append((time.monotonic() + delay, frame))
            while frames and frames[0][0] <= time.monotonic():
                give(other, frames.popleft()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
