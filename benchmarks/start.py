"""How long commands take to start, beside another checkout of the project, in one run.

    python benchmarks/start.py --against ../main

Each command runs in new processes, taking turns between the two. What is compared is the time that
processors worked for it (user and system), which hardly depends on what else the machine does; the
time on the wall is shown beside it. With two idle cores the two are about the same.
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


class Took(NamedTuple):
    """Seconds."""

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
        for name, words in commands(home).items():
            took: dict[Path, list[Took]] = {checkout: [] for checkout in checkouts}
            for _ in range(arguments.times):
                for checkout in checkouts:
                    took[checkout].append(run(checkout, home, words))
            report(name, list(took.values()))


def commands(home: Path) -> dict[str, list[str]]:
    """By name; what they work on is made first."""
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


def run(checkout: Path, home: Path, words: list[str]) -> Took:
    before, began = os.times(), time.perf_counter()
    command = [sys.executable, "-m", "retouch", *words]
    done = subprocess.run(command, cwd=home, env=env(checkout), capture_output=True, text=True)
    if done.returncode != int("--max-drop" in words):
        sys.exit(f"{checkout}: retouch {' '.join(words)} failed\n{done.stderr}")
    wall, after = time.perf_counter() - began, os.times()
    spent = [t.children_user + t.children_system for t in (before, after)]
    return Took(spent[1] - spent[0], wall)


def report(name: str, took: list[list[Took]]) -> None:
    cpu = [median(each.cpu for each in times) for times in took]
    wall = [median(each.wall for each in times) for times in took]
    line = f"{name:25} {cpu[0]:5.1f} s of processors, {wall[0]:5.1f} s on the wall"
    if len(took) > 1:
        line += f"; the other {cpu[1]:5.1f} and {wall[1]:5.1f}: {cpu[1] / cpu[0]:.1f} times as long"
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
