"""Numbers as people read them: percentages, points, durations and file sizes."""

MISSING = "–"
"""Shown where there is no value."""


def number(value: float) -> str:
    """One decimal and a real minus sign; never "−0.0"."""
    return f"{round(value, 1) + 0.0:.1f}".replace("-", "−")


def percent(value: float) -> str:
    """A percentage with one decimal: "91.4 %"."""
    return f"{number(value)} %"


def points(value: float) -> str:
    """A difference of two percentages: "6.1 points", "1.0 point"."""
    return f"{number(value)} point{'' if number(value) == '1.0' else 's'}"


def share(part: int, whole: int) -> str:
    """A share in percent with about two significant digits, since it may be tiny."""
    value = 100 * part / whole if whole else 0.0
    if value == 0 or value >= 10:
        return f"{value:.0f} %"
    return f"{value:.1f} %" if value >= 1 else f"{value:.2g} %"


def duration(seconds: float) -> str:
    """Short and easy to compare: "41 s", "3.3 min", "1.2 h"."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def file_size(count: float) -> str:
    """Bytes in short: "0.6 kB", "579 kB", "16.3 MB", "436 MB", "1.2 GB"."""
    if count >= 999.5e6:
        return f"{count / 1e9:.1f} GB"
    if count >= 999.5e3:
        return f"{count / 1e6:.0f} MB" if count >= 99.5e6 else f"{count / 1e6:.1f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 9_950 else f"{count / 1e3:.1f} kB"


def learning_rate(value: float) -> str:
    """Short: "0.001", "2.5e-4", "7.5e-6"."""
    if value >= 1e-3:
        return f"{value:g}"
    mantissa, exponent = f"{value:.6e}".split("e")
    return f"{float(mantissa):g}e{int(exponent)}"
