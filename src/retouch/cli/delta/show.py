"""What `retouch delta show` prints: everything about one delta, or a line each for several."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from retouch.cli.delta.layers import layer_table, relative_change, unknown_rows
from retouch.plotting.formatting import MISSING, file_size, share
from retouch.sparse import ChangeStats, Header, block_of, total_stats
from retouch.text.plural import count
from retouch.train.run_folder.read import CLASS_VECTORS

NOTE = (
    "change: of the entries that moved, relative to the layer's weights (root mean squares)\n"
    "bars: how many entries moved how far; the distance doubles from bar to bar"
)
UNKNOWN = f"{MISSING}: unknown for deltas that were merged without their model; merge with --base"
MAX_CLASSES = 8
"""How many classes are named."""


def delta_pages(
    headers: Sequence[Header], tensors: bool = False, width: int | None = None
) -> Iterator[RenderableType]:
    """Everything to print.

    Args:
        headers: The deltas.
        tensors: One line per tensor instead of one per block.
        width: The width of the terminal; without one, names are never shortened.
    """
    if len(headers) == 1:
        yield _facts(headers[0])
    else:
        yield _overview(headers)
        yield Text("\nAll together, by layer. An entry that two deltas moved counts twice:\n")
    yield layer_table(headers, tensors, width)
    yield _note(headers)


def delta_json(header: Header) -> dict[str, Any]:
    """Everything in the header, and the file's size."""
    content = header.model_dump(exclude={"change_stats", "content"})
    known = {stats.tensor: stats.model_dump() for stats in header.change_stats}
    for name, layout in content["tensors"].items():
        layout |= {key: value for key, value in known.get(name, {}).items() if key != "tensor"}
    size = Path(header.name).stat().st_size
    return {"file": header.name, "bytes": size, "entries": header.entries, **content}


def share_of(part: int, whole: int | None) -> str | None:
    """The share as text, if the whole is known."""
    return share(part, whole) if whole else None


def _facts(header: Header) -> RenderableType:
    """What a delta is, and which weights it belongs to."""
    metadata = header.metadata
    rows = {
        "file": f"{header.name} ({file_size(Path(header.name).stat().st_size)})",
        "belongs to": f"weights {header.before}",
        "leads to": f"weights {header.after}",
        "model": metadata.get("model"),
        "method": _method(metadata),
        "made of": _parts(metadata),
        "task": metadata.get("task"),
        "classes": _classes(metadata.get("classes", [])),
        "prompt": metadata.get("prompt"),
        "tensors": _tensors(header),
    }
    grid = Table.grid(padding=(0, 2))
    for key, value in rows.items():
        if value is not None:
            grid.add_row(key, Text(str(value), overflow="fold"))
    grid.add_row("", "")
    return grid


def _overview(headers: Sequence[Header]) -> RenderableType:
    """One line per delta; if all are in one folder, it is named above."""
    folders = {Path(header.name).parent for header in headers}
    table = Table("delta", "from", "to", box=None, header_style="bold", pad_edge=False)
    for heading in ("classes", "moved", "of the model", "change", "size"):
        table.add_column(heading, justify="right")
    for header in headers:
        file, stats = Path(header.name), _total(header)
        table.add_row(
            Text(file.name if len(folders) == 1 else str(file), overflow="fold"),
            header.before[:8],
            header.after[:8],
            str(len(header.metadata.get("classes", [])) or MISSING),
            f"{stats.moved:,}" if stats else MISSING,
            (share_of(stats.moved, header.model_size) if stats else None) or MISSING,
            relative_change(stats),
            file_size(file.stat().st_size),
        )
    folder = [Text(f"{folders.pop()}:\n")] if len(folders) == 1 else []
    return Group(*folder, table)


def _note(headers: Sequence[Header]) -> Text:
    """How to read the table."""
    unknown = f"\n{UNKNOWN}" if unknown_rows(headers, tensors=True) else ""
    return Text(f"\n{NOTE}{unknown}", style="dim")


def _total(header: Header) -> ChangeStats | None:
    """The changes of a whole delta, if every tensor's are recorded."""
    missing = header.tensors.keys() - {stats.tensor for stats in header.change_stats}
    return total_stats(header.change_stats, "all") if header.change_stats and not missing else None


def _classes(names: Sequence[str]) -> str | None:
    more = f" and {len(names) - MAX_CLASSES} more" if len(names) > MAX_CLASSES else ""
    listed = ", ".join(map(str, names[:MAX_CLASSES]))
    return f"{len(names)}: {listed}{more}" if names else None


def _tensors(header: Header) -> str | None:
    """How many tensors, and which one of each block if it is always the same."""
    places = {name.removeprefix(block_of(name)).lstrip(".") for name in header.tensors}
    which = f", {places.pop()} of each block" if len(places) == 1 and "" not in places else ""
    if header.tensors:
        return f"{len(header.tensors):,}{which}"
    vectors = class_vectors_of(header)
    learned = f"; what was learned is in {vectors}" if vectors else ""
    return f"none: nothing changes{learned}"


def class_vectors_of(header: Header) -> Path | None:
    """The file of the class vectors after a delta's task, beside the model; None without any."""
    if CLASS_VECTORS not in header.metadata:
        return None
    file = Path(header.name)
    return file.parent.parent / CLASS_VECTORS / file.name


def _method(metadata: dict[str, Any]) -> str | None:
    method = metadata.get("method")
    if isinstance(method, dict):
        return f"{method.get('name')}: {method.get('summary')}"
    return None if method is None else str(method)


def _parts(metadata: dict[str, Any]) -> str | None:
    """How many deltas a merged one was made of, and how they were combined."""
    parts = metadata.get("of")
    if not isinstance(parts, list):
        return None
    combined = metadata.get("combined", "")
    how = {"then": "one after the other"}.get(combined, combined)
    return f"{count(len(parts), 'delta')}, {how}"
