"""Documents whose checksum is right and whose content is not: refused with a sentence, or used.

Of every document, each entry is left out, and replaced by values of other types; then everything
that reads it is done. Whatever is wrong is a `UserError`, never another exception. To be quick, an
entry sees a fifth of the values, and the next entries see the others.
"""

import contextlib
import copy
import io
import json
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import (
    DOCUMENTS,
    STEPS,
    cache_index,
    cached_images,
    delta_of,
    header_of,
    teach,
    with_header,
    write_documents,
)
from rich.console import Console
from runs import Stop
from tiny import images, tiny_clip

from retouch.cli.delta.show import delta_json, delta_pages
from retouch.data import Stream
from retouch.errors import UserError
from retouch.files import checksummed
from retouch.report.charts.loss import loss_table, read_losses
from retouch.report.page import _results_content, _run_content
from retouch.report.summary import read_run_summary
from retouch.sparse import Delta, read_change_stats, read_header, read_selection
from retouch.text.parsing import parse_json, parse_yaml
from retouch.train.compare_run import eval_sets_of_run
from retouch.train.extend_stream import extend_stream
from retouch.train.run_folder.images import read_stored_images
from retouch.train.run_folder.metrics import METRICS
from retouch.train.run_folder.read import open_run

WRONG: list[Any] = [None, True, -1, 10**30, 1e308, "", "x", [], ["x"], {}, {"x": 1}]
"""What entries are replaced by."""
SHARES = 5
"""An entry sees every fifth of these, and so five entries in a row see them all."""
OPAQUE = {
    "results.json": {"settings", "environment"},
    "task-01.safetensors": {"method"},
}
"""Entries whose content is checked by a reader of its own, or only shown."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_documents(tmp_path_factory.mktemp("written"))


def changed(content: Any, opaque: Collection[str] = ()) -> Iterator[tuple[str, Any]]:
    """The document without each of its entries, and with other values; and what was changed.

    Of a list, and of the tensors of a delta, the first item stands for all.
    """
    for number, path in enumerate(_paths(content, opaque)):
        for value in ("left out", *WRONG[number % SHARES :: SHARES]):
            new = copy.deepcopy(content)
            owner = new
            for key in path[:-1]:
                owner = owner[key]
            if value == "left out":
                del owner[path[-1]]
            else:
                owner[path[-1]] = value
            if new != content:
                yield f"{'.'.join(map(str, path))}: {value!r}", new


def _paths(content: Any, opaque: Collection[str] = ()) -> Iterator[tuple[Any, ...]]:
    keys = list(content) if isinstance(content, dict) else range(min(1, len(content)))
    for key in keys:
        if key == checksummed.KEY:
            continue
        yield (key,)
        if isinstance(content[key], dict | list) and key not in opaque:
            part = content[key]
            first = dict(list(part.items())[:1]) if key == "tensors" else part
            yield from ((key, *rest) for rest in _paths(first, opaque))


def sealed(name: str, whole: bytes) -> Iterator[tuple[str, bytes]]:
    """The changed documents as bytes, with the right checksum."""
    if name.endswith(".safetensors"):
        for what, header in changed(header_of(whole), OPAQUE.get(name, ())):
            yield what, resealed(whole, header)
    elif name.endswith(".jsonl"):
        first, *rest = map(json.loads, whole.splitlines())
        for what, line in changed(first):
            yield what, b"".join(lines([line, *rest], chained=name == "metrics.jsonl"))
    else:
        for what, content in changed(parse_json(whole), OPAQUE.get(name, ())):
            yield what, json.dumps(checksummed.seal(content)).encode()


def resealed(whole: bytes, header: dict[str, Any]) -> bytes:
    return with_header(whole, checksummed.to_metadata(header)["retouch"])


def lines(contents: list[dict[str, Any]], *, chained: bool) -> Iterator[bytes]:
    previous = ""
    for content in contents:
        plain = {key: value for key, value in content.items() if key != checksummed.KEY}
        line = checksummed.to_line(plain, previous)
        previous = checksummed.line_checksum(line) if chained else ""
        yield line


# Everything that is done with documents.


def use_run(run: Path) -> None:
    """Show a run, load its model, and continue it if it is finished, or else resume it."""
    summary = read_run_summary(run)
    _results_content([summary.results])
    _run_content([summary])
    loss_table(read_losses(run))
    opened = open_run(run, model=tiny_clip())
    opened.load_task()
    eval_sets_of_run(opened, images("test", 4, 4))
    if opened.results.finished:
        new = images("new", 6, 4)
        extend_stream(opened, read_stored_images(run), Stream.split(new, new, tasks=1))
        extend_stream(opened, None, Stream.split(new, new, tasks=1))
    else:
        resume_copy(run)


def resume_copy(run: Path) -> None:
    """Resume a copy of a run, for one step."""
    shutil.rmtree(copied := run.with_name("copied"), ignore_errors=True)
    shutil.copytree(run, copied)
    with contextlib.suppress(ZeroDivisionError):
        teach(copied, callback=Stop(1, ZeroDivisionError()), checkpoint_seconds=1e9)


def use_losses(run: Path) -> None:
    """As `use_run`, with the checksums of these lines in what counts on them."""
    results, checkpoint = run / "results.json", run / "checkpoint.safetensors"
    before = {file: file.read_bytes() for file in (results, checkpoint)}
    checks = list(map(checksummed.line_checksum, (run / METRICS).read_bytes().splitlines()))
    content, header = json.loads(before[results]), header_of(before[checkpoint])
    try:
        checksummed.write_json(results, content | {"losses": checks[STEPS - 1]})
        header["losses"] = checks[STEPS + header["step"] - 1]
        checkpoint.write_bytes(resealed(before[checkpoint], header))
        use_run(run)
    finally:
        for file, whole in before.items():
            file.write_bytes(whole)


def use_delta(file: Path) -> None:
    delta_of(file)
    read_selection(file)
    read_change_stats([file, file])
    header = read_header(file)
    console = Console(file=io.StringIO(), width=80)
    for headers in ([header], [header, header]):
        for page in delta_pages(headers):
            console.print(page)
    json.dumps(delta_json(header))
    with contextlib.suppress(UserError):
        Delta.load(file).compose(Delta.load(file))


USES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    **DOCUMENTS,
    "run/config.yaml": ("run", use_run),
    "done/config.yaml": ("done", use_run),
    "run/results.json": ("run", resume_copy),
    "done/results.json": ("done", use_run),
    "done/classes.json": ("done", use_run),
    "done/images/index.json": ("done", use_run),
    "run/metrics.jsonl": ("run", use_losses),
    "done/metrics.jsonl": ("done", read_losses),
    "run/checkpoint.safetensors": ("run", use_run),
    "run/deltas/task-01.safetensors": ("run/deltas/task-01.safetensors", use_delta),
    "cache/*/index.json": ("cache", cached_images),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_wrong_entries_are_refused_or_used(
    name: str, written: Path, monkeypatch: pytest.MonkeyPatch
):
    path, use = USES[name]
    file = cache_index(written / "cache") if "*" in name else written / name
    whole, problems, accepted, total = file.read_bytes(), [], [], 0
    use(written / path)
    start = whole
    if file.suffix == ".yaml":  # as JSON, which is parsed much faster
        start = json.dumps(parse_yaml(whole.decode())).encode()
        monkeypatch.setattr(checksummed, "parse_yaml", parse_json)
    try:
        for what, content in sealed(file.name, start):
            file.write_bytes(content)
            total += 1
            try:
                if name in DOCUMENTS and use is not DOCUMENTS[name][1]:
                    DOCUMENTS[name][1](written / path)
                use(written / path)
                accepted.append(what)
            except UserError as why:
                if "\n" in str(why) or len(str(why)) > 1000:
                    problems.append(f"{what}: {why}")
            except Exception as why:
                problems.append(f"{what}: {why!r:.200}")
    finally:
        file.write_bytes(whole)
    assert len(accepted) < total / 2
    assert not problems, "\n".join(problems)
