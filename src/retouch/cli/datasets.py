"""`retouch datasets`: list the benchmarks, and check the images on disk."""

from typing import TYPE_CHECKING, Annotated

import typer

from retouch.cli.options import Root
from retouch.cli.terminal.console import out, print_line, progress, user_errors
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.data.benchmarks.dataset_facts import DatasetFacts
    from retouch.data.check import DatasetCheck
    from retouch.data.splits import Splits

datasets = typer.Typer(name="datasets", help="List the benchmarks, and check the images on disk.")
MAX_LISTED = 20
"""How many unreadable or duplicate images are named."""


@datasets.callback(invoke_without_command=True)
def show(context: typer.Context, root: Root = None) -> None:
    """List the benchmarks: their size, splits, where to get them, and where they were found."""
    if context.invoked_subcommand:
        return
    from rich.table import Table

    from retouch.data.registry import BENCHMARKS, SOURCE_FORMATS, data_root

    table = Table("name", "data set", box=None)
    for heading in ("train", "test", "classes"):
        table.add_column(heading, justify="right")
    table.add_column("found in", overflow="fold")
    for name, benchmark in BENCHMARKS.items():
        facts, folder = benchmark.facts, benchmark.find(data_root(root))
        counts = [f"{facts.images[s]:,}" if s in facts.images else "–" for s in ("train", "test")]
        location = str(folder) if folder else "–"
        table.add_row(name, facts.title, *counts, f"{len(facts.classes):,}", location)
    out.print(table)
    out.print("\nWhere to get them:")
    for name, benchmark in BENCHMARKS.items():
        print_line(out, f"  {name:13}{benchmark.facts.url}")
    out.print("\nSplits to choose from, such as dtd:coop; the first is the default:")
    for name, benchmark in BENCHMARKS.items():
        if benchmark.facts.splits:
            print_line(out, f"  {name:13}{_describe_splits(benchmark.facts)}")
    out.print(
        "official is the split of its authors, zscl that of ZSCL's code, and coop that of CoOp's "
        "split_zhou_*.json, which you put into the data set's folder.",
        highlight=False,
    )
    formats = ", ".join(source_format.description for source_format in SOURCE_FORMATS.values())
    out.print(
        f"\nLooked in {data_root(root)} (change with --data-root or RETOUCH_DATA). Your own images "
        f"can be {formats}, or hf:OWNER/NAME on the hub.",
        highlight=False,
    )


@datasets.command()
def check(
    name: Annotated[
        str,
        typer.Argument(
            help="A benchmark (NAME or NAME:SPLIT), or a path to your own images.", metavar="NAME"
        ),
    ],
    root: Root = None,
) -> None:
    """Is it complete? Counts, classes, unreadable images, and duplicates.

    The exit code is 1 if something is missing or cannot be read, or if `retouch learn` would refuse
    it. Every pixel of decoded images in the cache is checked too; a damaged cache is removed, and
    built again when it is needed.
    """
    with user_errors():
        from retouch.data.check import check_dataset, check_split_caches
        from retouch.data.registry import find_benchmark, read_data

        benchmark = find_benchmark(name)
        splits = read_data(name, root)
        report = check_dataset(splits, benchmark.facts if benchmark else None, progress)
        report.training_error = report.training_error or _class_error(splits)
        _show_counts(report)
        _show_problems(report)
        for folder, damage in check_split_caches(splits).items():
            print_line(
                out, f"cache {folder}: {f'damaged ({damage}), removed' if damage else 'intact'}"
            )
        print_line(out, "complete" if report.complete else "not complete")
        raise typer.Exit(0 if report.complete else 1)


def _class_error(splits: "Splits") -> str | None:
    """Why `learn` would refuse the classes, such as a single one; None if it would not."""
    from retouch.data import Stream
    from retouch.train.plan import check_classes

    if splits.train is None:
        return None
    try:
        check_classes(Stream.split(*splits.train_and_test(), tasks=1).train.classes)
    except UserError as why:
        return str(why)
    return None


def _describe_splits(facts: "DatasetFacts") -> str:
    return ", ".join(
        f"{name} ({split.images['train']:,} train, {split.images['test']:,} test)"
        for name, split in facts.splits.items()
    )


def _show_counts(report: "DatasetCheck") -> None:
    for split, count in report.images.items():
        expected = " or ".join(f"{number:,}" for number in report.expected_images.get(split, ()))
        of = f" of {expected}" if expected else ""
        print_line(out, f"{split}: {count:,}{of} images")
    of = f" of {report.expected_classes:,}" if report.expected_classes else ""
    print_line(out, f"classes: {report.classes:,}{of}")


def _show_problems(report: "DatasetCheck") -> None:
    """Print unreadable and duplicate images, the first of each kind by name."""
    print_line(out, f"unreadable: {len(report.unreadable):,}")
    for image in report.unreadable[:MAX_LISTED]:
        print_line(out, f"  {image}")
    for heading, pairs in (
        ("in both train and test", report.train_test_duplicates),
        ("in two classes", report.conflicting_duplicates),
    ):
        print_line(out, f"{heading}: {len(pairs):,}")
        for first, second in pairs[:MAX_LISTED]:
            print_line(out, f"  {first} is {second}")
    for note in report.notes:
        print_line(out, note)
    if report.training_error:
        print_line(out, f"`retouch learn` would refuse it: {report.training_error}")
