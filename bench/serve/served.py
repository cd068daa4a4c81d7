# SPDX-License-Identifier: Apache-2.0
"""A `stoch serve` of our own: started, watched from outside, ended."""

import http.client
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time


class Served:
    """with Served(binary, arguments) as server: ..."""

    def __init__(self, stoch, arguments, start_limit_s=600, port=0):
        self.command = [stoch, "serve", "--port", str(port), *arguments]
        self.start_limit_s = start_limit_s

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.scratch.name, "log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=log, text=True)
        listening = self.process.stdout.readline()
        if not listening:
            raise SystemExit(f"the server did not start: {self.log.read_text()}")
        self.host, port = listening.split("//")[1].strip().rsplit(":", 1)
        self.port = int(port)
        deadline = time.monotonic() + self.start_limit_s
        while self.call("GET", "/health")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"the model was not loaded: {self.log.read_text()}")
            time.sleep(0.1)
        return self

    def __exit__(self, error=None, *_):
        if self.process.poll() is None:
            if error is None:
                self.stop()
            else:  # nobody waits for its answers
                self.process.kill()
                self.process.wait()
        self.scratch.cleanup()

    def stop(self):
        """The exit code after SIGTERM."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def connect(self, timeout=300):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def call(self, method, path, body=None):
        connection = self.connect()
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def metric(self, name):
        """The value of a metric, written with its labels but for model_name, which all have."""
        text = re.sub(r'\{model_name="[^"]*"\}|,?model_name="[^"]*"', "", self.call("GET", "/metrics")[1])
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else 0.0

    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) / 1024

    def descriptors(self, pid=None, settle_s=0):
        """The fewest within that time: those of connections that have just been closed go soon, those that leak do not."""
        deadline = time.monotonic() + settle_s
        fewest = len(os.listdir(f"/proc/{pid or self.process.pid}/fd"))
        while time.monotonic() < deadline:
            time.sleep(0.02)
            fewest = min(fewest, len(os.listdir(f"/proc/{pid or self.process.pid}/fd")))
        return fewest

    def is_idle(self):
        return self.metric("stoch_requests_running") == 0 == self.metric("stoch_requests_waiting")

    def wait_idle(self, limit_s=60):
        deadline = time.monotonic() + limit_s
        while not self.is_idle():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


class Watch:
    """Samples memory and descriptors of a server every period until it is stopped."""

    def __init__(self, server, period_s):
        self.server, self.period_s = server, period_s
        self.samples = []
        self.begin = time.monotonic()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while True:
            self.samples.append({"s": round(time.monotonic() - self.begin, 1),
                                 "rss_mib": round(self.server.resident_mib(), 1),
                                 "fds": self.server.descriptors()})
            if self.ended.wait(self.period_s):
                return

    def stop(self):
        self.ended.set()
        self.thread.join()
        return self.samples
