"""Several runs in sentences that their numbers support."""

import pytest
from fake_results import FROZEN, SEVERAL, fake_results

from retouch.evaluate.results import Results
from retouch.report.compare import comparison_sentences


@pytest.mark.parametrize(
    ("runs", "sentences"),
    [
        (
            SEVERAL,
            [
                "spu learned most: 60.0 % of the new classes recognized, 12.0 % before.",
                "Of those that train, spu forgot least of what the model could do before: "
                "6.1 points; flyp forgot most: 14.9 points.",
            ],
        ),
        (
            [
                fake_results("a", control=None),
                fake_results("b", control=None),
                fake_results("c", (9, 9, 9), None),
            ],
            ["a and b learned most: 60.0 % of the new classes recognized, 12.0 % before."],
        ),
        (
            [fake_results("a", (12, 12, 12)), fake_results("b", (9, 9, 9))],
            [
                "No run learned the new classes; the best is a: 12.0 % of the new classes "
                "recognized, 12.0 % before.",
                "a and b forgot 6.1 points of what the model could do before.",
            ],
        ),
        (
            [
                fake_results("a", control=(90, 90, 90, 92)),
                fake_results("b", control=(90, 90, 90, 91)),
            ],
            [
                "a and b learned most: 60.0 % of the new classes recognized, 12.0 % before.",
                "a gained 2.0 points in what the model could do before; b gained 1.0 point.",
            ],
        ),
        (
            [FROZEN, fake_results(), fake_results("er", (99, 99))],
            [
                "spu learned: 60.0 % of the new classes recognized, 12.0 % before.",
                "spu forgot 6.1 points of what the model could do before.",
            ],
        ),
        ([FROZEN, fake_results(accuracy=(80,))], ["No run that trains is finished yet."]),
        ([fake_results(), fake_results(model="another")], []),
    ],
)
def test_several_runs_in_sentences(runs: list[Results], sentences: list[str]) -> None:
    assert comparison_sentences(runs) == sentences
