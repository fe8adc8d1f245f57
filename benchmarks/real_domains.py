"""A stream of ten real data sets on a real pre-trained tower: Transfer, Average, Last and control.

    python benchmarks/real_domains.py --device cuda --compile --seeds 1,2,3 --out runs/domains

The suite is `real_domains.yaml`; model and data are those of `real_tower.py`. All cells run in one
process on one model, whose weights are restored in between, so that the towers are compiled once,
and no weights are written unless `--keep-deltas` asks for them (then `retouch overlap` shows which
data sets chose the same neurons). Every data set is evaluated after every task, as Transfer needs
it: 300 test images each, and one image per class of the control set. The same command goes on where
it was stopped.
"""

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

from real_tower import NAME, ControlData, finished_cells, open_shared

from retouch.bench import Bench, load_suite
from retouch.bench.cells import Options
from retouch.bench.tables.table import tabulate
from retouch.bench.tables.write import write_table
from retouch.data import Images, Splits, read_data

SUITE = Path(__file__).with_name("real_domains.yaml")


@dataclass
class DomainData(ControlData):
    """The shards of `../shared/data`, by the names of their folders."""

    control_classes: int = 1000

    def _open(self, dataset: str) -> Splits:
        assert self.data_root is not None
        folder = self.data_root / dataset
        return read_data(folder) if folder.is_dir() else super()._open(dataset)

    def control(self, name: str | None) -> Images | None:
        images = super().control(name)
        if images is None or self.control_classes >= len(images.classes):
            return images
        kept = images.subset(images.of_classes(range(self.control_classes)))
        return replace(kept, classes=images.classes[: self.control_classes])


def main() -> None:
    args = arguments()
    classes = {"control_classes": args.control_classes}
    clip, data = open_shared(args, DomainData, control_images=1, **classes)
    suite = load_suite(str(args.suite)).only(
        [method for method in args.methods.split(",") if method]
    )
    assert suite.stream is not None
    steps = {"steps": args.steps} if args.steps else {}
    stream = suite.stream.model_copy(update={"test_images": args.test_images})
    changes = {"settings": {**suite.settings, **steps}, "stream": stream}
    suite = suite.model_copy(update=changes)
    options = Options(
        datasets=tuple(name for name in args.datasets.split(",") if name),
        seeds=tuple(int(seed) for seed in args.seeds.split(",")),
        batch=args.batch,
        precision=None if args.fp32 else "bf16",
        compile=args.compile,
    )
    bench = Bench(
        suite,
        data,
        NAME,
        args.out,
        options,
        keep_deltas=args.keep_deltas,
        checkpoints=args.keep_deltas,
    )
    with clip.fast("inductor" if args.compile else None):
        done = finished_cells(bench)
    write_table(args.out, tabulate(suite, done))


def arguments() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--suite", type=Path, default=SUITE, help="another choice of methods")
    options.add_argument("--shared", type=Path, default=Path("../shared"))
    options.add_argument("--datasets", default="", help="other data sets, in their order")
    options.add_argument("--methods", default="")
    options.add_argument("--steps", type=int, help="steps per task, instead of the suite's")
    options.add_argument("--batch", type=int)
    options.add_argument("--seeds", default="1,2,3")
    options.add_argument("--device", default="cpu")
    options.add_argument("--compile", action="store_true")
    options.add_argument("--fp32", action="store_true")
    options.add_argument("--test-images", type=int, default=300, help="of each data set")
    options.add_argument("--control-classes", type=int, default=1000, help="for a quick look")
    options.add_argument("--keep-deltas", action="store_true", help="for `retouch overlap`")
    options.add_argument("--out", type=Path, default=Path("runs/domains"))
    return options.parse_args()


if __name__ == "__main__":
    main()
