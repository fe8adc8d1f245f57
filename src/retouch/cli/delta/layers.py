"""The table of `retouch delta show`: where weights moved, and how far."""

import re
from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table

from retouch.plotting.formatting import MISSING, share
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


def layer_table(
    headers: Sequence[Header], tensors: bool = False, width: int | None = None
) -> RenderableType:
    """The changes of all deltas together, by block or by tensor.

    Args:
        headers: The deltas.
        tensors: One row per tensor instead of one per block.
        width: The width of the terminal; without one, names are never shortened.
    """
    known = [stats for header in headers for stats in header.change_stats]
    unknown = unknown_rows(headers, tensors)
    grouped = by_tensor(known) if tensors else by_block(known)
    rows = [row for row in grouped if row.tensor not in unknown]
    low, high = _histogram_range(rows)
    headings = ["could move", "moved", "share", "change", _histogram_heading(low, high)]
    lines = [[*_cells(row), histogram(_cropped(row, low, high))] for row in rows]
    lines += [[f"{entries:,}", *[MISSING] * 3, ""] for entries in unknown.values()]
    total = total_stats(rows, "total") if rows and not unknown else None
    totals = [[*_cells(total), histogram(_cropped(total, low, high))]] if total else []
    names = [*(row.tensor for row in rows), *unknown]
    if width is not None:
        columns = zip(headings, *lines, *totals, strict=True)
        names = shortened(names, width - sum(2 + max(map(len, column)) for column in columns))
    table = _empty_table(headings)
    for name, line in zip(names, lines, strict=True):
        table.add_row(name, *line)
    for line in totals:
        table.add_row("total", *line, style="bold")
    if total and len(headers) == 1 and headers[0].model_size:
        table.add_row("of the model", "", share(total.moved, headers[0].model_size))
    return table


def _empty_table(headings: Sequence[str]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("layer", overflow="fold")
    for heading in headings[:-1]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(headings[-1], no_wrap=True)
    return table


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Names of tensors or blocks with parts left out, so that they fit and still differ.

    The beginning names the tower and the end the layer, so these stay as long as possible; after
    that, the words that all names share are left out. If nothing makes them fit, they stay whole.
    """
    parts = [name.split(".") for name in names]
    shared = set.intersection(*map(set, parts)) if parts else set()
    longest = max(map(len, parts), default=0)
    candidates = [list(names)]
    for ending in range(longest - 2, 0, -1):
        candidates.append(
            [
                name if len(words) <= ending + 1 else f"{words[0]}…{'.'.join(words[-ending:])}"
                for name, words in zip(names, parts, strict=True)
            ]
        )
    candidates.append([_without(words, shared) for words in parts])
    for candidate in candidates:
        fits = max(map(len, candidate), default=0) <= width
        if fits and len(set(candidate)) == len(set(names)):
            return candidate
    return list(names)


def _without(words: Sequence[str], shared: set[str]) -> str:
    """The words that not all names have, with an ellipsis for each gap."""
    text = ".".join("…" if word in shared else word for word in words)
    return re.sub(r"\.?…(\.…)*\.?", "…", text)


def unknown_rows(headers: Sequence[Header], tensors: bool) -> dict[str, int]:
    """Rows whose changes some delta does not record, with the entries that could move."""
    entries: Counter[str] = Counter()
    unknown = set()
    for header in headers:
        recorded = {stats.tensor for stats in header.change_stats}
        for name, layout in header.tensors.items():
            row = name if tensors else block_of(name)
            entries[row] += layout.entries
            unknown |= set() if name in recorded else {row}
    return {row: count for row, count in entries.items() if row in unknown}


def _cells(row: ChangeStats) -> list[str]:
    moved_share = share(row.moved, row.size) if row.size else MISSING
    return [f"{row.selected:,}", f"{row.moved:,}", moved_share, relative_change(row)]


def relative_change(row: ChangeStats | None) -> str:
    """How far an entry moved, in percent of the size of the weights."""
    if row is None or not row.moved or row.relative is None:
        return MISSING
    return _percent(row.relative)


def _percent(value: float) -> str:
    if value >= 0.0995:
        return f"{100 * value:.0f} %"
    return f"{100 * value:.1f} %" if value >= 0.00995 else f"{100 * value:.2g} %"


def histogram(counts: Sequence[int]) -> str:
    """A bar for each count; every count above zero is visible."""
    highest = max(counts, default=0)
    return "".join(BARS[7 * count // highest] if count else " " for count in counts)


def _histogram_range(rows: Sequence[ChangeStats]) -> tuple[int, int]:
    """The bins that hold all but a thousandth of the moved entries."""
    counts = [sum(column) for column in zip(*(row.histogram for row in rows), strict=True)]
    margin = sum(counts) / 2000
    high = next((k for k in range(len(counts), 0, -1) if sum(counts[k - 1 :]) > margin), 0)
    low = next((k for k in range(high) if sum(counts[: k + 1]) > margin), 0)
    return low, high


def _cropped(row: ChangeStats, low: int, high: int) -> list[int]:
    """The bins from `low` to `high`; the first and the last include everything outside."""
    if not high:
        return []
    counts = row.histogram[low:high]
    counts[0] += sum(row.histogram[:low])
    counts[-1] += sum(row.histogram[high:])
    return counts


def _histogram_heading(low: int, high: int) -> str:
    edges = bin_edges()
    return f"{_percent(edges[low])} … {_percent(edges[high])}" if high else ""
