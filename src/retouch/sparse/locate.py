"""Find the weights that a method may move, by the names that transformer libraries give them.

A block's parameter is called `<anything>.<number of the block>.<path inside the block>`; the path
tells a first MLP layer from an attention projection. The table below is all that `retouch` knows
about architectures.
"""

import re
from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import cache

from torch import Tensor, nn

from retouch.arguments import check_arguments
from retouch.errors import UserError

# Inside a block, by kind: HF CLIP and timm's ViT (fc1), open_clip and GPT-2 (c_fc), BERT and ViT of
# transformers (intermediate.dense), Llama and AIMv2 (gate_proj, up_proj), EVA (fc1_g, fc1_x),
# DistilBERT (lin1), Phi-3 (gate_up_proj), GPT-NeoX and Falcon (dense_h_to_4h), GPT-J (fc_in), OPT
# (fc1, without an mlp).
LAYER_PATTERNS = {
    "first-mlp": (
        r"mlp\.(fc1|c_fc|gate_proj|up_proj|fc1_g|fc1_x)\.weight",
        r"mlp\.(gate_up_proj|dense_h_to_4h|fc_in)\.weight",
        r"fc1\.weight",
        r"intermediate\.dense\.weight",
        r"ffn\.(lin1|gate_proj|up_proj)\.weight",
    ),
    "second-mlp": (
        r"mlp\.(fc2|c_proj|down_proj|dense_4h_to_h|fc_out)\.weight",
        r"fc2\.weight",
        r"output\.dense\.weight",
        r"ffn\.(lin2|down_proj)\.weight",
    ),
    "attention": (
        r"self_attn\.(q|k|v|o|out)_proj\.weight",
        r"attn\.(qkv|q|k|v|q_proj|k_proj|v_proj|proj|out_proj|c_attn|c_proj)\.weight",
        r"attn\.in_proj_weight",
        r"self_attn\.qkv_proj\.weight",
        r"(self_)?attention\.(query_key_value|dense)\.weight",
        r"attention\.(self|attention)\.(query|key|value)\.weight",
        r"attention\.(output\.dense|(q|k|v|o|out)_(proj|lin))\.weight",
    ),
}
LAYER_PATTERNS["both-mlp"] = LAYER_PATTERNS["first-mlp"] + LAYER_PATTERNS["second-mlp"]
KINDS = (*LAYER_PATTERNS, "everything")
"""The kinds of parameters that `locate` knows by name."""


@check_arguments()
def locate(model: nn.Module, where: str | Sequence[str] = "first-mlp") -> dict[str, nn.Parameter]:
    """The parameters of one kind, or those that match a pattern, by name.

    Args:
        model: Any torch module.
        where: One of `KINDS`, such as `first-mlp`; or patterns that are matched against the names
            of parameters and modules: `"*.mlp.fc1"`, `["blocks.3.*", "head.weight"]`.
    """
    parameters = dict(model.named_parameters())
    if where == "everything":
        located = parameters
    elif isinstance(where, str) and where in LAYER_PATTERNS:
        located = {name: p for name, p in parameters.items() if _match(where, name, p)}
    else:
        located = _matching(parameters, [where] if isinstance(where, str) else where)
    if not located:
        raise UserError(_no_match_message(model, where))
    return located


@check_arguments()
def block_names(model: nn.Module) -> list[str]:
    """The names of the transformer blocks, in order: modules that contain a first MLP layer.

    Args:
        model: Any torch module.
    """
    matches = (_match("first-mlp", name, p) for name, p in model.named_parameters())
    return list(dict.fromkeys(match["block"] for match in matches if match))


@check_arguments()
def neuron_axis(model: nn.Module, name: str) -> int:
    """A weight's axis of output neurons: 0 as in `nn.Linear`, 1 in GPT-2's Conv1D.

    Args:
        model: Any torch module.
        name: The name of the weight.
    """
    return 1 if type(module_of(model, name)).__name__ == "Conv1D" else 0


def module_of(model: nn.Module, name: str) -> nn.Module:
    """The module that has a parameter or buffer.

    Args:
        model: Any torch module.
        name: The name of the parameter or buffer.
    """
    module_name, _, attribute = name.rpartition(".")
    try:
        module = model.get_submodule(module_name)
    except AttributeError:
        module = None
    if module is None or not isinstance(getattr(module, attribute, None), Tensor):
        raise UserError(f"{type(model).__name__} has no parameter {name!r}; look for it by locate")
    return module


def _match(kind: str, name: str, parameter: nn.Parameter) -> re.Match[str] | None:
    """The match of a block's weight matrix with this kind. Convolutions may be called `fc1` too."""
    return _block_pattern(kind).fullmatch(name) if parameter.ndim == 2 else None


@cache
def _block_pattern(kind: str) -> re.Pattern[str]:
    return re.compile(rf"(?P<block>(?:.+\.)?\d+)\.(?:{'|'.join(LAYER_PATTERNS[kind])})")


def _matching(
    parameters: dict[str, nn.Parameter], patterns: Sequence[str]
) -> dict[str, nn.Parameter]:
    def matches(name: str) -> bool:
        module = name.rpartition(".")[0]
        return any(fnmatchcase(name, p) or fnmatchcase(module, p) for p in patterns)

    return {name: p for name, p in parameters.items() if matches(name)}


def _no_match_message(model: nn.Module, where: str | Sequence[str]) -> str:
    """Lists the model's weight matrices, and how to name one."""
    linear = [
        (re.sub(r"\b\d+\b", "*", name), tuple(module.weight.shape))
        for name, module in model.named_modules()
        if isinstance(getattr(module, "weight", None), nn.Parameter) and module.weight.ndim == 2
    ]
    counts = Counter(linear)
    rows = [
        f"  {name}  {shape[0]}×{shape[1]}  ({n} of them)" for (name, shape), n in counts.items()
    ]
    example = max(linear, key=lambda row: row[1][0] * row[1][1])[0] if linear else "blocks.*.fc1"
    return (
        f"{type(model).__name__} has no weights for where={where!r}. Known kinds are "
        f"{', '.join(KINDS)}; any other architecture needs its layers named, for instance "
        f"where={example!r}.\nWeight matrices in this model:\n" + "\n".join(rows or ["  none"])
    )
