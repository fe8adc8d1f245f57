"""How runs are drawn."""

from fake_results import FROZEN, fake_results

from retouch.report.charts.series import line_styles


def test_styles_differ_without_color() -> None:
    styles = line_styles([FROZEN, *(fake_results(f"m{i}") for i in range(15))])
    assert len({(style.marker, style.linestyle) for style in styles}) == 16
