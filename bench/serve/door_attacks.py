# SPDX-License-Identifier: Apache-2.0
"""What strangers without a key do to a server's door: bytes without end, bodies all at once, connections that ask nothing."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import socket
import tempfile
import threading
import time

from served import Served

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PIECE = b"x" * 65536
ATTACK_S = 5
MOST_BYTES = 256 << 20


def endless():
    """name, what begins it, what goes on for ever. Each is bytes that a parser may want to see the end of."""
    return [
        ("chunk extensions", CHUNKED + b"5;", PIECE),
        ("digits of a chunk's size", CHUNKED, b"0" * len(PIECE)),
        ("trailers", CHUNKED + b"0\r\n", b"X: " + PIECE + b"\r\n"),
        ("one header", HEAD + b"X: ", PIECE),
        ("a body without a key", HEAD + b"Content-Length: 5000000\r\n\r\n", PIECE),
        ("empty lines", b"", b"\r\n" * (len(PIECE) // 2)),
    ]


def peak_kib(pid):
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text()).group(1))


def send_without_end(server, begin, more):
    """Until the server closes, or some seconds or bytes are over. Returns the bytes that left, and the answer's status."""
    connection = socket.create_connection((server.host, server.port), timeout=10)
    sent, answer = 0, b""
    deadline = time.monotonic() + ATTACK_S
    with contextlib.suppress(OSError):
        connection.sendall(begin)
        connection.settimeout(1)
        while sent < MOST_BYTES and time.monotonic() < deadline:
            sent += connection.send(more)
    with contextlib.suppress(OSError):
        connection.settimeout(2)
        answer = connection.recv(4096)
    connection.close()
    return sent, answer[9:12].decode() or "none"


def measure_endless(server):
    """The memory that one connection takes of the gateway."""
    pid = server.process.pid
    rows = []
    for name, begin, more in endless():
        pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
        before = peak_kib(pid)
        sent, status = send_without_end(server, begin, more)
        row = {"case": name, "sent_mib": round(sent / 2**20, 1), "status": status,
               "memory_mib": round((peak_kib(pid) - before) / 1024, 2)}
        row["good"] = row["memory_mib"] <= 1
        rows.append(row)
    return rows


def measure_bodies(server, key, count=300, body_bytes=4_990_000):
    """All but the last byte of so many bodies with the key, at once: the memory of the gateway, and the answers."""
    pid = server.process.pid
    pathlib.Path(f"/proc/{pid}/clear_refs").write_text("5")
    before = peak_kib(pid)
    head = HEAD + b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n" % (key.encode(), body_bytes)
    statuses, lock, gate = {}, threading.Lock(), threading.Barrier(count)

    def one():
        connection = socket.create_connection((server.host, server.port), timeout=60)
        status = "none"
        gate.wait()
        try:
            connection.sendall(head + b"x" * (body_bytes - 1))
        except OSError:
            status = "closed"
        with contextlib.suppress(OSError):
            connection.settimeout(3)
            status = connection.recv(4096)[9:12].decode() or status
        with lock:
            statuses[status] = statuses.get(status, 0) + 1
        connection.close()

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory_mib = (peak_kib(pid) - before) / 1024
    return {"case": f"{count} bodies of {body_bytes} bytes", "statuses": statuses, "memory_mib": round(memory_mib, 1),
            "good": memory_mib <= 256 + 64}


class OfPath(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def slowest_health(connect, count=20):
    """Of new connections, in ms; None where one was not answered with 200."""
    slowest = 0.0
    for _ in range(count):
        begin = time.monotonic()
        try:
            connection = connect()
            connection.request("GET", "/health")
            good = connection.getresponse().status == 200
            connection.close()
        except OSError:
            good = False
        if not good:
            return None
        slowest = max(slowest, time.monotonic() - begin)
    return round(1000 * slowest, 1)


def measure_idle(server, admin, count=5000):
    """/health while so many connections say nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(count, hard - 200)
    idle = []
    for _ in range(count):
        with contextlib.suppress(OSError):
            idle.append(socket.create_connection((server.host, server.port), timeout=10))
    row = {"case": f"{count} idle connections", "admin_health_ms": slowest_health(lambda: OfPath(admin)) if admin else None,
           "main_health_ms": slowest_health(lambda: http.client.HTTPConnection(server.host, server.port, timeout=10))}
    for connection in idle:
        connection.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    row["good"] = row["admin_health_ms"] is not None and row["admin_health_ms"] <= 100
    return row


def attack(stoch, model, admin_option=True):
    """Rows of every attack on a server with a key. admin_option: whether the binary knows --admin-listen."""
    key = "secret"
    with tempfile.TemporaryDirectory() as folder:
        admin = os.path.join(folder, "admin") if admin_option else None
        arguments = ["--model", model, "--device", "cpu", "--threads", "1", "--api-key", key]
        if admin:
            arguments += ["--admin-listen", f"unix:{admin}"]
        with Served(stoch, arguments) as server:
            rows = measure_endless(server)
            rows.append(measure_bodies(server, key))
            rows.append(measure_idle(server, admin))
            with contextlib.suppress(OSError):
                rows.append({"case": "health afterwards", "good": server.call("GET", "/health")[0] == 200})
    return rows


if __name__ == "__main__":
    import sys

    for one in attack(sys.argv[1], sys.argv[2], "--no-admin" not in sys.argv):
        print(json.dumps(one), flush=True)
