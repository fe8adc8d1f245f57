"""Export a language model: as a plain model for transformers, or what was learned for peft."""

from pathlib import Path

import torch

from retouch.errors import UserError
from retouch.export.card import escape_markdown
from retouch.export.export_model import display_name, hub_id
from retouch.export.formats import Format
from retouch.export.write import Exported, exported, silence_libraries
from retouch.files.output_paths import refuse_existing
from retouch.files.write import atomic_folder
from retouch.sparse import Delta, fingerprint
from retouch.sparse.delta.write_adapter import changed_weights, import_peft, write_adapters
from retouch.text.plural import count
from retouch.trainer.causal_model import CausalModel, load_causal
from retouch.trainer.delta_chain import FOLDER, chain_in

FORMATS: tuple[Format, ...] = ("hf", "peft")
"""What a language model can be exported to."""
_INSTEAD = "Export the whole model instead (hf), or select from linear layers only"


def export_causal(name: str | Path, to: Format, folder: str | Path) -> Exported:
    """Write a language model for another library into a new folder, with a README.md.

    What was written is loaded again and compared before the folder appears.

    Args:
        name: The model's folder. For peft it has `deltas/`, as a training with a `SelectiveUpdate`
            writes them.
        to: `hf` for transformers, or `peft` for an adapter.
        folder: The folder to write; it must not exist yet.
    """
    if to not in FORMATS:
        raise UserError(
            f"a language model cannot be exported to {to}; choose one of {', '.join(FORMATS)}"
        )
    folder = Path(folder)
    refuse_existing(folder)
    with silence_libraries():
        if to == "peft":
            import_peft()
        source = Path(name)
        steps = [Delta.load(step.name) for step in chain_in(source / FOLDER)]
        model = load_causal(source, steps[-1].after if steps else None)
        if steps and fingerprint(model.model) != steps[-1].after:
            raise UserError(
                f"the deltas in {source / FOLDER} lead to the weights {steps[-1].after[:12]}, and "
                f"those of {source} are {fingerprint(model.model)[:12]}; save the trained model "
                "there first: trainer.save_model()"
            )
        with atomic_folder(folder) as part:
            if to == "hf":
                _write_model(model, part)
            else:
                _write_adapter(model, steps, part)
            (part / "README.md").write_text(_card(model, steps, to), "utf-8")
    return exported(folder, to, 0.0, 0.0)


def _write_model(model: CausalModel, folder: Path) -> None:
    model.save(folder)
    again = load_causal(folder)
    if fingerprint(again.model) != fingerprint(model.model):
        raise UserError(
            f"{model.name} cannot be exported: transformers loads other weights than were saved; "
            "please report this"
        )


def _write_adapter(model: CausalModel, steps: list[Delta], folder: Path) -> None:
    if not steps:
        raise UserError(
            f"{model.name} has no {FOLDER}/, so what it learned is not known; give the folder of a "
            "training with a SelectiveUpdate"
        )
    names = changed_weights(model.model, steps, "this training", _INSTEAD)
    for step in reversed(steps):
        step.undo(model.model)
    base = str(steps[0].metadata.get("model", "")) or None
    write_adapters(model.model, steps, names, folder, hub_id(base) if base else None)
    learned = fingerprint(model.model)
    for step in reversed(steps):
        step.undo(model.model)
    peft = import_peft()
    adapted = peft.PeftModel.from_pretrained(model.model, folder, torch_device="cpu")
    with torch.no_grad():
        merged = fingerprint(adapted.merge_and_unload())
    if merged != learned:
        raise UserError(
            f"{model.name} cannot be exported to peft: merged, the adapter gives other weights "
            "than were learned. peft adds in float32; train and save the model in float32, or "
            "export the whole model (hf)"
        )


def _card(model: CausalModel, steps: list[Delta], to: Format) -> str:
    """What was learned, how to load it and how to undo it."""
    name = escape_markdown(display_name(model.name))
    base = str(steps[0].metadata.get("model", "")) if steps else ""
    base = escape_markdown(display_name(base)) if base else "the model it was trained from"
    lines = ["---", f"library_name: {'transformers' if to == 'hf' else 'peft'}", "---", f"# {name}"]
    if steps:
        moved = sum(int((c.xor != 0).sum()) for step in steps for c in step.changes.values())
        lines.append(
            f"{base} after {count(len(steps), 'training')} with "
            f"retouch, which moved {count(moved, 'weight')} and left all others as they were."
        )
    if to == "hf":
        lines.append(_CODE_HF)
    else:
        lines.append(_CODE_PEFT.format(base=base))
    return "\n\n".join([lines[0] + "\n" + lines[1] + "\n" + lines[2], *lines[3:]]) + "\n"


_CODE_HF = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(FOLDER)
tokenizer = AutoTokenizer.from_pretrained(FOLDER)
```"""
_CODE_PEFT = """```python
import peft
from transformers import AutoModelForCausalLM

base = AutoModelForCausalLM.from_pretrained(BASE, dtype="float32")  # {base}
model = peft.PeftModel.from_pretrained(base, FOLDER)
```

`merge_and_unload()` gives the weights that were learned, bit for bit; `disable_adapter()` gives
those before. It fits the weights of the base in float32."""
