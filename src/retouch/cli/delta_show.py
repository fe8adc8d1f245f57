"""What `retouch delta show` prints: of one delta everything, of several a line each and the sum."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from retouch.plural import count
from retouch.report.phrasing import NONE, file_size, share
from retouch.sparse import (
    ChangeStats,
    Header,
    bin_edges,
    block_of,
    by_block,
    by_tensor,
    total_stats,
)

BARS = "▁▂▃▄▅▆▇█"
NOTE = (
    "change: of the entries that moved, relative to the layer's weights (root mean squares)\n"
    "bars: how many moved how far, from left to right, twice as far from bar to bar"
)
NOT_KNOWN = f"{NONE}: not known of deltas that were joined without their model; merge with --base"
MOST = 8
"""So many classes are named."""


def pages(
    headers: Sequence[Header], tensors: bool = False, width: int | None = None
) -> Iterator[RenderableType]:
    """All there is to print. `tensors`: a line a tensor instead of a line a block.

    `width` is that of the terminal; without one, every name is whole.
    """
    if len(headers) == 1:
        yield facts(headers[0])
    else:
        yield overview(headers)
        yield Text("\nBy layer, all together. An entry that moved in two deltas counts twice:\n")
    yield layers(headers, tensors, width)
    yield note(headers)


def facts(header: Header) -> RenderableType:
    """What a delta is, and what it belongs to."""
    about, classes = header.metadata, header.metadata.get("classes", [])
    rows = {
        "file": f"{header.name} ({file_size(Path(header.name).stat().st_size)})",
        "belongs to": f"weights {header.before}",
        "leads to": f"weights {header.after}",
        "model": about.get("model"),
        "method": _method(about),
        "made of": _made_of(about),
        "task": about.get("task"),
        "classes": _classes(classes),
        "prompt": about.get("prompt"),
        "tensors": _places(header),
    }
    grid = Table.grid(padding=(0, 2))
    for key, value in rows.items():
        if value is not None:
            grid.add_row(key, Text(str(value), overflow="fold"))
    grid.add_row("", "")
    return grid


def overview(headers: Sequence[Header]) -> RenderableType:
    """A line a delta; the folder is named above where it is the same."""
    folders = {Path(header.name).parent for header in headers}
    table = Table("delta", "from", "to", box=None, header_style="bold", pad_edge=False)
    for heading in ("classes", "moved", "of the model", "change", "size"):
        table.add_column(heading, justify="right")
    for header in headers:
        file, moves = Path(header.name), _known(header)
        table.add_row(
            Text(file.name if len(folders) == 1 else str(file), overflow="fold"),
            header.before[:8],
            header.after[:8],
            str(len(header.metadata.get("classes", [])) or NONE),
            f"{moves.moved:,}" if moves else NONE,
            (share_of(moves.moved, header.model_size) if moves else None) or NONE,
            _relative(moves),
            file_size(file.stat().st_size),
        )
    where = [Text(f"{folders.pop()}:\n")] if len(folders) == 1 else []
    return Group(*where, table)


def layers(
    headers: Sequence[Header], tensors: bool = False, width: int | None = None
) -> RenderableType:
    """Where weights moved, and how far."""
    known = [movement for header in headers for movement in header.change_stats]
    unknown = _unknown(headers, tensors)
    grouped = by_tensor(known) if tensors else by_block(known)
    rows = [row for row in grouped if row.tensor not in unknown]
    low, high = _range(rows)
    headings = ["could move", "moved", "share", "change", _heading(low, high)]
    lines = [[*_cells(row), histogram(_cropped(row, low, high))] for row in rows]
    lines += [[f"{entries:,}", *[NONE] * 3, ""] for entries in unknown.values()]
    whole = total_stats(rows, "in all") if rows and not unknown else None
    sums = [[*_cells(whole), histogram(_cropped(whole, low, high))]] if whole else []
    names = [*(row.tensor for row in rows), *unknown]
    if width is not None:
        columns = zip(headings, *lines, *sums, strict=True)
        names = shortened(names, width - sum(2 + max(map(len, column)) for column in columns))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in headings[:-1]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(headings[-1], no_wrap=True)
    for name, line in zip(names, lines, strict=True):
        table.add_row(name, *line)
    for line in sums:
        table.add_row("in all", *line, style="bold")
    if whole and len(headers) == 1 and headers[0].model_size:
        table.add_row("of the model", "", share(whole.moved, headers[0].model_size))
    return table


def shortened(names: Sequence[str], room: int) -> list[str]:
    """Names of tensors or blocks with parts left out, so that they fit and still differ.

    The beginning names the tower and the end the layer, so these stay as long as they can; after
    that, the words that all names share are left out. Names that fit in no such way stay whole.
    """
    parts = [name.split(".") for name in names]
    shared = set.intersection(*map(set, parts)) if parts else set()
    most = max(map(len, parts), default=0)
    tries = [list(names)]
    for kept in range(most - 2, 0, -1):
        tries.append(
            [
                n if len(p) <= kept + 1 else f"{p[0]}…{'.'.join(p[-kept:])}"
                for n, p in zip(names, parts, strict=True)
            ]
        )
    tries.append([_without(each, shared) for each in parts])
    for tried in tries:
        if max(map(len, tried), default=0) <= room and len(set(tried)) == len(set(names)):
            return tried
    return list(names)


def _without(parts: Sequence[str], shared: set[str]) -> str:
    """The parts that not all names have; an ellipsis stands for each gap."""
    text = ".".join("…" if part in shared else part for part in parts)
    return re.sub(r"\.?…(\.…)*\.?", "…", text)


def note(headers: Sequence[Header]) -> Text:
    """How to read the table."""
    missing = f"\n{NOT_KNOWN}" if _unknown(headers, tensors=True) else ""
    return Text(f"\n{NOTE}{missing}", style="dim")


def as_json(header: Header) -> dict[str, Any]:
    """Everything that the header says, and the file's size."""
    told = header.model_dump(exclude={"change_stats", "payload"})
    known = {movement.tensor: movement.model_dump() for movement in header.change_stats}
    for name, layout in told["tensors"].items():
        layout |= {key: value for key, value in known.get(name, {}).items() if key != "tensor"}
    size = Path(header.name).stat().st_size
    return {"file": header.name, "bytes": size, "entries": header.entries, **told}


def histogram(counts: Sequence[int]) -> str:
    """A bar for each count; what is not zero can be seen."""
    most = max(counts, default=0)
    return "".join(BARS[7 * count // most] if count else " " for count in counts)


def share_of(part: int, whole: int | None) -> str | None:
    return share(part, whole) if whole else None


def _known(header: Header) -> ChangeStats | None:
    """All of a delta as one, where it is known of every tensor."""
    missing = header.tensors.keys() - {movement.tensor for movement in header.change_stats}
    return total_stats(header.change_stats, "all") if header.change_stats and not missing else None


def _unknown(headers: Sequence[Header], tensors: bool) -> dict[str, int]:
    """Layers of which a delta does not say how far it moved them; entries that could move."""
    entries: Counter[str] = Counter()
    unknown = set()
    for header in headers:
        said = {movement.tensor for movement in header.change_stats}
        for name, layout in header.tensors.items():
            row = name if tensors else block_of(name)
            entries[row] += layout.entries
            unknown |= set() if name in said else {row}
    return {row: count for row, count in entries.items() if row in unknown}


def _cells(row: ChangeStats) -> list[str]:
    part = share(row.moved, row.size) if row.size else NONE
    return [f"{row.selected:,}", f"{row.moved:,}", part, _relative(row)]


def _relative(row: ChangeStats | None) -> str:
    """How far an entry moved, in percent of the weights' own size."""
    if row is None or not row.moved or row.relative is None:
        return NONE
    return _percent(row.relative)


def _percent(value: float) -> str:
    if value >= 0.0995:
        return f"{100 * value:.0f} %"
    return f"{100 * value:.1f} %" if value >= 0.00995 else f"{100 * value:.2g} %"


def _range(rows: Sequence[ChangeStats]) -> tuple[int, int]:
    """The bins of the histogram in which all but a thousandth of the moves lie."""
    counts = [sum(column) for column in zip(*(row.histogram for row in rows), strict=True)]
    few = sum(counts) / 2000
    high = next((k for k in range(len(counts), 0, -1) if sum(counts[k - 1 :]) > few), 0)
    low = next((k for k in range(high) if sum(counts[: k + 1]) > few), 0)
    return low, high


def _cropped(row: ChangeStats, low: int, high: int) -> list[int]:
    """The bins from `low` to `high`; what lies outside counts in the first and the last."""
    if not high:
        return []
    counts = row.histogram[low:high]
    counts[0] += sum(row.histogram[:low])
    counts[-1] += sum(row.histogram[high:])
    return counts


def _heading(low: int, high: int) -> str:
    edges = bin_edges()
    return f"{_percent(edges[low])} … {_percent(edges[high])}" if high else ""


def _classes(names: Sequence[str]) -> str | None:
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{len(names)}: {', '.join(map(str, names[:MOST]))}{more}" if names else None


def _places(header: Header) -> str | None:
    """How many tensors, and where in their blocks they lie if all lie in the same place."""
    places = {name.removeprefix(block_of(name)).lstrip(".") for name in header.tensors}
    which = f", {places.pop()} of each block" if len(places) == 1 and "" not in places else ""
    return f"{len(header.tensors):,}{which}" if header.tensors else "none: nothing changes"


def _method(about: dict[str, Any]) -> str | None:
    method = about.get("method")
    if isinstance(method, dict):
        return f"{method.get('name')}: {method.get('summary')}"
    return None if method is None else str(method)


def _made_of(about: dict[str, Any]) -> str | None:
    """Of deltas that were put together: how, and what each of them was."""
    parts = about.get("of")
    if not isinstance(parts, list):
        return None
    how = {"then": "one after the other"}.get(about.get("combined", ""), about.get("combined"))
    return f"{count(len(parts), 'delta')}, {how}"
