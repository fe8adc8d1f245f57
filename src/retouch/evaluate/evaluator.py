"""Evaluate a model during a run: on every task of the stream, and on a control set."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from retouch.clip import Clip
from retouch.clip.finite import check_features
from retouch.clip.text.everyday_words import word_prompts
from retouch.clip.text.zero_shot import PromptEnsemble
from retouch.data.images import Images
from retouch.data.loading.progress import Progress, no_progress
from retouch.data.stores.image_store import Indices
from retouch.data.stream import Stream
from retouch.evaluate.choices import ClassChoices, merge_twins
from retouch.evaluate.class_features import ClassFeatures, Classifier, prompt_names
from retouch.evaluate.drift import drift_between
from retouch.evaluate.image_features import ImageSubset, encode_image_sets
from retouch.evaluate.joint_accuracy import Encoded, joint_accuracy
from retouch.evaluate.predict import PredictedClasses, nearest, nearest_classes
from retouch.evaluate.row import ControlPart, Drift, Joint, Row
from retouch.text.plural import count


class Evaluator:
    """Evaluates a model after every task, always on the same images.

    Args:
        stream: The tasks to evaluate on.
        control: Images of what the model could do before, which no task teaches.
        each_task: Evaluate after every task, not only before the first and after the last.
        progress: Shows how far an evaluation is.
        control_part: Positions of the control images to evaluate on after each task but the last;
            all by default.
    """

    def __init__(
        self,
        stream: Stream,
        control: Images | None = None,
        each_task: bool = True,
        progress: Progress = no_progress,
        control_part: Indices | None = None,
    ) -> None:
        self._stream = stream
        self._choices = ClassChoices.of_stream(stream)
        self._progress = progress
        self._each_task = each_task
        self._control = control
        self._control_part = control_part
        self._words: tuple[PromptEnsemble, Tensor] | None = None
        self._prompts: dict[int, ClassFeatures] = {}
        self.predicted: dict[int, PredictedClasses] = {}
        """The predictions before the first task and after the last, by number of tasks learned."""

    def begin(self, clip: Clip) -> None:
        """Encode everyday words before anything is learned, to measure their drift later.

        Args:
            clip: The model before the first task.
        """
        prompts = word_prompts(clip)
        self._words = prompts, prompts.features(clip)

    def __call__(self, clip: Clip, learned: int, all_control: bool = False) -> Row:
        """Accuracies after `learned` tasks. Every image passes through the visual tower once.

        With `all_control`, all control images are evaluated, however many tasks are learned.
        """
        between = 0 < learned < len(self._stream.tasks)
        if not self._each_task and between:
            return Row(tasks=[None] * len(self._stream.tasks))
        all_tasks = range(len(self._stream.tasks))
        part = self._control_part if between and not all_control else None
        test, control = self._encode(clip, self._test_subset(all_tasks), self._control_subset(part))
        predicted, of_control = self._predict(test, learned, all_tasks), _nearest(control)
        if not between:
            self.predicted[learned] = PredictedClasses(self._of_test_images(predicted), of_control)
        tasks, hits = self._accuracies(predicted, all_tasks), _hits(of_control, control)
        row = Row(tasks=tasks, drift=self._drift(clip, learned))
        if part is not None:
            row.control_part = ControlPart.of(hits)
            return row
        row.control, row.joint = _percent(hits), self._joint_accuracy(test, control, learned)
        if not learned and self._control_part is not None:
            row.control_part = ControlPart.of(hits[self._control_part])
        return row

    def tasks(self, clip: Clip, learned: int, numbers: Sequence[int]) -> list[float | None]:
        """The accuracy on some tasks, in percent; None where there are no images.

        Args:
            clip: The model.
            learned: How many tasks are learned; later ones are evaluated over all classes of the
                stream.
            numbers: The numbers of the tasks.
        """
        (test,) = self._encode(clip, self._test_subset(numbers))
        return self._accuracies(self._predict(test, learned, numbers), numbers)

    def complete(self, clip: Clip, row: Row, learned: int, restore: Callable[[], None]) -> None:
        """Measure what a row of an earlier run lacks: learned tasks whose test images changed.

        Args:
            clip: The model.
            row: The row, which is changed.
            learned: How many tasks were learned by then.
            restore: Brings the model to where it was then; only called if something is lacking.
        """
        tasks = self._stream.tasks[:learned]
        lacking = [t.number for t in tasks if len(t.test) and row.tasks[t.number] is None]
        if lacking and self._each_task:
            restore()
            for number, value in zip(lacking, self.tasks(clip, learned, lacking), strict=True):
                row.tasks[number] = value

    def control(self, clip: Clip) -> float | None:
        """The accuracy on the whole control set, in percent.

        Args:
            clip: The model.
        """
        (control,) = self._encode(clip, self._control_subset())
        return _percent(_hits(_nearest(control), control))

    def accuracy(self, clip: Clip, learned: int) -> float | None:
        """The accuracy over all classes learned so far, in percent.

        Args:
            clip: The model.
            learned: How many tasks are learned.
        """
        counts = [len(task.test) for task in self._stream.tasks[:learned]]
        pairs = zip(self.tasks(clip, learned, range(learned)), counts, strict=True)
        known = [(value, count) for value, count in pairs if value is not None]
        total = sum(count for _, count in known)
        return sum(value * count for value, count in known) / total if total else None

    def _test_subset(self, numbers: Sequence[int]) -> ImageSubset | None:
        indices = [self._stream.tasks[number].test for number in numbers]
        joined = np.concatenate([np.empty(0, np.int64), *indices])
        return ImageSubset(self._stream.test, joined) if len(joined) else None

    def _control_subset(self, part: Indices | None = None) -> ImageSubset | None:
        if not self._control:
            return None
        return ImageSubset(self._control, np.arange(len(self._control)) if part is None else part)

    def _encode(self, clip: Clip, *subsets: ImageSubset | None) -> list[Encoded | None]:
        """Features of the images, and of all classes of their set.

        Images are read while a GPU encodes the prompts, and nothing here waits for the GPU.
        """
        sets = [subset for subset in subsets if subset]
        features = encode_image_sets(clip, sets, self._progress)
        classifiers = [self._classifier(clip, subset.images) for subset in subsets if subset]
        pairs = zip(features, classifiers, strict=True)
        parts = [
            subset and Encoded(*next(pairs), prompt_names(subset.images), _labels(subset))
            for subset in subsets
        ]
        check_features(*((part.features, part.classifier.texts) for part in parts if part))
        return parts

    def _classifier(self, clip: Clip, images: Images) -> Classifier:
        """The classifier over the classes; their prompts are tokenized once per run."""
        if id(images) not in self._prompts:
            self._prompts[id(images)] = ClassFeatures(
                clip, images.classes, images.prompt_groups, learned=images is not self._control
            )
        prompts = self._prompts[id(images)]
        what = f"Encoding {count(len(prompts), 'prompt')} of {images.name}"
        return prompts(clip, lambda parts: self._progress(parts, what, len(prompts)))

    def _predict(self, test: Encoded | None, learned: int, numbers: Sequence[int]) -> list[Indices]:
        """The predicted class of each test image, for each of some tasks.

        For an image of a class that counts as one with the predicted class, its own.
        """
        tasks = [self._stream.tasks[number] for number in numbers]
        if test is None:
            return [np.empty(0, np.int64) for _ in tasks]
        similarity = test.classifier(test.features)
        ends = np.cumsum([len(task.test) for task in tasks])
        rows = np.split(np.arange(len(similarity)), ends[:-1])
        predicted = np.empty(len(similarity), np.int64)
        of_task = [self._choices.of_task(number, learned) for number in numbers]
        for each in dict.fromkeys(of_task):  # few: tasks mostly have the same choices
            among = [row for row, own in zip(rows, of_task, strict=True) if own == each]
            positions = np.concatenate(among)
            predicted[positions] = nearest(similarity[positions], self._labels(each))
        ids = self._choices.ids(self._stream.test.classes)
        predicted = merge_twins(predicted, test.labels, ids)
        return [predicted[row] for row in rows]

    def _labels(self, names: Sequence[str]) -> list[int]:
        label_of = {name: label for label, name in enumerate(self._stream.test.classes)}
        return [label_of[name] for name in names]

    def _accuracies(
        self, predicted: Sequence[Indices], numbers: Sequence[int]
    ) -> list[float | None]:
        """The accuracy on some tasks, in percent; None where there are no images."""
        labels = self._stream.test.labels
        tasks = [self._stream.tasks[number] for number in numbers]
        pairs = zip(predicted, tasks, strict=True)
        return [_percent(classes == labels[task.test]) for classes, task in pairs]

    def _of_test_images(self, predicted: Sequence[Indices]) -> Indices:
        """The predictions of all tasks, in the order of the test images; -1 where there is none."""
        classes = np.full(len(self._stream.test), -1)
        for task, of_task in zip(self._stream.tasks, predicted, strict=True):
            classes[task.test] = of_task
        return classes

    def _joint_accuracy(
        self, test: Encoded | None, control: Encoded | None, learned: int
    ) -> Joint | None:
        """Over the classes learned so far (all, before the first task) and the control classes."""
        if test is None or control is None:
            return None
        seen_so_far = self._labels(self._choices.seen(learned))
        tasks = self._stream.tasks[: learned or None]
        count = sum(len(task.test) for task in tasks)  # `test` is in the order of the tasks
        seen = test._replace(
            features=test.features[:count], labels=test.labels[:count], choices=seen_so_far
        )
        return joint_accuracy(seen, control)

    def _drift(self, clip: Clip, learned: int) -> Drift | None:
        """Measured after the last task only; in between it would cost more than it tells."""
        if self._words is None or learned < len(self._stream.tasks):
            return None
        prompts, before = self._words
        return drift_between(before, prompts.features(clip))


def _nearest(images: Encoded | None) -> Indices:
    """The predicted class of each image."""
    return np.empty(0, np.int64) if images is None else nearest_classes(images)


def _hits(predicted: Indices, images: Encoded | None) -> NDArray[np.bool_]:
    """Which images get the correct class."""
    labels = np.empty(0, np.int64) if images is None else images.labels
    hits: NDArray[np.bool_] = predicted == labels
    return hits


def _percent(hits: NDArray[np.bool_]) -> float | None:
    """Percent correct; None where there are no images."""
    return 100 * float(hits.mean()) if len(hits) else None


def _labels(subset: ImageSubset) -> Indices:
    labels: Indices = subset.images.labels[subset.indices]
    return labels
