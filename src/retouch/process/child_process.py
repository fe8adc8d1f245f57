"""Start Python processes that import nothing from the current folder.

`python -c`, by which multiprocessing starts its processes as well, looks for every module in the
current folder first: a file `multiprocessing.py` beside somebody's photos would be run. Every
Python process of the package is started here, with PYTHONSAFEPATH=1, which turns that off.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"
_lock = threading.Lock()


def start_python(code: str) -> "subprocess.Popen[str]":
    """Run code in a new interpreter, which finds the modules that this one finds.

    Its stdin and stdout are text pipes. It is in a session of its own, so that Ctrl-C reaches this
    process alone.
    """
    with_path = f"import sys; sys.path[:] = {sys.path!r}; {code}"
    return subprocess.Popen(
        [sys.executable, "-c", with_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={SAFE_PATH: "1", **os.environ},
    )


@contextmanager
def safe_path() -> Iterator[None]:
    """Within the block, others start processes that do not import from the current folder.

    It is for libraries that take no environment: multiprocessing and Ray. Multiprocessing passes
    on the path of this process later, so what is importable here is importable there.
    """
    with _lock:
        before = os.environ.get(SAFE_PATH)
        os.environ.setdefault(SAFE_PATH, "1")
        try:
            yield
        finally:
            if before is None:
                del os.environ[SAFE_PATH]
