"""`retouch learn`."""

from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from retouch.cli.command import command_line
from retouch.cli.images import show_notes
from retouch.cli.learn.checks import check_disk_space, check_output, plan_arguments
from retouch.cli.learn.config import LearnConfig
from retouch.cli.learn.summary import (
    control_note,
    images_note,
    plan_facts,
    resumed_facts,
    resumed_sentence,
    show_classes,
    show_cost,
    show_hardware,
    show_micro_batch,
    show_settings,
)
from retouch.cli.options import command
from retouch.cli.terminal.console import (
    err,
    out,
    print_json,
    print_line,
    progress,
    status,
    user_errors,
    with_ranks,
)

if TYPE_CHECKING:
    from rich.console import Console

    from retouch.evaluate import Results
    from retouch.train import Callback, Plan

NOTHING_KEPT = 3
"""The exit code if every task would have lost more than --max-drop allows."""


@command(LearnConfig)
def learn(config: LearnConfig) -> None:
    """Learn a folder of images or several, and report what was gained and what was lost.

    If the run was interrupted, the same command resumes it. A month later, continue the run with
    new images:

        retouch learn photos --model openai/clip-vit-base-patch16 --control imagenet --out march

        retouch learn more --from march --control imagenet --max-drop 1 --out april

    Several data sets are learned one after the other, each with its own prompts:

        retouch learn cars flowers --model openai/clip-vit-base-patch16 --tasks each --out may

    Exit codes: 0 learned; 1 an error, which is explained; 3 nothing was kept, because every task
    would have lost more than --max-drop allows; 130 stopped.
    """
    output, console = config.output, err if config.output.as_json else out
    with (
        user_errors(output.folder, overwrite=output.overwrite),
        with_ranks(config.machine.device) as device,
        ExitStack() as stack,
    ):
        from retouch.distributed import collectives
        from retouch.train import is_run
        from retouch.train.run_folder.lock import run_lock

        check_output(config)
        if not output.dry_run:
            stack.enter_context(run_lock(output.folder))
        plan = _make_plan(config, device)
        started = not output.overwrite and bool(
            collectives.broadcast_str(lambda: "started" if is_run(output.folder) else "")
        )
        plan = plan.resuming(output.folder) if started else plan
        show_notes(console, [plan.stream.train, plan.stream.test, plan.control])
        show_hardware(console, plan, decodes_once=not config.data.no_cache)
        if output.dry_run and started and _show_resumed(config, plan, console):
            return
        if output.dry_run or not started:
            plan = _show_plan(config, plan, console)
        if not output.dry_run:
            _run(config, plan, console)


def _make_plan(config: LearnConfig, device: str) -> "Plan":
    from retouch.train import plan

    return plan(
        **plan_arguments(config),
        device=device,
        progress=progress,
        background=partial(print_line, err),
        status=status,
    )


def _show_plan(config: LearnConfig, plan: "Plan", console: "Console") -> "Plan":
    """What will be learned and what that takes. Returns the plan, fitted to the GPU's memory."""
    show_classes(console, plan.stream, plan.done)
    sharding = [_weights_per_rank(plan)] if config.machine.shard else []
    notes = [*plan.notes, *images_note(plan), *control_note(plan), *sharding]
    show_settings(console, notes)
    with status("Estimating time and memory"):
        cost = plan.cost()
    show_cost(console, cost, plan)
    check_disk_space(config.output.folder, cost)
    if cost.micro_batch != plan.settings.micro_batch:
        show_micro_batch(console, cost)
        plan = plan.with_settings(micro_batch=cost.micro_batch)
    if config.output.dry_run and config.output.as_json:
        print_json({"folder": str(config.output.folder), **plan_facts(plan, cost)})
    return plan


def _show_resumed(config: LearnConfig, plan: "Plan", console: "Console") -> bool:
    """Of a dry run: what would become of the run in --out. False if it would be replaced."""
    from retouch.train.api import start_method
    from retouch.train.run_folder.write import find_resumable

    folder = config.output.folder
    results = find_resumable(start_method(plan), folder)
    if results is None:
        return False
    if config.output.as_json:
        print_json({"folder": str(folder), **resumed_facts(results)})
    else:
        print_line(console, resumed_sentence(folder, results))
    return True


def _run(config: LearnConfig, plan: "Plan", console: "Console") -> None:
    """Train, and show what came of it."""
    from retouch.distributed import collectives
    from retouch.train import teach

    folder, overwrite = config.output.folder, config.output.overwrite
    finished = not overwrite and _is_finished(folder)
    results = teach(
        plan,
        out=folder,
        callback=_callback(config, plan),
        overwrite=overwrite,
        command=command_line(),
    )
    if collectives.is_rank0():
        if finished:
            print_line(console, f"{folder} was finished before; nothing was trained.")
        _show_results(config, results, console)
    new = results.fraction_kept[plan.done :]
    if new and not any(new):
        raise typer.Exit(NOTHING_KEPT)


def _is_finished(folder: Path) -> bool:
    from retouch.evaluate.results import FILE, Results

    return (folder / FILE).exists() and Results.read(folder).finished


def _weights_per_rank(plan: "Plan") -> str:
    """How much of the model each process holds."""
    from retouch.distributed import collectives, fsdp
    from retouch.plotting.formatting import file_size

    model, update = plan.clip.model, plan.method.update
    sharded = update.shardable_parameters(plan.clip)
    per_rank = file_size(fsdp.bytes_per_rank(model, sharded, collectives.world_size()))
    total = file_size(fsdp.bytes_per_rank(model, {}, 1))
    return f"each process holds {per_rank} of the {total} of weights while it trains"


def _callback(config: LearnConfig, plan: "Plan") -> "Callback":
    """Progress on the terminal, and the loggers that were asked for; on rank 0 alone."""
    from retouch.distributed import collectives
    from retouch.train.callbacks.callback import Callback, CallbackList
    from retouch.train.callbacks.progress import progress_callback

    if not collectives.is_rank0():
        return Callback()
    output, method, settings = config.output, plan.method, plan.settings
    tasks = len(plan.stream.tasks)
    callbacks = [
        progress_callback(
            method.name, tasks, settings.epochs, quiet=output.quiet, to_stderr=output.as_json
        )
    ]
    if output.tensorboard:
        from retouch.train.callbacks.tensorboard import TensorBoard

        callbacks.append(TensorBoard(output.tensorboard))
    if output.wandb:
        from retouch.methods.method_config import method_config
        from retouch.train.callbacks.wandb import WandB

        facts = {
            "method": method_config(method),
            "settings": settings.model_dump(mode="json"),
            "data": plan.stream.train.name,
            "classes": len(plan.stream.classes),
            "tasks": tasks,
        }
        callbacks.append(WandB(output.wandb, output.folder.name, facts))
    return CallbackList(*callbacks) if len(callbacks) > 1 else callbacks[0]


def _show_results(config: LearnConfig, results: "Results", console: "Console") -> None:
    from retouch.report import write_report
    from retouch.report.sentences import compile_sentence, run_sentences

    with status("Writing the page"):
        page = write_report(config.output.folder, [results])
    if config.output.as_json:
        print_json(
            {
                "folder": str(config.output.folder),
                "report": str(page),
                "method": results.method,
                "classes": [name for task in results.tasks for name in task.classes],
                "metrics": results.metrics(),
                "fraction_kept": results.fraction_kept,
                "notes": results.notes,
            }
        )
        return
    for line in (*run_sentences(results), compile_sentence(results), f"More in {page}"):
        if line:
            print_line(console, line)
