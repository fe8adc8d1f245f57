"""Random streams: each purpose has a number of its own, and no literal replaces one."""

import re
from pathlib import Path

import retouch
from retouch.random_streams import RandomStream

PACKAGE = Path(retouch.__file__).parent


def test_no_two_streams_share_a_number():
    numbers = [member.value for member in RandomStream.__members__.values()]
    assert len(numbers) == len(set(numbers))


def test_the_numbers_of_published_results_stay():
    assert {
        "SHUFFLE": 1,
        "REPLAY": 2,
        "SCORING": 3,
        "MAS_IMAGES": 11,
        "ZSCL_REFERENCE": 12,
        "LORA_FACTORS": 31,
        "EWC_REFERENCE": 33,
        "SLCA_SAMPLES": 34,
        "SLCA_SHUFFLE": 35,
        "MASK_GROWTH": 41,
        "PROMPT_INIT": 52,
    }.items() <= {name: member.value for name, member in RandomStream.__members__.items()}.items()


def test_a_context_is_never_given_a_bare_number():
    calls = [
        call
        for file in (PACKAGE / "methods").glob("*.py")
        for call in re.findall(r"context\.rng\(([^,)]+)", file.read_text())
    ]
    assert calls
    assert all(call.startswith("RandomStream.") for call in calls)
