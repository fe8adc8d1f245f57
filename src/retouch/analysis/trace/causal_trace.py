"""Causal tracing: which activations carry what a CLIP knows of an object (the paper's Fig. 2).

Noise on an object's patches (or on the tokens of its name) moves the similarity of image and text
from S to S_c; the other tower is left alone. Then one activation at a time is restored to its value
without noise, which gives S_r. The average indirect effect of a block is the mean over tokens of
|S_r - S_c| / S, averaged over pairs of image and text.

The noise is added to the embeddings as they enter the first block, after position embedding and
first norm. It is normal, with `noise` times the standard deviation of those embeddings over patches
(or over the tokens of names), and the same in the corrupted run and in all restored ones.

    from retouch.analysis.annotations import read_annotations
    from retouch.analysis.trace.causal_trace import causal_trace

    clip = retouch.load("openai/clip-vit-base-patch16")
    result = causal_trace(clip, read_annotations("coco"), images=50)
    [effect.mean for effect in result.towers["image"].mlp]
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from retouch.analysis.annotations import AnnotatedImages
from retouch.analysis.trace.cases import Case, Cases
from retouch.analysis.trace.effects import PairEffects, TraceResult, TraceSettings, by_tower
from retouch.analysis.trace.journal import Journal
from retouch.analysis.trace.tracer import Tracer
from retouch.clip import Clip
from retouch.errors import UserError
from retouch.files.lock import exclusive_lock
from retouch.sparse import fingerprint

NOT_SIMILAR = "a similarity to its class that is not above zero"

ProgressCallback = Callable[[int, int], None]
"""Called with the number of pairs traced so far, and the number of all of them."""


def causal_trace(
    clip: Clip,
    objects: AnnotatedImages,
    settings: TraceSettings | None = None,
    *,
    images: int | None = None,
    batch: int = 64,
    folder: str | Path | None = None,
    on_progress: ProgressCallback = lambda done, total: None,
) -> TraceResult:
    """Trace `images` images, or all of them; pairs stored in `folder` are not traced again.

    Only one process at a time writes to the folder.
    `batch` is the number of restorations that run at once; it changes the time, not the result.
    """
    settings = settings or TraceSettings()
    if batch < 1 or (images is not None and images < 1):
        raise UserError(f"{images} images in batches of {batch}: both must be 1 or more")
    lock = exclusive_lock(folder, "retouch trace") if folder else nullcontext()
    with lock:
        return _trace(clip, objects, settings, images, batch, folder, on_progress)


def _trace(
    clip: Clip,
    objects: AnnotatedImages,
    settings: TraceSettings,
    images: int | None,
    batch: int,
    folder: str | Path | None,
    on_progress: ProgressCallback,
) -> TraceResult:
    tracer = Tracer(clip, settings, batch)
    cases = Cases(objects, clip.preprocess, tracer.grid, settings.seed)
    journal = Journal(Path(folder) if folder else None, _header(clip, objects, settings))
    if not journal.embedding_std:
        journal.start(tracer.measure_embedding_std(cases))
    total = min(len(objects), images or len(objects))
    traced: list[list[PairEffects]] = []
    on_progress(0, total)
    for case in cases:
        effects = journal.get(case.key, case.name)
        if effects is None:
            effects = _trace_case(tracer, cases, case, journal)
        if effects:
            traced.append(effects)
            on_progress(len(traced), total)
        if len(traced) == total:
            break
    if not traced:
        raise UserError(f"none of the images of {objects.name} can be traced: {_reasons(cases)}")
    return TraceResult(
        model=clip.name,
        data=objects.name,
        pairs=len(traced),
        skipped=dict(cases.skipped),
        bf16=clip.bf16,
        settings=settings,
        towers=by_tower([e for effects in traced for e in effects], journal.embedding_std),
    )


def _trace_case(tracer: Tracer, cases: Cases, case: Case, journal: Journal) -> list[PairEffects]:
    """Trace a pair and store its effects; returns none if the pair is skipped."""
    pixels = cases.read(case)
    if pixels is None:
        return []
    effects = tracer.effects(case, pixels, journal.embedding_std)
    if effects:
        journal.add(effects)
    else:
        cases.skipped[NOT_SIMILAR] += 1
    return effects


def _reasons(cases: Cases) -> str:
    reasons = [f"{count} with {reason}" for reason, count in cases.skipped.items()]
    return ", ".join(reasons) or "there are none"


def _header(clip: Clip, objects: AnnotatedImages, settings: TraceSettings) -> dict[str, object]:
    """Everything that the effects of a case depend on."""
    return {
        "weights": fingerprint(clip.model),
        "objects": objects.digest(),
        "precision": "bf16" if clip.bf16 else "fp32",
        **settings.model_dump(mode="json"),
    }
