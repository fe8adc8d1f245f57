"""A first `learn` on a CPU: ViT-B/16 with random weights, 8 classes of 25 photos.

    python benchmarks/first_learn_cpu.py --against ../before      # two threads, as long as it takes
    python benchmarks/first_learn_cpu.py --threads 8 --repeat 3
    python benchmarks/first_learn_cpu.py --epochs 2 --photos 10   # shorter
    python benchmarks/first_learn_cpu.py --without rows --without blocks
    python benchmarks/first_learn_cpu.py --method text-first --other-method spu+
    python benchmarks/first_learn_cpu.py --method text-first:after_task.max_error=0 …   # eyes move
    python benchmarks/first_learn_cpu.py --shared ../shared --classes 6 --method text-first …
    python benchmarks/first_learn_cpu.py --variable MIMALLOC_PURGE_DELAY=60000   # with and without

The whole of it, with folders, reports and evaluations, each in a process of its own, with the model
loaded as `retouch learn` loads it: by this checkout, and by another one, or by this one without
something that makes it faster (`blocks` by default). Seconds of the wall clock and of CPU time
(which other processes disturb less, the more so with OMP_WAIT_POLICY=PASSIVE), and how far the
losses of the steps differ. With `--repeat` all take turns, and the fastest run of each counts.
With `--shared` a real model learns pet breeds from real photos, with 200 control images: how many
steps are taken until nothing is left to learn depends on both.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONTROL_IMAGES = 200


def write_photos(folder: Path, classes: int, photos: int) -> None:
    """JPEGs of 640 × 480, one folder per class: a colour with noise in large squares."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class {label}").mkdir(parents=True)
        colour = rng.integers(40, 216, 3)
        for number in range(photos):
            squares = np.clip(rng.normal(colour, 40, (12, 16, 3)), 0, 255).astype(np.uint8)
            image = Image.fromarray(squares).resize((640, 480), Image.Resampling.BICUBIC)
            image.save(folder / f"class {label}" / f"{number}.jpg", quality=90)


def write_pets(folder: Path, shared: Path, classes: int, photos: int) -> None:
    """The first photos of the first breeds, one folder per breed."""
    from PIL import Image

    import retouch

    breeds, _ = retouch.read_data(shared / "data" / "domains" / "pets").train_and_test()
    small = retouch.Preprocess(size=(128, 128), shortest=128)
    for label, name in enumerate(breeds.classes[:classes]):
        (folder / name).mkdir(parents=True)
        for number, pixels in enumerate(breeds.read(breeds.of_classes([label])[:photos], small)):
            Image.fromarray(pixels).save(folder / name / f"{number}.png")


def cpu_seconds() -> tuple[float, float]:
    """In all, and of that in the system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime, usage.ru_stime


def learn(args: argparse.Namespace, photos: Path, out: Path) -> dict[str, Any]:
    """Wall-clock seconds, CPU seconds, and the loss of every step."""
    import numpy as np
    import torch

    import retouch
    from retouch.data import Stream
    from retouch.methods import recipe
    from retouch.train.defaults import choose_defaults

    torch.set_num_threads(args.threads)
    leave_out(args.leave_out)
    control = None
    if args.shared:
        import real_tower

        clip = real_tower.load(args.shared / "models" / real_tower.NAME)
        images = retouch.read_control("imagenet", args.shared / "data")
        some = np.linspace(0, len(images) - 1, CONTROL_IMAGES).astype(int)
        images = replace(images.subset(some), templates=real_tower.TEMPLATES)
        control = retouch.cached(images, clip.preprocess)
    else:
        model = "builtin" if args.shape == "builtin" else args.model_in
        clip = retouch.load(model, light=not args.transformers)
    began, (busy, system) = time.monotonic(), cpu_seconds()
    decoded = retouch.read_data(photos).map(partial(retouch.cached, preprocess=clip.preprocess))
    train, test = decoded.train_and_test()
    stream = Stream.split(train, test, tasks=args.tasks)
    sizes = [len(task.train) for task in stream.tasks]
    requested = {"epochs": args.epochs, "batch": args.batch}
    name, _, change = args.method.partition(":")
    setting, _, value = change.partition("=")
    method = recipe(name, {setting: float(value)} if change else {})
    chosen = choose_defaults(clip, method, requested, sizes, args.classes)
    settings = chosen.settings
    if args.leave_out == "blocks":
        settings = settings.model_copy(update={"reuse_frozen": False})
    results = retouch.teach(
        clip, stream, chosen.method, settings=settings, control=control, out=out
    )
    busy_now, system_now = cpu_seconds()
    metrics = results.metrics()
    losses = out / "metrics.jsonl"  # not there if no step was needed
    lines = losses.read_text().splitlines() if losses.exists() else []
    return {
        "wall": round(time.monotonic() - began, 1),
        "busy": round(busy_now - busy, 1),
        "system": round(system_now - system, 1),
        "accuracy": round(metrics["accuracy"], 1),
        "lost": round(metrics.get("control_drop", 0.0), 1),
        "losses": [json.loads(line)["loss"] for line in lines],
    }


def leave_out(what: str | None) -> None:
    """Switch off one of the things that make a run faster; `blocks` is a setting."""
    from retouch.methods.updates import selective

    if what == "rows":
        selective.linear_layers = lambda model, names: {}


def save_model(shape: str, folder: Path) -> None:
    """A model with random weights and CLIP's own vocabulary, as transformers writes it."""
    import torch
    from shapes import model_of

    if shape == "builtin":
        return
    model = model_of(shape, torch.device("cpu"))
    if not shape.startswith("siglip"):
        model.tokenizer = clip_tokenizer()
        model.model.config.text_config.eos_token_id = model.tokenizer.eos_token_id  # it pools there
    model.save(folder)


def clip_tokenizer() -> Any:
    """That of OpenAI's CLIP, from the vocabulary that open_clip brings.

    The built-in model's knows few words, and cuts others into many tokens.
    """
    from transformers import CLIPTokenizer

    from retouch.torchvision_compat import patch_torchvision

    patch_torchvision()
    from open_clip import SimpleTokenizer

    bpe = SimpleTokenizer()
    special = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocab = {special.get(token, token): number for token, number in bpe.encoder.items()}
    merges = [" ".join(pair) for pair in bpe.bpe_ranks]
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "vocab.json").write_text(json.dumps(vocab))
        (Path(folder) / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
        return CLIPTokenizer.from_pretrained(folder, model_max_length=77)


def run(
    checkout: Path, folder: Path, name: str, arguments: list[str], **variables: str
) -> dict[str, Any]:
    """One `learn` in a new process, with the code of a checkout and a cache of its own.

    `arguments` are those of this program; `variables` are set in the process's environment.
    """
    path = filter(None, [str(checkout / "src"), os.environ.get("PYTHONPATH")])
    variables |= {"PYTHONPATH": os.pathsep.join(path)}
    variables |= {"RETOUCH_CACHE": str(folder / f"{name}-cache")}
    command = [sys.executable, __file__, *arguments]
    command += ["--photos-in", str(folder / "photos"), "--model-in", str(folder / "model")]
    command += ["--out", str(folder / name)]
    environment = os.environ | variables
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    sys.stderr.write(f"{name}: {measured['wall']} s, {measured['busy']} s of CPU time\n")
    return measured


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--against", type=Path, help="another checkout")
    options.add_argument("--variable", action="append", default=[], metavar="NAME=VALUE")
    options.add_argument("--shared", type=Path, help="a real model and photos, ../shared")
    options.add_argument("--shape", default="b16", help="see shapes.py")
    options.add_argument("--method", default="spu+", help="NAME, or NAME:SETTING=VALUE")
    options.add_argument("--other-method", help="to compare with")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--classes", type=int, default=8)
    options.add_argument("--photos", type=int, default=25, help="per class")
    options.add_argument("--tasks", type=int, default=1)
    options.add_argument("--epochs", type=int, help="default: as `learn` chooses")
    options.add_argument("--batch", type=int, help="default: as `learn` chooses")
    options.add_argument("--repeat", type=int, default=1)
    options.add_argument("--transformers", action="store_true", help="load its model")
    options.add_argument("--without", action="append", choices=["blocks", "rows"])
    options.add_argument("--leave-out", help=argparse.SUPPRESS)
    options.add_argument("--photos-in", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--model-in", type=Path, help=argparse.SUPPRESS)
    options.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.out:
        sys.stdout.write(json.dumps(learn(args, args.photos_in, args.out)) + "\n")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.shared:
            write_pets(folder / "photos", args.shared, args.classes, args.photos)
        else:
            write_photos(folder / "photos", args.classes, args.photos)
            save_model(args.shape, folder / "model")
        measured = [measure(args, folder / str(number)) for number in range(args.repeat)]
    best = {
        name: min((runs[name] for runs in measured), key=lambda run: run["busy"])
        for name in measured[0]
    }
    sys.stdout.write(json.dumps(compare(best, not args.other_method), indent=1) + "\n")


def measure(args: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """One run of each, by name."""
    folder.mkdir()
    for name in ("photos", "model"):
        (folder / name).symlink_to(folder.parent / name)
    variables = dict(variable.split("=", 1) for variable in args.variable)
    runs = {"now": run(ROOT, folder, "now", sys.argv[1:], **variables)}
    if args.against:
        runs["before"] = run(args.against.resolve(), folder, "before", sys.argv[1:])
    elif args.other_method:
        other = [*sys.argv[1:], "--method", args.other_method]
        runs[args.other_method] = run(ROOT, folder, args.other_method, other)
    elif variables:
        runs["without it"] = run(ROOT, folder, "without it", sys.argv[1:])
    for what in args.without or ([] if len(runs) > 1 else ["blocks"]):
        without = [*sys.argv[1:], "--leave-out", what]
        runs[f"without {what}"] = run(ROOT, folder, f"without {what}", without)
    return runs


def compare(runs: dict[str, dict[str, Any]], same_method: bool) -> dict[str, Any]:
    """Each run, and what `now` takes of its time; losses compare only within one method."""
    now = runs["now"]
    for measured in runs.values():
        measured["steps"] = len(measured["losses"])
        measured["ratio"] = {key: round(now[key] / measured[key], 3) for key in ("wall", "busy")}
        if same_method:
            pairs = zip(now["losses"], measured["losses"], strict=True)
            differences = (abs(a - b) / abs(b) for a, b in pairs)
            measured["losses differ by"] = max(differences, default=0)
    return {name: {k: v for k, v in r.items() if k != "losses"} for name, r in runs.items()}


if __name__ == "__main__":
    main()
