"""`retouch datasets`: what there is, and whether it is whole."""

from typing import Annotated

import typer

from retouch.cli.console import out, progress, user_errors
from retouch.cli.options import Cache, Root

datasets = typer.Typer(name="datasets", help="List the benchmarks, and check what is on disk.")


@datasets.callback(invoke_without_command=True)
def show(context: typer.Context, root: Root = None) -> None:
    """List the benchmarks: what they hold, where to get them, and whether they are there."""
    if context.invoked_subcommand:
        return
    from rich.table import Table

    from retouch.data.registry import BENCHMARKS, SOURCE_FORMATS, data_root

    table = Table("name", "data set", box=None)
    for heading in ("train", "test", "classes"):
        table.add_column(heading, justify="right")
    table.add_column("found in", overflow="fold")
    for name, benchmark in BENCHMARKS.items():
        facts, there = benchmark.facts, benchmark.find(data_root(root))
        counts = [f"{facts.images[s]:,}" if s in facts.images else "–" for s in ("train", "test")]
        found = str(there) if there else "–"
        table.add_row(name, facts.title, *counts, f"{len(facts.classes):,}", found)
    out.print(table)
    out.print("\nWhere to get them:")
    for name, benchmark in BENCHMARKS.items():
        _say(f"  {name:13}{benchmark.facts.url}")
    formats = ", ".join(source_format.description for source_format in SOURCE_FORMATS.values())
    out.print(
        f"\nLooked in {data_root(root)} (change with --data-root or RETOUCH_DATA). Your own images "
        f"can be {formats}, or hf:OWNER/NAME on the hub.",
        highlight=False,
    )


@datasets.command()
def check(
    name: Annotated[str, typer.Argument(help="A benchmark, or a path to your own images.")],
    root: Root = None,
    cache: Cache = None,
) -> None:
    """Is it whole? Counts, classes, unreadable images, and images that are there twice.

    Ends with exit code 1 if something is missing or cannot be read, or if `retouch learn` would
    not begin with it. Decoded images in the cache are checked too, every pixel of them; a damaged
    cache is removed, and built again when needed.
    """
    with user_errors():
        from retouch.data.check import check_dataset as look
        from retouch.data.check import check_split_caches
        from retouch.data.registry import BENCHMARKS, read_data

        facts = BENCHMARKS[name].facts if name in BENCHMARKS else None
        splits = read_data(name, root)
        found = look(splits, facts, progress)
        for split, count in found.images.items():
            right = " or ".join(f"{number:,}" for number in found.expected_images.get(split, ()))
            of = f" of {right}" if right else ""
            _say(f"{split}: {count:,}{of} images")
        of = f" of {found.expected_classes:,}" if found.expected_classes else ""
        _say(f"classes: {found.classes:,}{of}")
        _say(f"unreadable: {len(found.unreadable):,}")
        for bad in found.unreadable[:20]:
            _say(f"  {bad}")
        _say(f"in both train and test: {len(found.train_test_duplicates):,}")
        for train, test in found.train_test_duplicates[:20]:
            _say(f"  {train} is {test}")
        _say(f"in two classes: {len(found.conflicting_duplicates):,}")
        for first, second in found.conflicting_duplicates[:20]:
            _say(f"  {first} is {second}")
        for note in found.notes:
            _say(note)
        if found.training_error:
            _say(f"`retouch learn` would not begin: {found.training_error}")
        for place, damage in check_split_caches(splits, cache).items():
            _say(f"cache {place}: {f'damaged ({damage}), removed' if damage else 'whole'}")
        _say("whole" if found.complete else "not whole")
        raise typer.Exit(0 if found.complete else 1)


def _say(line: str) -> None:
    out.print(line, highlight=False, soft_wrap=True, markup=False)
