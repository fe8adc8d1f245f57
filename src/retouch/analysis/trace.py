"""Causal tracing: which activations carry what a CLIP knows of an object (the paper's Fig. 2).

Noise on an object's patches (or on the tokens of its name) moves the similarity of image and text
from S to S_c; the other tower is left alone. Then one activation at a time is put back to what it
was without the noise, which gives S_r. The average indirect effect of a block is the mean over
tokens of |S_r - S_c| / S, and then over pairs of image and text.

The noise is added to the embeddings as they enter the first block, position and first norm
included. It is normal, `noise` times as wide as those embeddings are over patches (or the tokens of
names), and the same in the corrupted run and in all that restore something.

    from retouch.analysis.objects import read_objects
    from retouch.analysis.trace import trace

    found = trace(retouch.load("openai/clip-vit-base-patch16"), read_objects("coco"), images=50)
    [band.mean for band in found.towers["image"].mlp]
"""

from collections.abc import Callable
from pathlib import Path

from retouch.analysis.cases import Case, Cases
from retouch.analysis.effects import Effect, Traced, TraceSettings, by_tower
from retouch.analysis.objects import AnnotatedImages
from retouch.analysis.trace_journal import Journal
from retouch.analysis.tracer import Tracer
from retouch.clip import Clip
from retouch.errors import UserError
from retouch.sparse import fingerprint

UNLIKE = "a similarity with its class that is not above zero"

Told = Callable[[int, int], None]
"""Is told how many pairs are traced, of how many."""


def trace(
    clip: Clip,
    objects: AnnotatedImages,
    settings: TraceSettings | None = None,
    *,
    images: int | None = None,
    batch: int = 64,
    folder: str | Path | None = None,
    told: Told = lambda done, total: None,
) -> Traced:
    """Trace so many images, or all; what is done is kept in `folder`, and not done again.

    `batch` is how many restorations run side by side; it changes the time, not the result.
    """
    settings = settings or TraceSettings()
    if batch < 1 or (images is not None and images < 1):
        raise UserError(f"{images} images in batches of {batch}: both must be 1 or more")
    tracer = Tracer(clip, settings, batch)
    cases = Cases(objects, clip.preprocess, tracer.grid, settings.seed)
    journal = Journal(Path(folder) if folder else None, _header(clip, objects, settings))
    if not journal.deviations:
        journal.begin(tracer.measure(cases))
    total = min(len(objects), images or len(objects))
    found: list[list[Effect]] = []
    told(0, total)
    for case in cases:
        effects = journal.get(case.key, case.name)
        if effects is None:
            effects = _traced(tracer, cases, case, journal)
        if effects:
            found.append(effects)
            told(len(found), total)
        if len(found) == total:
            break
    if not found:
        raise UserError(f"none of the images of {objects.name} can be traced: {_why(cases)}")
    return Traced(
        model=clip.name,
        data=objects.name,
        pairs=len(found),
        skipped=dict(cases.skipped),
        bf16=clip.bf16,
        settings=settings,
        towers=by_tower([e for effects in found for e in effects], journal.deviations),
    )


def _traced(tracer: Tracer, cases: Cases, case: Case, journal: Journal) -> list[Effect]:
    """The effects of a pair, kept; none if it is one that is passed over."""
    pixels = cases.read(case)
    if pixels is None:
        return []
    effects = tracer.effects(case, pixels, journal.deviations)
    if effects:
        journal.add(effects)
    else:
        cases.skipped[UNLIKE] += 1
    return effects


def _why(cases: Cases) -> str:
    reasons = [f"{count} with {reason}" for reason, count in cases.skipped.items()]
    return ", ".join(reasons) or "there are none"


def _header(clip: Clip, objects: AnnotatedImages, settings: TraceSettings) -> dict[str, object]:
    """All that decides about the effects of a case."""
    return {
        "weights": fingerprint(clip.model),
        "objects": objects.stamp(),
        "precision": "bf16" if clip.bf16 else "fp32",
        **settings.model_dump(mode="json"),
    }
