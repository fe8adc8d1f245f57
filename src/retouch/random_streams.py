"""The random streams of a run: one number per purpose.

A random choice is seeded by the run's seed, usually the task's number, and one of these numbers.
Nothing else is random, so a task can be started again, or resumed in the middle, with the same
result. The numbers are part of every result: give a new purpose a new number, and never change one.
"""

from enum import IntEnum, unique


@unique
class RandomStream(IntEnum):
    """What a random choice is for."""

    SHUFFLE = 1
    """The order of a task's images, per epoch."""
    REPLAY = 2
    """Which replayed images join a step."""
    SCORING = 3
    """Which of a task's images the weights are scored on."""
    MAS_IMAGES = 11
    ZSCL_REFERENCE = 12
    LORA_FACTORS = 31
    EWC_REFERENCE = 33
    SLCA_SAMPLES = 34
    SLCA_SHUFFLE = 35
    MASK_GROWTH = 41
    """Which weights enter SparCL's mask."""
    FEATURES = 36
    """Features drawn from the statistics of earlier classes."""
    RANDOM_FEATURES = 37
    """The projection of ridge regression on random features."""
    WORDS = 38
    """Features drawn to train the text tower alone."""
    PROMPT_INIT = 52
    STORED_TEST_IMAGES = 61
    """Which test images of a class are stored for later runs."""
