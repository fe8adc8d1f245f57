"""How long commands take to start, compared with another checkout of the project in one run.

    python benchmarks/start.py --against ../main

Each command runs in new processes, alternating between the two checkouts. CPU time (user and
system) is compared, which hardly depends on what else the machine does; wall time is printed beside
it. With two idle cores the two are about the same.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Duration(NamedTuple):
    """In seconds."""

    cpu: float
    wall: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="Another checkout.")
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    checkouts = [ROOT, *([arguments.against.resolve()] if arguments.against else [])]
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        for name, command in commands(home).items():
            durations: dict[Path, list[Duration]] = {checkout: [] for checkout in checkouts}
            for _ in range(arguments.times):
                for checkout in checkouts:
                    durations[checkout].append(run(checkout, home, command))
            report(name, list(durations.values()))


def commands(home: Path) -> dict[str, list[str]]:
    """Commands by name; creates the images and the run that they use."""
    subprocess.run(
        [sys.executable, "-m", "retouch.builtin.photos", home], check=True, env=env(ROOT)
    )
    learn = ["learn", "photos", "--model", "builtin", "--names", "photos.csv", "--out"]
    run(ROOT, home, [*learn, "run", "--epochs", "1"])
    image = str(min((home / "photos").rglob("*.jpg")).relative_to(home))
    return {
        "retouch --help": ["--help"],
        "retouch classify": ["classify", "run", image],
        "retouch learn --dry-run": [*learn, "other", "--dry-run"],
        "retouch learn, refused": [*learn, "other", "--max-drop", "1"],
    }


def env(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout / "src")}


def run(checkout: Path, home: Path, command: list[str]) -> Duration:
    before, start = os.times(), time.perf_counter()
    process = [sys.executable, "-m", "retouch", *command]
    done = subprocess.run(process, cwd=home, env=env(checkout), capture_output=True, text=True)
    if done.returncode != int("--max-drop" in command):
        sys.exit(f"{checkout}: retouch {' '.join(command)} failed\n{done.stderr}")
    wall, after = time.perf_counter() - start, os.times()
    cpu = [t.children_user + t.children_system for t in (before, after)]
    return Duration(cpu[1] - cpu[0], wall)


def report(name: str, durations: list[list[Duration]]) -> None:
    cpu = [median(duration.cpu for duration in runs) for runs in durations]
    wall = [median(duration.wall for duration in runs) for runs in durations]
    line = f"{name:25} {cpu[0]:5.1f} s CPU time, {wall[0]:5.1f} s wall time"
    if len(durations) > 1:
        line += f"; the other {cpu[1]:5.1f} and {wall[1]:5.1f}: {cpu[1] / cpu[0]:.1f} times as long"
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
