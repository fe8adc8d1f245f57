"""Which images `retouch eval` tests a model with."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from retouch.cli.images import decode
from retouch.errors import UserError

if TYPE_CHECKING:
    from retouch.cli.evaluate.config import DataOptions
    from retouch.cli.load_models import LoadedModel
    from retouch.data import Images
    from retouch.evaluate.compare import EvalSet


def eval_sets(loaded: "LoadedModel", options: "DataOptions") -> "list[EvalSet]":
    """The images that were named, or those that the run stored; then the control set."""
    from retouch.data import read_control
    from retouch.evaluate.compare import EvalSet

    decoded = partial(
        decode,
        preprocess=loaded.preprocess,
        no_cache=options.no_cache,
        skip_bad=options.skip_bad,
    )
    sets = []
    if options.data:
        sets += _named_images(loaded, options, decoded)
    elif stored := _stored_images(loaded):
        sets += stored
    elif not options.control:
        reason = "stored no test images" if loaded.run else "is not a run with stored test images"
        raise UserError(f"{loaded.name} {reason}; name some with --data")
    if options.control:
        control = decoded(read_control(options.control, options.data_root))
        sets.append(EvalSet(control, learned=False))
    return sets


def _named_images(
    loaded: "LoadedModel", options: "DataOptions", decoded: "Callable[[Images], Images]"
) -> "list[EvalSet]":
    from retouch.data import read_data
    from retouch.data.class_names import read_class_names, rename_classes

    splits = read_data(options.data or "", options.data_root)
    images = decoded(splits.evaluation_images())
    if options.names:
        images = rename_classes(images, read_class_names(options.names))
    return _eval_sets(loaded, images, has_test_part=splits.test is not None)


def _stored_images(loaded: "LoadedModel") -> "list[EvalSet]":
    """The test images that a run stored, if it did."""
    from retouch.train.run_folder.images import has_stored_images, read_stored_images

    if loaded.run is None or not has_stored_images(loaded.run.folder):
        return []
    images = read_stored_images(loaded.run.folder).test
    stored = _eval_sets(loaded, images, has_test_part=True)
    note = f"tested with the {len(images):,} images that the run stored for this"
    stored[0].notes.insert(0, note)
    return stored


def _eval_sets(loaded: "LoadedModel", images: "Images", has_test_part: bool) -> "list[EvalSet]":
    from retouch.evaluate.compare import EvalSet
    from retouch.train.compare_run import eval_sets_of_run

    run = loaded.run
    if run is None:
        return [EvalSet(images)]
    sets = eval_sets_of_run(run, images, loaded.tasks)
    if not any(len(each.images) for each in sets):
        raise UserError(
            f"{images.name} has no image of a class that {run.folder} had learned by then; give "
            "other images, or another --task"
        )
    trained_on = Path(run.config["places"]["train"])
    same = Path(images.name).resolve() == trained_on.resolve()  # perhaps with other class names
    known = {*run.classes, *(run.choices.in_prompts(name) for name in run.classes)}
    if not has_test_part and (same or set(images.classes) & known):
        sets[0].notes.append(_leakage_note(images, same))
    return sets


def _leakage_note(images: "Images", same: bool) -> str:
    """Without a test part all images count, and the run may have learned from some of them."""
    return (
        f"{images.name} has no test part, so all its images count, and the run "
        f"{'learned' if same else 'may have learned'} from some of them: the numbers "
        f"{'are' if same else 'may be'} better than with images it never saw"
    )
