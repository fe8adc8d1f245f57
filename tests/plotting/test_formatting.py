"""Numbers as people read them."""

from retouch.plotting.formatting import duration, file_size, learning_rate, number, points, share


def test_numbers_shares_and_durations() -> None:
    assert [number(x) for x in (-0.04, -1.25, 100)] == ["0.0", "−1.2", "100.0"]
    assert [share(x, 10**6) for x in (0, 12, 27_000, 10**6)] == [
        "0 %",
        "0.0012 %",
        "2.7 %",
        "100 %",
    ]
    assert [duration(x) for x in (4.4, 90, 5400)] == ["4 s", "1.5 min", "1.5 h"]


def test_points() -> None:
    assert [points(x) for x in (1, 0.96, 6.1)] == ["1.0 point", "1.0 point", "6.1 points"]


def test_file_sizes() -> None:
    sizes = (600, 579_000, 16.3e6, 436e6, 1.2e9)
    assert [file_size(x) for x in sizes] == ["0.6 kB", "579 kB", "16.3 MB", "436 MB", "1.2 GB"]


def test_learning_rates() -> None:
    rates = (0.5, 1e-3, 2.5e-4, 7.5e-6, 1e-5)
    assert [learning_rate(x) for x in rates] == ["0.5", "0.001", "2.5e-4", "7.5e-6", "1e-5"]
