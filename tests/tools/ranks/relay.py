#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A cable with a delay that loses frames, for kernels without netem: relay.py NETNS TAP NETNS TAP DELAY_MS LOSS_PERCENT.

Frames of each TAP device leave at the other one, in order. Runs until it is killed.
"""

import collections
import ctypes
import fcntl
import os
import random
import select
import struct
import sys
import time

CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP_NO_PI = 0x0002 | 0x1000


def open_tap(namespace, name):
    """A device of that namespace; this process is in it afterwards."""
    with open(f"/run/netns/{namespace}") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) != 0:
            sys.exit(f"setns {namespace}: {os.strerror(ctypes.get_errno())}")
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP_NO_PI))
    return tap


def main(first_namespace, first, second_namespace, second, delay_ms, loss_percent):
    taps = [open_tap(first_namespace, first), open_tap(second_namespace, second)]
    delay, loss = float(delay_ms) / 1000, float(loss_percent) / 100
    dice = random.Random(1)
    waiting = collections.deque()  # (when, where to, frame)
    print("ready", flush=True)
    while True:
        rest = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for tap in select.select(taps, [], [], rest)[0]:
            frame = os.read(tap, 65536)
            if dice.random() >= loss:
                waiting.append((time.monotonic() + delay, taps[tap == taps[0]], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, tap, frame = waiting.popleft()
            try:
                os.write(tap, frame)
            except OSError:  # the device is down, or its queue is full: a cable loses it
                pass


if __name__ == "__main__":
    main(*sys.argv[1:])
