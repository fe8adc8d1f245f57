"""The plan of a run: what is learned, from which images, by which method, with which settings.

`plan` makes one from names and paths, or from a stream and a model; what is not asked for is chosen
to suit model, data and machine. `teach` carries it out.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from retouch.arguments import check_arguments
from retouch.clip import Clip, load
from retouch.clip.loading.load import check_name, resolve_device
from retouch.clip.text.zero_shot import fill_template
from retouch.data.cache.images import decoded
from retouch.data.check import add_control_note, add_dataset_notes
from retouch.data.class_names import rename_classes
from retouch.data.few_shot import balanced_indices
from retouch.data.images import Images, refuse_confusable_classes
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.pairs import Pairs
from retouch.data.registry import data_set_names, read_control, read_data, read_pairs
from retouch.data.splits import Splits
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Choices, Stream
from retouch.errors import UserError
from retouch.evaluate.results import Results
from retouch.methods import Method, Settings
from retouch.text.plural import count
from retouch.train.arguments import REMEDIES
from retouch.train.choose_method import FinishedRun, Replay, choose_method
from retouch.train.defaults import choose_defaults
from retouch.train.estimate import Cost, estimate
from retouch.train.extend_stream import (
    EarlierRun,
    extend_stream,
    refuse_domains,
    refuse_unfinished,
)
from retouch.train.hardware import Hardware, check_precision, check_shard, hardware
from retouch.train.run_folder.images import stored_images
from retouch.train.run_folder.read import OpenRun, is_run, open_run, read_config
from retouch.train.work import Work, work

Source = str | Path | Splits | Stream
Status = Callable[[str], AbstractContextManager[Any]]
MACHINE = ("precision", "compile", "cuda_graphs")
"""The settings that are chosen to suit the machine."""


def no_status(what: str) -> AbstractContextManager[Any]:
    """Says nothing about what is being done."""
    return nullcontext(what)


@dataclass(frozen=True, repr=False)
class Plan:
    """All that a run is made from: what was asked for, and what was chosen to suit it.

    Printed, it is a few sentences.
    """

    clip: Clip
    """The model, as it is before the first task."""
    stream: Stream
    """The tasks; where a run is continued, those of that run first."""
    method: Method
    """With the size of its replay buffer. In a run: its own copy, which has seen the model."""
    settings: Settings
    """All of them, those that were chosen, too."""
    control: Images | None = None
    """What the model must not forget."""
    reference: Pairs | None = None
    """Images with captions, for methods that need some."""
    earlier: EarlierRun | None = None
    """What the run needs of the one that it continues."""
    run: OpenRun | None = None
    """The run that is continued, with its model."""
    store_images: bool | None = None
    """Whether images may be stored, if that was asked for."""
    hardware: Hardware | None = None
    """The device, and how to compute on it, where that was chosen."""
    chosen: frozenset[str] = frozenset()
    """The settings that were chosen to suit the machine; a run that is resumed keeps its own."""
    notes: tuple[str, ...] = ()
    """What was chosen to suit model and data, for the user."""
    command: str = ""
    """The command line that started the run, for the report."""

    def __repr__(self) -> str:
        new = self.stream.tasks[self.done :]
        classes = count(len({label for task in new for label in task.classes}), "class")
        images = count(sum(len(task.train) for task in new), "image")
        tasks = f" in {len(new)} tasks" if len(new) > 1 else ""
        what = f"{classes} from {images}{tasks}, taught to {self.clip.name} by {self.method.name}"
        machine = [str(self.hardware)] if self.hardware else []
        lines = [what, *self.notes, *machine]
        return "\n".join(f"{line[0].upper()}{line[1:]}." for line in lines)

    @property
    def done(self) -> int:
        """How many tasks of the stream an earlier run has learned."""
        return self.earlier.results.done if self.earlier else 0

    @cached_property
    def control_part(self) -> Indices | None:
        """Positions of the control images to check after each task but the last; None for all.

        They depend on the control set and on their number alone, so a resumed run checks the same
        ones, and so does a run with another seed. A method that bounds what may be lost needs all.
        """
        size, control = self.settings.control_part, self.control
        if control is None or size == "all" or self.method.needs_control:
            return None
        if len(self.stream.tasks) < 2:
            return None
        part = balanced_indices(control, size)
        return part if len(part) < len(control) else None

    @cached_property
    def work(self) -> Work:
        """How much the run computes."""
        return work(
            self.stream,
            self.method,
            self.settings,
            done=self.done,
            control=self.control,
            part=self.control_part,
            fewer_images=self.earlier.fewer_images if self.earlier else (),
        )

    def cost(self) -> Cost:
        """What the run will change, and what it will take; a step is timed on the model."""
        if self.run:
            self.run.load_task(None)  # the model that it will start from
        try:
            return estimate(
                self.clip, self.stream, self.method, self.settings, self.work, self.done
            )
        finally:
            if self.run:
                self.run.load_task(0)

    def with_settings(self, **changes: Any) -> "Plan":
        """The same plan with other settings.

        Args:
            changes: Fields of `Settings`.
        """
        return replace(self, settings=self.settings.model_copy(update=changes))

    def with_storage(self, store_images: bool | None) -> "Plan":
        """The same plan, with whether images may be stored.

        Args:
            store_images: As asked for; None for as the method and the earlier run say.
        """
        allowed = store_images
        if allowed is None:
            inherited = self.earlier is None or self.earlier.method["store_images"]
            allowed = self.method.store_images and inherited
        method = self.method.with_change({"store_images": allowed})
        return replace(self, method=method, store_images=store_images)

    def resuming(self, folder: Path) -> "Plan":
        """The same plan, computed as an unfinished run in a folder was, where that was chosen.

        Args:
            folder: Perhaps the folder of a run.
        """
        if not self.chosen or not is_run(folder):
            return self
        stored = read_config(folder)["settings"]
        kept = {name: stored[name] for name in self.chosen if name in stored}
        shown = {name: value for name, value in kept.items() if name in MACHINE}
        computed = self.hardware and replace(self.hardware, **shown)
        return replace(self.with_settings(**kept), hardware=computed)


@check_arguments(**REMEDIES)
def plan(
    data: Source | Sequence[Source],
    model: str | Path | Clip | None = None,
    method: str | Method | None = None,
    *,
    change: Mapping[str, Any] | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    control: str | Path | Images | None = None,
    reference: str | Path | Pairs | None = None,
    earlier: str | Path | None = None,
    max_drop: float | None = None,
    replay: Replay | None = None,
    tasks: int = 1,
    order: int | Sequence[str] = 0,
    holdout: float = 0.2,
    choices: Choices | None = None,
    names: Mapping[str, str] | None = None,
    templates: Sequence[str] = (),
    device: str | torch.device = "auto",
    random_weights: bool = False,
    light: bool = False,
    root: str | Path | None = None,
    use_cache: bool = True,
    skip_bad: bool = False,
    progress: Progress = no_progress,
    background: Callable[[str], None] | None = None,
    status: Status = no_status,
) -> Plan:
    """Plan a run: read the images, load the model, and choose what is not asked for.

    `retouch learn` makes its plan with this, so the same arguments give the same weights.

    Args:
        data: What to learn: a folder with a subfolder of images per class, or anything else that
            `read_data` takes; several, to learn one after the other; or a stream.
        model: The model to teach: its name or folder, as `load` takes them, or a model that is
            loaded. Where a run is continued: only if the model has moved since.
        method: The name of a recipe (see `available_methods`), or a `Method` of your own. Default:
            `text-first`, or that of the run that is continued.
        change: Changes of the method's settings, such as `{"update.rate": 0.05}`.
        settings: The settings that you want, by name (`{"epochs": 5, "precision": "bf16"}`): the
            others are chosen to suit model, data and machine. Or all of them, as `Settings`.
        control: Images of what the model could do before and must not forget.
        reference: Images with captions, for methods that keep old knowledge with them.
        earlier: The folder of a finished run to continue.
        max_drop: Lose at most this many points of control accuracy: a task that would cost more is
            scaled back.
        replay: How many images the run may store to replay them later; "none" stores no image at
            all, nor do runs that continue it.
        tasks: How many tasks the classes of each data set are split into.
        order: A seed for the order of the classes, or their names in order.
        holdout: The share of the images to test with, of data without a test part.
        choices: With several data sets, what a test image is classified among (see `Stream.join`).
        names: Other names for classes, by the names that they have.
        templates: Prompts for a class, such as "a photo of a {}, a kind of flower."; training uses
            the first, evaluation the mean of all.
        device: Where to compute: "cpu", "cuda", or "auto" for a GPU if there is one.
        random_weights: Start from random weights instead of the model's.
        light: Load a plain CLIP without its library, as in `load`.
        root: The folder that holds the benchmarks, as for `read_data`.
        use_cache: Decode images once and keep their pixels (`RETOUCH_CACHE` says where).
        skip_bad: Skip images that cannot be read, instead of refusing them.
        progress: Shows the progress of decoding.
        background: Decode while training begins, where there is a GPU; called with a description.
        status: Shows what is being done; a function that returns a context.
    """
    _check_model(model, device)
    requested = _requested(settings)
    finished = None if earlier is None else _finished_run(Path(earlier))
    _check_templates(templates, finished)
    changes, has_control = change or {}, control is not None
    chosen = choose_method(
        method, changes, finished, replay=replay, max_drop=max_drop, control=has_control
    )
    if isinstance(requested, dict):
        _check_control_part(requested, chosen, has_control)
        check_shard(chosen, Settings(**requested))
    chosen.check_needs(has_control, reference is not None)
    sources = [data] if isinstance(data, str | Path | Splits | Stream) else list(data)
    _check_sources(sources, control, choices, earlier, names=names, order=order)
    with status(f"Reading {', '.join(map(_description, sources))}"):
        named = partial(_with_names, names=names or {}, templates=tuple(templates))
        split = partial(_split, holdout=holdout, tasks=tasks, order=order)
        found = [_read(source, root, named) for source in sources]
        names_of = _names(sources)
        streams = dict(zip(names_of, map(split, found), strict=True))
        control_set = _read_control(control, root, streams)
        pairs = read_pairs(reference) if isinstance(reference, str | Path) else reference
    _check_classes(streams, finished)
    run, clip = _load(model, finished, device, random_weights, light, status)
    background = background if clip.device.type == "cuda" else None  # a CPU has no core to spare
    decode = partial(
        decoded,
        preprocess=clip.preprocess,
        use_cache=use_cache,
        skip_bad=skip_bad,
        background=background,
        progress=progress,
    )
    for name, source, images in zip(names_of, sources, found, strict=True):
        if isinstance(images, Splits) and source is not images:  # read here, by name
            streams[name] = _decode(streams[name], images, split, decode, skip_bad)
    if control_set is not None and control_set is not control:
        control_set = decode(control_set)
    stream, extended = _one_stream(streams, run, choices)
    asked = replay is not None or "store_images" in changes
    return plan_stream(
        clip,
        stream,
        chosen,
        settings=requested,
        control=control_set,
        reference=pairs,
        earlier=extended,
        run=run,
        store_images=chosen.store_images if asked else None,
    )


def plan_stream(
    clip: Clip,
    stream: Stream,
    method: Method,
    *,
    settings: Settings | Mapping[str, Any] | None = None,
    control: Images | None = None,
    reference: Pairs | None = None,
    earlier: EarlierRun | None = None,
    run: OpenRun | None = None,
    store_images: bool | None = None,
) -> Plan:
    """The plan of a run whose model, tasks and method are known: choose the rest.

    The arguments are those of `plan`, and the fields of `Plan`.
    """
    requested = _requested(settings)
    given = Plan(clip, stream, method, Settings(), control, reference, earlier, run)
    given = given.with_storage(store_images)
    if isinstance(requested, Settings):
        return replace(given, settings=requested)
    inherited = _inherited(run)
    sizes = [len(task.train) for task in stream.tasks[given.done :]]
    known = len(stream.classes), stream.missing_images
    defaults = choose_defaults(clip, given.method, {**inherited, **requested}, sizes, *known)
    planned = replace(given, method=defaults.method, settings=defaults.settings)
    compiled = False if planned.settings.shard else requested.get("compile")
    precision = requested.get("precision", "auto")
    computed = hardware(clip.device, clip.size, precision, compiled, planned.work)
    if "cuda_graphs" in requested:
        computed = replace(computed, cuda_graphs=requested["cuda_graphs"])
    chosen = {*MACHINE, "micro_batch"} - requested.keys()
    chosen -= {"compile", "cuda_graphs"} if compiled is not None else set()
    return replace(
        planned.with_settings(**{name: getattr(computed, name) for name in MACHINE}),
        hardware=computed,
        chosen=frozenset(chosen),
        notes=(*defaults.notes, *method.notes),
    )


def _inherited(run: OpenRun | None) -> dict[str, Any]:
    """Settings of the run to continue that do not depend on the number of its images."""
    names = ("lr", "weight_decay")
    return {name: run.config["settings"][name] for name in names} if run else {}


def _requested(settings: Settings | Mapping[str, Any] | None) -> Settings | dict[str, Any]:
    """All settings, or those that were asked for; refused if they are none."""
    if isinstance(settings, Settings):
        return settings
    given = {name: value for name, value in (settings or {}).items() if value is not None}
    check_precision(given.get("precision", "auto"))
    if given.get("precision") == "auto":
        del given["precision"]
    Settings(**given)
    return given


def _check_model(model: str | Path | Clip | None, device: str | torch.device) -> None:
    if isinstance(model, str | Path):
        if is_run(model):
            raise UserError(
                f"{model} is a run, not a model; continue it, or export its model first",
                argument=f"earlier={model}",
            )
        check_name(str(model))
    resolve_device(str(device))


def _finished_run(folder: Path) -> FinishedRun:
    config, results = read_config(folder), Results.read(folder)
    refuse_unfinished(folder, results)
    refuse_domains(folder, results)
    return FinishedRun(folder, config, results)


def _check_templates(templates: Sequence[str], earlier: FinishedRun | None) -> None:
    """Refuse templates without {}, and templates that differ from those of the earlier run."""
    for template in templates:
        fill_template(template, [])
    if templates and earlier:
        data = earlier.config["data"]
        if [data["prompt"], *data["templates"]] != [templates[0], *templates]:
            raise UserError(
                f"the template {templates[0]!r}: a continued run keeps the prompts of "
                f"{earlier.folder} ({data['prompt']!r}); leave it out"
            )


def _check_control_part(settings: Mapping[str, Any], method: Method, control: bool) -> None:
    """Refuse a part of the control set where it would be ignored."""
    part = settings.get("control_part")
    if part is None:
        return
    if not control:
        raise UserError(
            f"control_part={part}: there is no control set; name one", argument="control=…"
        )
    if part != "all" and method.needs_control:
        raise UserError(
            f"control_part={part}: a bound on what may be lost holds for all control images, so "
            "all of them are checked; leave it out"
        )


def _check_sources(
    sources: Sequence[Source],
    control: str | Path | Images | None,
    choices: Choices | None,
    earlier: str | Path | None,
    *,
    names: Mapping[str, str] | None,
    order: int | Sequence[str],
) -> None:
    """Refuse to learn the control set, and what is for one data set, or for several."""
    paths = [Path(source) for source in sources if isinstance(source, str | Path)]
    by_path = Path(control) if isinstance(control, str | Path) else None
    if by_path and by_path.exists() and any(p.exists() and p.samefile(by_path) for p in paths):
        raise UserError(
            f"the control set {control} is what is to be learned; name images of what the model "
            "could do before",
            argument="control=…",
        )
    if len(sources) == 1:
        if choices:
            raise UserError(
                f"choices {choices} are for several data sets, and there is one; leave them out"
            )
        return
    given_order = None if isinstance(order, int) else order
    single: dict[str, object] = {"names": names, "earlier": earlier, "order": given_order}
    for argument, value in single.items():
        if value:
            raise UserError(
                f"{argument} can be given for one data set, and there are {len(sources)}; leave it "
                "out, or learn one at a time",
                argument=f"{argument}=…",
            )


def _description(source: Source) -> str:
    if isinstance(source, Stream):
        return source.train.name
    return source.evaluation_images().name if isinstance(source, Splits) else str(source)


def _names(sources: Sequence[Source]) -> list[str]:
    """A name for each data set."""
    return data_set_names([_description(source) for source in sources])


def _read(
    source: Source, root: str | Path | None, named: Callable[[Images], Images]
) -> Splits | Stream:
    """What a data set has; none of its images is decoded yet."""
    if isinstance(source, Splits | Stream):
        return source
    return add_dataset_notes(read_data(source, root)).map(named)


def _split(
    found: Splits | Stream, holdout: float, tasks: int, order: int | Sequence[str]
) -> Stream:
    """The tasks of one data set."""
    if isinstance(found, Stream):
        return found
    return Stream.split(*found.train_and_test(holdout), tasks=tasks, order=order)


def _decode(
    stream: Stream,
    splits: Splits,
    split: Callable[[Splits], Stream],
    decode: Callable[[Images], Images],
    skip_bad: bool,
) -> Stream:
    """The stream with decoded images; split again if some of them may be missing."""
    if skip_bad:
        return split(splits.map(decode))
    return stream.with_images(decode(stream.train), decode(stream.test))


def _with_names(images: Images, names: Mapping[str, str], templates: tuple[str, ...]) -> Images:
    """The images with other class names and prompt templates, if any were given."""
    images = rename_classes(images, names) if names else images
    return replace(images, prompt=templates[0], templates=templates) if templates else images


def _read_control(
    control: str | Path | Images | None, root: str | Path | None, streams: Mapping[str, Stream]
) -> Images | None:
    if not isinstance(control, str | Path):
        return control
    learned = [stream.train for stream in streams.values()]
    return add_control_note(read_control(control, root), learned)


def _check_classes(streams: Mapping[str, Stream], earlier: FinishedRun | None) -> None:
    """Refuse a single class, with nothing to tell it apart from, and names that CLIP confuses."""
    learned = [name for task in earlier.results.tasks for name in task.classes] if earlier else []
    new = [name for stream in streams.values() for name in stream.train.classes]
    check_classes(new, learned)


def check_classes(new: Sequence[str], learned: Sequence[str] = ()) -> None:
    """Refuse a single class, with nothing to tell it apart from, and names that CLIP confuses.

    Args:
        new: The classes to learn, of all data sets.
        learned: The classes of the run to continue; none for a new run.
    """
    classes = list(dict.fromkeys([*learned, *new]))
    if len(classes) == 1:
        raise UserError(
            f"there is only one class, {classes[0]!r}, and nothing to tell it apart from; add a "
            "folder with images of something else"
        )
    if learned:  # those of one data set are compared already, and several may share names
        refuse_confusable_classes("the new classes and those learned before", classes)


def _load(
    model: str | Path | Clip | None,
    earlier: FinishedRun | None,
    device: str | torch.device,
    random_weights: bool,
    light: bool,
    status: Status,
) -> tuple[OpenRun | None, Clip]:
    """The run to continue, if any, and the model."""
    if earlier:
        with status(f"Loading the model of {earlier.folder}"):
            run = open_run(earlier.folder, model=model, device=device, light=light)
        return run, run.clip
    if isinstance(model, Clip):
        return None, model
    if model is None:
        raise UserError("no model given; name one, or a run to continue", argument="model=…")
    with status(f"Loading {model}"):
        clip = load(model, device=device, random_weights=random_weights, light=light)
    return None, clip


def _one_stream(
    streams: Mapping[str, Stream], run: OpenRun | None, choices: Choices | None
) -> tuple[Stream, EarlierRun | None]:
    """The stream of the data set or sets; where a run is continued, after the tasks of that run."""
    if len(streams) > 1:
        return Stream.join(streams, choices or "domain"), None
    (stream,) = streams.values()
    if run is None:
        return stream, None
    return extend_stream(run, stored_images(run.folder), stream)
