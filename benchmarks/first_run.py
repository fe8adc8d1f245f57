"""The first run of a new user: a new process, empty caches, nothing compiled. Seconds per phase.

    python benchmarks/first_run.py --data-root ../shared/data --device cuda
    python benchmarks/first_run.py --data-root ../shared/data --classes 10 --tasks 2   # a CPU

CUB-200 in ten tasks of two epochs by the default method, with ImageNet as the control set, from the
start of Python on, imports included, until the run's folder is complete; modules are compiled to
bytecode before, as pip does when it installs them. The model is read from a folder, as a user's is;
its weights are random. `--compile` and `--no-compile` force what is otherwise chosen by the length
of the run; `--threads` decodes with threads, not processes, and `--foreground` before anything else
begins. `--again` runs once more, with the caches, and `--check-all` yet again, with all control
images checked after each task. `--reuse` keeps what frozen visual blocks give, which on a GPU is
not the default.
"""

import time

START = time.perf_counter()

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Iterable  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402


class Phases:
    """Seconds of each phase: from when it begins to when another one does."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._name, self._since = "imports", START

    def begin(self, name: str) -> None:
        now = time.perf_counter()
        self.seconds[self._name] = self.seconds.get(self._name, 0.0) + now - self._since
        self._name, self._since = name, now


def child(args: argparse.Namespace) -> None:
    """The run itself, in a process of its own; writes the seconds as JSON to stdout."""
    phases = Phases()
    import torch
    from whole_run import read_images, settings_of

    import retouch
    from retouch.data import Stream, cached
    from retouch.data.cache import build as cache_build
    from retouch.methods import Settings, recipe
    from retouch.train import Callback, teach
    from retouch.train.hardware import hardware
    from retouch.train.work import work

    class Recorder(Callback):
        """Which phase the run is in."""

        def on_task_begin(self, task: int, steps: int) -> None:
            phases.begin("training")

        def on_evaluate(self, results: Any) -> None:
            phases.begin("between phases")

        def on_compile(self, running: bool) -> None:
            phases.begin("compiling" if running else "evaluating and training after compiling")

        def progress(self, parts: Iterable[Any], what: str, total: int) -> Iterable[Any]:
            phases.begin(what.split()[0].lower())
            return parts

    if args.threads:
        cache_build.MIN_WORKERS = 10**6
    phases.begin("loading the model")
    clip = retouch.load(args.model, device=args.device, light=True)
    phases.begin("reading")
    sources = read_images(args)
    phases.begin("decoding, before anything else")
    background = None if args.foreground or args.device == "cpu" else (lambda text: None)
    train, test, control = (cached(s, clip.preprocess, background=background) for s in sources)
    phases.begin("planning")
    stream = Stream.split(train, test, tasks=args.tasks)
    method, settings = recipe(args.method), settings_of(args)
    amount = work(stream, method, settings, control=control)
    chosen = hardware(clip.device, clip.size, settings.precision, args.compile, amount)
    names = ("compile", "cuda_graphs")
    settings = settings.model_copy(update={name: getattr(chosen, name) for name in names})
    part = "all" if args.child == "all" else Settings().control_part
    settings = settings.model_copy(update={"control_part": part, "reuse_frozen": args.reuse})
    sys.stderr.write(f"{chosen}\n")
    phases.begin("starting")
    out = Path(os.environ["RETOUCH_CACHE"]) / f"run {time.time_ns()}"
    options = {"settings": settings, "control": control, "out": out, "callback": Recorder()}
    teach(clip, stream, method, **options)
    if clip.device.type == "cuda":
        torch.cuda.synchronize()
    phases.begin("")
    sys.stdout.write(json.dumps(phases.seconds))


def main() -> None:
    args = arguments()
    if args.child:
        child(args)
        return
    command = [sys.executable, __file__, *sys.argv[1:]]
    with tempfile.TemporaryDirectory() as folder:
        caches = {"RETOUCH_CACHE": "pixels", "TORCHINDUCTOR_CACHE_DIR": "compiled"}
        caches |= {"TRITON_CACHE_DIR": "triton", "PYTHONPYCACHEPREFIX": "bytecode"}
        environment = {name: str(Path(folder) / part) for name, part in caches.items()}
        environment |= {"PYTHONDONTWRITEBYTECODE": ""}
        args.model = prepare(args.shape, Path(folder) / "model", environment)
        for which, part in runs(args).items():
            start = time.perf_counter()
            done = subprocess.run(
                [*command, "--model", args.model, "--child", part],
                env=os.environ | environment,
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            total = time.perf_counter() - start
            report(which, json.loads(done.stdout), total)


def prepare(shape: str, folder: Path, environment: dict[str, str]) -> str:
    """Save a model in a process of its own, which leaves bytecode behind; returns its name."""
    code = "import sys, torch, shapes, whole_run, retouch.train.hardware, retouch.train.work"
    if shape != "builtin":
        code += "; shapes.model_of(sys.argv[1], torch.device('cpu')).save(sys.argv[2])"
    here = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", code, shape, str(folder)]
    subprocess.run(command, env=os.environ | environment | here, check=True)
    return "builtin" if shape == "builtin" else str(folder)


def runs(args: argparse.Namespace) -> dict[str, str]:
    """The control images that each run checks after each task: as by default, or all."""
    again = {"again": "default"} if args.again or args.check_all else {}
    whole = {"again, all control images after each task": "all"} if args.check_all else {}
    return {"first run": "default", **again, **whole}


def report(which: str, seconds: dict[str, float], total: float) -> None:
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"{which}: {value:7.1f} s {name}\n")
    rest = total - sum(seconds.values())
    sys.stdout.write(f"{which}: {rest:7.1f} s starting and ending Python\n")
    sys.stdout.write(f"{which}: {total:7.1f} s in all\n")
    sys.stdout.flush()


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data-root", type=Path, default=Path("../shared/data"))
    options.add_argument("--device", default="cpu")
    options.add_argument("--shape", help="of shapes.py; b16 on a GPU, builtin on a CPU")
    options.add_argument("--classes", type=int, help="use only the first CLASSES classes")
    options.add_argument("--tasks", type=int, default=10)
    options.add_argument("--epochs", type=int, default=2)
    options.add_argument("--batch", type=int, default=128)
    options.add_argument("--templates", type=int, default=80)
    options.add_argument("--compile", action=argparse.BooleanOptionalAction)
    options.add_argument("--threads", action="store_true", help="decode with threads")
    options.add_argument("--foreground", action="store_true", help="decode before anything else")
    options.add_argument("--again", action="store_true", help="run once more, with the caches")
    options.add_argument("--check-all", action="store_true", help="again, with all control images")
    options.add_argument("--reuse", action=argparse.BooleanOptionalAction, help="frozen blocks")
    options.add_argument("--method", default="spu+")
    options.add_argument("--model", default="builtin", help=argparse.SUPPRESS)
    options.add_argument("--child", help=argparse.SUPPRESS)
    args = options.parse_args()
    args.shape = args.shape or ("b16" if args.device != "cpu" else "builtin")
    return args


if __name__ == "__main__":
    main()
