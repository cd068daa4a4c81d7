# SPDX-License-Identifier: Apache-2.0
"""What importing costs, what it imports, and what happens after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np

import stoch


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_import_needs_numpy_only() -> None:
    code = "import sys, stoch; print(*[m for m in ('torch', 'transformers', 'tqdm', 'cupy', 'jax', 'lm_eval') if m in sys.modules])"
    assert python(code).strip() == ""


def test_import_is_quick() -> None:
    code = "import numpy, time; t = time.process_time(); import stoch; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(3)) < 0.2


def test_nothing_is_printed_at_the_end() -> None:
    assert python("import stoch; keep = stoch.ScConfig(); f = lambda: keep") == ""


def test_only_the_init_function_is_exported() -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", stoch._stoch.__file__], capture_output=True, text=True)
    assert listed.stdout.split()[-1:] == ["PyInit__stoch"] and len(listed.stdout.splitlines()) == 1


def test_no_library_of_cuda_is_needed() -> None:
    """The same wheel runs with and without: what it uses of CUDA is inside, or loaded where it is used."""
    listed = subprocess.run(["readelf", "-d", stoch._stoch.__file__], capture_output=True, text=True, check=True)
    needed = [line for line in listed.stdout.splitlines() if "NEEDED" in line]
    assert needed and not [line for line in needed if "libcu" in line or "libnccl" in line]


def test_after_fork(demo: str) -> None:
    a = np.ones((2, 4), np.float32)
    stoch.sc_matmul(a, a)
    with stoch.load(demo, device="cpu") as model:
        packed = stoch.pack(a)
        pid = os.fork()
        if pid == 0:
            status = 0
            for use in (
                lambda: stoch.sc_matmul(a, a),
                lambda: stoch.sc_matmul(a, packed),
                lambda: stoch.load(demo, device="cpu"),
                lambda: model.generate("Once", max_tokens=1),
                lambda: model.hidden([1], 0),
                lambda: stoch.bench(demo, device="cpu"),
            ):
                try:
                    use()
                    status = 1
                except RuntimeError as error:
                    status |= str(error) != "stoch was used before fork: start workers with spawn"
            del model, packed  # frees nothing, and does not wait for threads that are not here
            os._exit(int(status))
        for _ in range(600):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            time.sleep(0.1)
        assert ended == pid and status == 0
        assert model.generate("Once", max_tokens=1).ids


def test_errors() -> None:
    assert issubclass(stoch.InvalidInput, ValueError)
    assert issubclass(stoch.NotFinite, stoch.InvalidInput)
    assert issubclass(stoch.DeviceError, RuntimeError)
    assert stoch.InvalidInput.__module__ == "stoch"
