"""Options of `retouch bench`: each takes effect in every suite, or is refused."""

from pathlib import Path

import pytest
from commands import run

from retouch.cli.bench_checks import split_names, split_rates

EFFICIENCY = "has no effect on efficiency, which counts parameters and trains nothing"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("efficiency --lr 1e-3", f"--lr {EFFICIENCY}"),
        ("efficiency --seeds 1", f"--seeds {EFFICIENCY}"),  # the default, but asked for
        ("efficiency --epochs 2", f"--epochs {EFFICIENCY}"),
        ("efficiency --jobs 2", f"--jobs {EFFICIENCY}"),
        ("efficiency --no-compile", f"--compile {EFFICIENCY}"),
        ("efficiency --datasets builtin,cub", "do not depend on the data set; name one"),
        ("demo --lr fast", "--lr fast: a learning rate is a number above 0"),
        ("demo --lr 0", "--lr 0: a learning rate is a number above 0"),
        ("demo --lr 1e-3,1e-4", "every row of demo is run at one learning rate"),
        ("demo --methods ,", "--methods ',' holds an empty name"),
        ("demo --methods=", "--methods '' holds an empty name"),
        ("demo --datasets cub --quick", "cub has none of those"),
        ("demo --reference builtin", "no row of demo that is run uses images with captions"),
        ("demo --cache x --no-cache", "leave one of them out"),
        ("demo --dry-run --gpus-per-cell 1", "are only for Ray"),
        ("demo --dry-run --on slurm", "on='slurm': use 'ray'"),
    ],
)
def test_an_option_without_effect_is_refused(words: str, complaint: str, tmp_path: Path):
    out = tmp_path / "x"
    done = run("bench", *words.split(), "--model", "builtin", "--out", out, code=1)
    assert complaint in " ".join(done.stderr.split())
    assert not out.exists()


def test_names_count_once():
    assert split_names("--datasets", "cub, gtsrb,cub") == ["cub", "gtsrb"]
    assert split_rates("1e-3,0.001,1e-4") == (1e-3, 1e-4)
