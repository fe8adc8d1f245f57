"""Turn the options of `retouch learn` into a model, a stream of tasks and all settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from retouch.cli.images import decode
from retouch.cli.terminal.console import status

if TYPE_CHECKING:
    from rich.console import Console

    from retouch.cli.learn.checks import Request
    from retouch.cli.learn.config import LearnConfig
    from retouch.clip import Clip
    from retouch.data import Images, Pairs, Splits, Stream
    from retouch.train import OpenRun
    from retouch.train.defaults import ChosenDefaults
    from retouch.train.estimate import Cost
    from retouch.train.extend_stream import EarlierRun
    from retouch.train.work import Work


@dataclass(frozen=True)
class Plan:
    """Everything that training needs."""

    clip: "Clip"
    run: "OpenRun | None"
    """The run to continue, with its model."""
    stream: "Stream"
    earlier: "EarlierRun | None"
    defaults: "ChosenDefaults"
    control: "Images | None"
    reference: "Pairs | None"

    @property
    def done(self) -> int:
        """How many tasks of the stream were learned by the earlier run."""
        return self.run.results.done if self.run else 0

    def arguments(self) -> dict[str, Any]:
        """What `teach` is called with, apart from where and how it writes."""
        return {
            "clip": self.clip,
            "stream": self.stream,
            "method": self.defaults.method,
            "settings": self.defaults.settings,
            "control": self.control,
            "reference": self.reference,
            "earlier": self.earlier,
        }


def make_plan(
    config: "LearnConfig", request: "Request", device: str, started: bool, console: "Console"
) -> Plan:
    """Load the model, decode the images and choose all settings that were not given.

    Args:
        config: The options of the command.
        request: The same, checked.
        device: Where to compute.
        started: Whether --out holds an interrupted run, which is resumed with its settings.
        console: Where to print how the machine is used.
    """
    from retouch.data.loading.decode import set_workers
    from retouch.train.defaults import choose_defaults
    from retouch.train.work import work

    data = config.data
    if config.machine.workers:
        set_workers(config.machine.workers)
    run, clip = _load(config, request, device)
    decoded = partial(
        decode,
        preprocess=clip.preprocess,
        cache=data.cache,
        no_cache=data.no_cache or config.output.dry_run,
        skip_bad=data.skip_bad,
        background=clip.device.type == "cuda",  # a CPU has no core to spare
    )
    sources = {name: splits.map(decoded) for name, splits in request.sources.items()}
    stream, earlier_run = _make_stream(run, sources, request, config)
    done = run.results.done if run else 0
    defaults = choose_defaults(
        clip,
        request.method,
        {**_inherited(run), **request.settings, "shard": config.machine.shard},
        [len(task.train) for task in stream.tasks[done:]],
        len(stream.classes),
        stream.missing_images,
    )
    control = request.control and decoded(request.control)
    fewer = earlier_run.fewer_images if earlier_run else ()
    computed = work(
        stream,
        defaults.method,
        defaults.settings,
        done=done,
        control=control,
        fewer_images=fewer,
    )
    chosen = _hardware(config, clip, started, computed, console)
    defaults = replace(defaults, settings=defaults.settings.model_copy(update=chosen))
    return Plan(clip, run, stream, earlier_run, defaults, control, request.reference)


def _load(config: "LearnConfig", request: "Request", device: str) -> "tuple[OpenRun | None, Clip]":
    """The run to continue, if any, and the model, without its library where possible."""
    from retouch.clip import load
    from retouch.train import open_run

    model = config.training.model
    if request.earlier:
        folder = request.earlier.folder
        with status(f"Loading the model of {folder}"):
            run = open_run(folder, model=model, device=device, light=True)
        return run, run.clip
    with status(f"Loading {model}"):
        random_weights = config.training.random_weights
        clip = load(model or "", device=device, random_weights=random_weights, light=True)
    return None, clip


def control_note(plan: Plan) -> list[str]:
    """How much of a large control set is checked after each task, for the user."""
    from retouch.train.control_part import control_part

    defaults = plan.defaults
    part = control_part(plan.stream, plan.control, defaults.method, defaults.settings)
    if part is None or plan.control is None or len(plan.stream.tasks) - plan.done < 2:
        return []
    images = f"{len(part):,} of the {len(plan.control):,} control images"
    return [f"{images} are checked after each task, all of them at the end"]


def images_note(plan: Plan) -> list[str]:
    """That no image is stored, for the user."""
    if plan.defaults.method.store_images:
        return []
    return ["no image is stored in the folder of the run"]


def estimate_cost(plan: Plan) -> "Cost":
    """What training will take; measured on the model that it will start from."""
    from retouch.train.estimate import estimate

    if plan.run:
        plan.run.load_task(None)
    try:
        return estimate(
            plan.clip,
            plan.stream,
            plan.defaults.method,
            plan.defaults.settings,
            done=plan.done,
            control=plan.control,
            fewer_images=plan.earlier.fewer_images if plan.earlier else (),
        )
    finally:
        if plan.run:
            plan.run.load_task(0)


def with_micro_batch(plan: Plan, size: int | None) -> Plan:
    """The same plan, in which this many images are computed at a time."""
    defaults = plan.defaults
    settings = defaults.settings.model_copy(update={"micro_batch": size})
    return replace(plan, defaults=replace(defaults, settings=settings))


def _inherited(run: "OpenRun | None") -> dict[str, Any]:
    """Settings of the earlier run that do not depend on the number of its images."""
    names = ("lr", "weight_decay")
    return {name: run.config["settings"][name] for name in names} if run else {}


def _hardware(
    config: "LearnConfig", clip: "Clip", started: bool, work: "Work", console: "Console"
) -> dict[str, Any]:
    """Precision and compilation: as given, as in the run to resume, or as suits machine and run."""
    from retouch.data.loading.decode import workers
    from retouch.train.hardware import hardware
    from retouch.train.run_folder.read import read_config

    precision = config.machine.precision
    compiled = False if config.machine.shard else config.machine.compiled
    stored = read_config(config.output.folder)["settings"] if started else {}
    if started and precision == "auto":
        precision = stored["precision"]
    settings = hardware(clip.device, clip.size, precision, compiled, work)
    if started and compiled is None:
        graphs = bool(stored.get("cuda_graphs"))
        settings = replace(settings, compile=stored["compile"], cuda_graphs=graphs)
    often = "every time" if config.data.no_cache else "once"
    decoding = f"images are decoded {often}, {workers()} at a time"
    console.print(f"{settings}; {decoding}.", highlight=False, soft_wrap=True)
    names = ("precision", "compile", "cuda_graphs")
    micro_batch = config.machine.micro_batch or stored.get("micro_batch")
    return {**{name: getattr(settings, name) for name in names}, "micro_batch": micro_batch}


def _make_stream(
    run: "OpenRun | None",
    sources: "Mapping[str, Splits]",
    request: "Request",
    config: "LearnConfig",
) -> "tuple[Stream, EarlierRun | None]":
    """The stream of the data set or sets; where a run is continued, after the tasks of that run."""
    from retouch.cli.learn.sources import make_streams
    from retouch.data import Stream
    from retouch.train.extend_stream import extend_stream
    from retouch.train.run_folder.images import has_stored_images, read_stored_images

    holdout, tasks, order = config.data.holdout, request.tasks, request.order
    if run is None:
        streams = make_streams(sources, holdout, tasks, order)
        if len(streams) > 1:
            return Stream.join(streams, config.data.choices or "domain"), None
        return next(iter(streams.values())), None
    (splits,) = sources.values()
    stored = read_stored_images(run.folder) if has_stored_images(run.folder) else None
    train, test = splits.train_and_test(holdout)
    return extend_stream(run, stored, train, test, tasks=tasks, order=order)
