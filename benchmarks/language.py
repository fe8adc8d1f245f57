"""Five domains in a row on a real small language model: what is learned, and what is lost.

    python benchmarks/language.py --device cuda --budget 550      # again, until nothing is left
    python benchmarks/language.py --smoke --out /tmp/smoke.jsonl  # a few steps of every method
    python benchmarks/language_report.py                          # table and figure of results

German, French, Rust, JavaScript and C are learned one after the other by a Llama of 17 million
weights that knows Python and English (`../shared/models`, `../shared/data/text`). Every method has
three learning rates on seed 0, and a fourth one beyond the best if that lies at an edge; the best
by `objective` is run with seeds 1 to 3, which are reported. A cell is one method, rate and seed:
each is appended to the results when it is done, and skipped when it is there. `--budget` stops
before a cell that would not end in time.

The loop is a plain one on blocks of tokens that lie on the device, so that the methods differ in
nothing but their update; `SelectiveUpdate` does the same inside a Trainer.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retouch.sparse import (
    SCORERS,
    Selection,
    SparseAdamW,
    linear_layers,
    locate,
    neuron_axis,
    select,
    trainable_only,
)
from retouch.torchvision_compat import patch_torchvision
from retouch.trainer.document_bits import BitsPerByte, bits_of, encode_texts, read_texts

DOMAINS = ("german", "french", "rust", "javascript", "c")
CONTROLS = ("control-english", "control-python")
SEARCH_SEED, SEEDS = 0, (1, 2, 3)
RATE = 0.10  # of each first MLP matrix
WISE_ALPHA = 0.5
LENGTH, BATCH, STEPS, REPLAYED, BUFFER, SCORED = 512, 32, 48, 16, 256, 4
FULL_RATES, SPARSE_RATES, LORA_RATES = (1e-4, 3e-4, 1e-3), (5e-4, 1.5e-3, 5e-3), (3e-4, 1e-3, 3e-3)
WIDE_RATES = (1e-4, 3e-4, 1e-3)
EDGE_FACTOR = 3.0


@dataclass(frozen=True)
class Method:
    """A row of the table."""

    name: str
    lrs: tuple[float, ...]
    score: str = ""
    """How weights are selected; empty: they are not."""
    unit: str = "weight"
    where: str = "first-mlp"
    rate: float = RATE
    """The share of each matrix that is selected."""
    rank: int = 0
    """Of LoRA."""
    replay: bool = False
    half_step: bool = False


def _variants(method: Method) -> list[Method]:
    """With and without half a step and replay."""
    return [
        replace(
            method,
            name=method.name + " + replay" * replay + " + half step" * half,
            replay=replay,
            half_step=half,
        )
        for replay in (False, True)
        for half in (False, True)
    ]


def methods() -> list[Method]:
    """All methods; those that matter most come first."""
    weight, neuron = (
        _variants(Method(f"SPU by {unit}", SPARSE_RATES, "gradient", unit))
        for unit in ("weight", "neuron")
    )
    full = _variants(Method("full", FULL_RATES))
    wide = Method("SPU, half of all MLPs", WIDE_RATES, "gradient", where="both-mlp", rate=0.5)
    half_of_all = _variants(wide)
    lora8, lora64 = (Method(f"LoRA r={rank}", LORA_RATES, rank=rank) for rank in (8, 64))
    return [
        *(full[0], weight[0], lora8, lora64, full[2], weight[3], neuron[3]),
        Method("random selection", SPARSE_RATES, "random"),
        Method("largest weights", SPARSE_RATES, "magnitude"),
        *(neuron[0], weight[1], weight[2], neuron[1], neuron[2]),
        replace(lora64, name="LoRA r=64 + replay", replay=True),
        full[3],
        _variants(Method("random selection", SPARSE_RATES, "random"))[3],
        *(half_of_all[0], half_of_all[3]),
    ]


WISE = Method("WiSE-FT", FULL_RATES)
FROZEN = Method("frozen", (0.0,))


class Bench:
    """The model, the blocks of every domain and the documents to measure, on the device."""

    def __init__(self, args: argparse.Namespace) -> None:
        patch_torchvision()
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.args = args
        self.device = torch.device(args.device)
        self.model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
        self.model.to(self.device).train()
        self.model.config.use_cache = False
        tokenizer = AutoTokenizer.from_pretrained(args.model)
        self.start = {name: p.detach().clone() for name, p in self.model.named_parameters()}
        self.blocks = {name: self._blocks(tokenizer, name) for name in DOMAINS}
        names = [*(f"{name}-test" for name in DOMAINS), *CONTROLS]
        self.tests = {name.removesuffix("-test"): self._test(tokenizer, name) for name in names}
        self.before = self.measure(list(self.tests))

    def _blocks(self, tokenizer: Any, name: str) -> Tensor:
        """The training documents as rows of tokens, with an end after each document."""
        texts = self._texts(f"{name}-train")
        rows = tokenizer(texts, verbose=False)["input_ids"]
        flat = [token for row in rows for token in (*row, tokenizer.eos_token_id)]
        count = len(flat) // self.args.length
        ids = torch.tensor(flat[: count * self.args.length])
        return ids.view(count, -1).to(self.device)

    def _texts(self, name: str) -> list[str]:
        texts = read_texts(name, self.args.data / f"{name}.jsonl")
        return [text[:500] for text in texts[:5]] if self.args.smoke else texts

    def _test(self, tokenizer: Any, name: str) -> Any:
        return encode_texts(
            self._texts(name),
            tokenizer,
            max_length=self.args.length,
            vocab_size=self.model.config.vocab_size,
            device=self.device,
        )

    def measure(self, names: list[str]) -> dict[str, BitsPerByte]:
        """Bits per byte in single precision."""
        return {name: bits_of(self.model, self.tests[name]) for name in names}

    def reset(self) -> None:
        """The weights before all training."""
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(self.start[name])

    def loss(self, ids: Tensor) -> Tensor:
        """The mean loss per token."""
        cuda = self.device.type == "cuda"
        cache = not self.args.graphs  # a recorded step has to cast the weights itself
        with torch.autocast(self.device.type, torch.bfloat16, enabled=cuda, cache_enabled=cache):
            loss: Tensor = self.model(input_ids=ids, labels=ids).loss
        return loss

    def backward(self, ids: Tensor) -> None:
        """The gradients of the mean loss."""
        self.loss(ids).backward()  # type: ignore[no-untyped-call]


class RecordedBackward:
    """Forward and backward pass as a CUDA graph, which is recorded at the first call.

    Each call writes the same gradient tensors anew: they must not be dropped in between. The first
    replay is compared with a pass that is not recorded.
    """

    def __init__(self, bench: Bench, parameters: list[Tensor]) -> None:
        self._bench = bench
        self._parameters = parameters
        self._graph: Any = None

    def __call__(self, ids: Tensor) -> None:
        if self._graph is None:
            self._record(ids)
        self._ids.copy_(ids)
        self._graph.replay()

    def _record(self, ids: Tensor) -> None:
        self._ids = ids.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._bench.backward(self._ids)
            expected = self._norm()
            self._drop()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._bench.backward(self._ids)
        self._graph.replay()
        recorded = self._norm()
        if abs(recorded - expected) > 0.02 * expected:
            raise RuntimeError(f"recorded gradients are wrong: {recorded} instead of {expected}")

    def _norm(self) -> float:
        return float(sum(p.grad.float().square().sum() for p in self._parameters)) ** 0.5

    def _drop(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None


class Replay:
    """Blocks of earlier domains, the same number of each."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._blocks: list[Tensor] = []

    def add(self, blocks: Tensor) -> None:
        share = max(1, BUFFER // (len(self._blocks) + 1))
        chosen = self._rng.permutation(len(blocks))[:share]
        self._blocks = [each[:share] for each in (*self._blocks, blocks[chosen.tolist()])]

    def sample(self, count: int) -> Tensor | None:
        if not self._blocks:
            return None
        stored = torch.cat(self._blocks)
        return stored[self._rng.integers(len(stored), size=count).tolist()]


def run_cell(bench: Bench, method: Method, lr: float, seed: int) -> list[dict[str, Any]]:
    """Learn all domains in a row; the row of this method, and WiSE-FT's if it comes with it."""
    started = time.perf_counter()
    bench.reset()
    torch.manual_seed(seed)
    rng = np.random.default_rng([seed, 38])
    replay = Replay(rng)
    after: dict[str, dict[str, float]] = {}
    for number, domain in enumerate(DOMAINS if method is not FROZEN else ()):
        learn(bench, method, lr, bench.blocks[domain], replay, rng, 100 * seed + number)
        replay.add(bench.blocks[domain])
        measured = bench.measure([domain, *CONTROLS])
        after[domain] = {name: round(bits.value, 5) for name, bits in measured.items()}
    rows = [_row(bench, method, lr, seed, after, started)]
    if method.name == "full":
        with torch.no_grad():
            for name, parameter in bench.model.named_parameters():
                parameter.lerp_(bench.start[name], 1 - WISE_ALPHA)
        rows.append(_row(bench, WISE, lr, seed, {}, started))
    return rows


def _row(
    bench: Bench, method: Method, lr: float, seed: int, after: dict[str, Any], started: float
) -> dict[str, Any]:
    measured = bench.measure(list(bench.tests))
    return {
        "method": method.name,
        "lr": lr,
        "seed": seed,
        "bpb": {name: round(bits.value, 5) for name, bits in measured.items()},
        "before": {name: round(bits.value, 5) for name, bits in bench.before.items()},
        "after_each": after,
        "bits": {name: np.round(bits.bits, 1).tolist() for name, bits in measured.items()},
        "bytes": {n: bits.num_bytes.astype(int).tolist() for n, bits in measured.items()}
        if method is FROZEN
        else None,
        "steps": bench.args.steps,
        "lora": _peft_version() if method.rank else None,
        "seconds": round(time.perf_counter() - started, 2),
    }


def learn(
    bench: Bench,
    method: Method,
    lr: float,
    blocks: Tensor,
    replay: Replay,
    rng: np.random.Generator,
    seed: int,
) -> None:
    """One domain: select or add an adapter, train, take half of it back, merge."""
    args, model = bench.args, bench.model
    rounds = range(-(-args.steps * args.batch // len(blocks)) + 1)
    order = np.concatenate([rng.permutation(len(blocks)) for _ in rounds])
    on_device = torch.as_tensor(order, device=blocks.device)
    old = {n: p.detach().clone() for n, p in model.named_parameters()} if method.half_step else {}
    with ExitStack() as stack:
        if method.rank:
            optimizer = stack.enter_context(lora_optimizer(model, method.rank, lr))
        else:
            scored = on_device[: SCORED * args.batch].split(args.batch)
            selection = _selection(bench, method, [blocks[each] for each in scored], seed)
            optimizer = stack.enter_context(_sparse_optimizer(bench, method, selection, lr))
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        backward = RecordedBackward(bench, parameters) if args.graphs else bench.backward
        for step in range(args.steps):
            ids = blocks[on_device[step * args.batch : (step + 1) * args.batch]]
            earlier = replay.sample(args.batch * REPLAYED // BATCH) if method.replay else None
            backward(ids if earlier is None else torch.cat([ids, earlier]))
            nn.utils.clip_grad_norm_(parameters, 1.0)
            for group in optimizer.param_groups:
                group["lr"] = lr * _schedule(step, args.steps)
            optimizer.step()
            if not args.graphs:
                optimizer.zero_grad()
        optimizer.zero_grad()
    with torch.no_grad():
        for name, parameter in model.named_parameters() if old else ():
            parameter.lerp_(old[name], 0.5)


def _schedule(step: int, steps: int) -> float:
    """Warm-up over a tenth of the steps, then a cosine."""
    warm_up = max(1, steps // 10)
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up)))


def _selection(bench: Bench, method: Method, batches: list[Tensor], seed: int) -> Selection:
    model = bench.model
    if not method.score:
        return Selection.whole(dict(model.named_parameters()))
    parameters = locate(model, method.where)

    def losses() -> Iterator[Tensor]:
        return (bench.loss(ids) / len(batches) for ids in batches)

    with trainable_only(model, parameters):
        scores = SCORERS[method.score](parameters, losses, seed)
    axes = {name: neuron_axis(model, name) for name in parameters}
    return select(scores, method.rate, method.unit, axes=axes)  # type: ignore[arg-type]


@contextmanager
def _sparse_optimizer(
    bench: Bench, method: Method, selection: Selection, lr: float
) -> Iterator[SparseAdamW]:
    model = bench.model
    layers = linear_layers(model, selection) if method.unit == "neuron" else None
    with trainable_only(model, selection):
        optimizer = SparseAdamW(
            dict(model.named_parameters()),
            selection,
            lr,
            weight_decay=0.0,
            layers=layers,
            fused=bench.device.type == "cuda",
        )
        try:
            yield optimizer
        finally:
            optimizer.close()


# LoRA


def _peft_version() -> str:
    """Which LoRA is measured."""
    try:
        import peft
    except ImportError:
        return "a plain layer (peft is not installed)"
    return f"peft {peft.__version__}"


LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@contextmanager
def lora_optimizer(model: nn.Module, rank: int, lr: float) -> Iterator[torch.optim.Optimizer]:
    """A new adapter on every linear layer of the blocks; it is merged when the domain ends."""
    model.requires_grad_(False)
    factors, merge = add_lora(model, rank)
    fused = factors[0].device.type == "cuda"
    try:
        yield torch.optim.AdamW(factors, lr, weight_decay=0.0, fused=fused)
    finally:
        merge()
        model.requires_grad_(True)


def add_lora(model: nn.Module, rank: int) -> tuple[list[nn.Parameter], Callable[[], None]]:
    """Its factors, and a function that merges them; by peft where it is installed.

    Args:
        model: The model, which is changed in place.
        rank: The rank; alpha is twice that.
    """
    try:
        import peft
    except ImportError:
        return _plain_lora(model, rank)
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=list(LINEAR))
    wrapped = peft.get_peft_model(model, config)
    factors = [p for p in wrapped.parameters() if p.requires_grad]

    def merge() -> None:
        wrapped.merge_and_unload()
        vars(model).pop("peft_config", None)

    return factors, merge


def _plain_lora(model: nn.Module, rank: int) -> tuple[list[nn.Parameter], Callable[[], None]]:
    """What peft's LoRA computes for a linear layer, without dropout."""
    wrapped: list[tuple[nn.Module, str, LoraLinear]] = []
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if name in LINEAR and type(child) is nn.Linear:
                layer = LoraLinear(child, rank)
                setattr(module, name, layer)
                wrapped.append((module, name, layer))

    def merge() -> None:
        for module, name, layer in wrapped:
            setattr(module, name, layer.merged())

    return [p for _, _, layer in wrapped for p in (layer.a, layer.b)], merge


class LoraLinear(nn.Module):
    """A frozen linear layer plus a product of two factors, W x + 2 · B A x."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        like = {"device": layer.weight.device, "dtype": torch.float32}
        self.a = nn.Parameter(torch.empty(rank, layer.in_features, **like))  # type: ignore[arg-type]
        self.b = nn.Parameter(torch.zeros(layer.out_features, rank, **like))  # type: ignore[arg-type]
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        update = nn.functional.linear(nn.functional.linear(x.to(self.a.dtype), self.a), self.b)
        return out + 2 * update.to(out.dtype)

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        self.layer.weight += (2 * self.b @ self.a).to(self.layer.weight.dtype)
        return self.layer


# Cells


def objective(row: dict[str, Any]) -> float:
    """What is minimized on seed 0: bits per byte on the domains, and those lost on the controls."""
    learned = mean(row["bpb"][name] for name in DOMAINS)
    return learned + mean(row["bpb"][name] - row["before"][name] for name in CONTROLS)


def read_rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def searched(rows: list[dict[str, Any]], method: Method) -> dict[float, float]:
    """The objective at each learning rate that was tried on seed 0."""
    return {
        row["lr"]: objective(row)
        for row in rows
        if row["method"] == method.name and row["seed"] == SEARCH_SEED
    }


def best_rate(rows: list[dict[str, Any]], method: Method) -> float:
    """The learning rate to report."""
    found = searched(rows, method)
    return min(found, key=lambda lr: found[lr] if math.isfinite(found[lr]) else math.inf)


def search_rates(rows: list[dict[str, Any]], method: Method) -> list[float]:
    """The learning rates to try, and one beyond the best of them if that lies at an edge."""
    found = {lr: value for lr, value in searched(rows, method).items() if lr in method.lrs}
    rates = list(method.lrs)
    if len(found) < len(rates) or len(rates) == 1:
        return rates
    best = best_rate([row for row in rows if row["lr"] in rates], method)
    if best == rates[-1]:
        rates.append(best * EDGE_FACTOR)
    elif best == rates[0]:
        rates.append(best / EDGE_FACTOR)
    return rates


def missing(rows: list[dict[str, Any]]) -> Iterator[tuple[Method, float, int]]:
    """The next cell to run, one method after the other."""
    done = {(row["method"], row["lr"], row["seed"]) for row in rows}
    for method in (FROZEN, *methods(), WISE):
        runs = Method("full", method.lrs) if method is WISE else method
        cells = [(lr, SEARCH_SEED) for lr in search_rates(rows, method)]
        if method is not FROZEN and all((method.name, *cell) in done for cell in cells):
            cells += [(best_rate(rows, method), seed) for seed in SEEDS]
        for lr, seed in cells:
            if (method.name, lr, seed) not in done:
                yield runs, lr, seed
                return


def main() -> None:
    args = arguments()
    started = time.perf_counter()
    torch.set_float32_matmul_precision("high")
    bench = Bench(args)
    _say(f"ready after {time.perf_counter() - started:.1f} s; LoRA: {_peft_version()}")
    slowest = 0.0
    cells = 0
    while True:
        rows = read_rows(args.out)
        cell = next(missing(rows), None)
        elapsed = time.perf_counter() - started
        if cell is None or cells == args.cells:
            _say("nothing is left to run" if cell is None else f"{cells} cells are done")
            return
        if args.budget and elapsed + 1.2 * slowest > args.budget:
            _say(f"stopped after {elapsed:.0f} s, before {cell[0].name}; run it again to go on")
            return
        new = run_cell(bench, *cell)
        done = {(row["method"], row["lr"], row["seed"]) for row in rows}
        with args.out.open("a") as file:
            for row in new:
                if (row["method"], row["lr"], row["seed"]) not in done:
                    file.write(json.dumps(row) + "\n")
        cells += 1
        seconds = time.perf_counter() - started - elapsed
        slowest = max(slowest, seconds)
        row = new[0]
        learned = mean(row["bpb"][name] for name in DOMAINS)
        lost = mean(row["bpb"][name] - row["before"][name] for name in CONTROLS)
        _say(
            f"{row['method']}, lr {row['lr']:g}, seed {row['seed']}: domains {learned:.4f}, lost "
            f"{lost:+.4f} ({seconds:.1f} s)"
        )


def arguments() -> argparse.Namespace:
    shared = Path("shared") if Path("shared").is_dir() else Path("../shared")
    options = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    options.add_argument("--model", type=Path, default=shared / "models" / "python-english-17m")
    options.add_argument("--data", type=Path, default=shared / "data" / "text")
    options.add_argument("--out", type=Path, default=Path("results/language.jsonl"))
    options.add_argument("--device", default="cpu")
    options.add_argument("--budget", type=float, default=0, help="seconds; 0: no limit")
    options.add_argument("--cells", type=int, default=-1, help="at most this many cells")
    options.add_argument("--steps", type=int, default=STEPS, help="per domain")
    options.add_argument("--batch", type=int, default=BATCH)
    options.add_argument("--length", type=int, default=LENGTH)
    options.add_argument("--graphs", action="store_true", help="record steps as CUDA graphs")
    options.add_argument("--smoke", action="store_true", help="a few steps on few documents")
    args = options.parse_args()
    if args.smoke:
        args.steps, args.batch, args.length = 2, 2, 64
    return args


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
