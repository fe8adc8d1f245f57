"""Options of `retouch bench`: each takes effect in every suite, or is refused."""

from pathlib import Path

import pytest
from commands import error_of, run

from retouch.cli.bench.checks import parse_seeds, split_names, split_rates
from retouch.errors import UserError

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
        ("demo --seeds 0", "--seeds 0: at least one seed is needed"),
        ("demo --seeds one", "--seeds one: give a number of seeds, such as 3, or name them"),
        (
            "demo --lost-at-most 1",
            "--lost-at-most 1 has no effect on demo: it is for suites",
        ),
        ("demo --lr fast", "--lr fast: a learning rate is a number above 0"),
        ("demo --lr 0", "--lr 0: a learning rate is a number above 0"),
        ("demo --lr 1e-3,1e-4", "every row of demo is run at one learning rate"),
        ("demo --methods ,", "--methods ',' holds an empty name"),
        ("demo --methods=", "--methods '' holds an empty name"),
        ("demo --datasets cub --quick", "cub has none of those"),
        ("demo --reference builtin", "no row of demo that is run uses images with captions"),
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


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("1", (0,)),
        ("3", (0, 1, 2)),
        ("1,2,3", (1, 2, 3)),
        ("1-3", (1, 2, 3)),
        ("7-7", (7,)),
        ("2,2", (2,)),
        (" 5, 1 - 3, 2 ", (5, 1, 2, 3)),
    ],
)
def test_seeds_are_counted_or_named(text: str, seeds: tuple[int, ...]):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "holds an empty"),
        ("1,,2", "holds an empty"),
        ("-1", "--seeds -1: give a number"),
        ("1,-2", "--seeds -2: give a number"),
        ("1.5", "--seeds 1.5: give a number"),
        ("1-2-3", "--seeds 1-2-3: give a number"),
        ("3-1", "--seeds 3-1: the first is above the last; write 1-3"),
        ("20260101", "20,260,101 runs of every row.*for this one seed, write 20260101-20260101"),
        ("0-99999", "100,000 runs of every row"),
    ],
)
def test_seeds_that_are_refused(text: str, complaint: str):
    with pytest.raises(UserError, match=complaint):
        parse_seeds(text)


@pytest.mark.parametrize("suite", ["demo", "efficiency"])
def test_tables_of_others_are_not_replaced(suite: str, tmp_path: Path):
    (tmp_path / "table.md").write_text("my thesis")
    error = error_of("bench", suite, "--model", "builtin", "-o", tmp_path)
    assert f"{tmp_path / 'table.md'} exists already, and retouch does not" in error
    assert [path.name for path in tmp_path.iterdir()] == ["table.md"]
