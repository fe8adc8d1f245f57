"""How far the weights of each block moved."""

from pathlib import Path

import pytest
from fake_results import fake_results
from report_pages import Page, page_of
from run_folders import write_run
from tiny import tiny_clip

from retouch.report import charts as plots
from retouch.report import read_run_summary, write_report
from retouch.report.charts.change_by_layer import block_changes, largest_change_sentences
from retouch.sparse import ChangeStats, Delta


@pytest.mark.slow
def test_block_changes_are_those_of_the_weights(tmp_path: Path) -> None:
    """One task of three, measured on the model itself."""
    folder = write_run(tmp_path / "run", fake_results())
    page = Page(write_report(folder, [folder]))
    model = tiny_clip().model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    delta = folder / "deltas" / "task-01.safetensors"
    Delta.load(delta).apply(model)
    first = read_run_summary(folder)
    towers = block_changes(list(Delta.load(delta).change_stats), 1)
    assert list(towers) == ["image", "text"]
    for tower, prefix in (("image", "vision_model"), ("text", "text_model")):
        assert [block.name for block in towers[tower]] == ["1", "2"]
        for block in towers[tower]:
            name = f"{prefix}.encoder.layers.{int(block.name) - 1}.mlp.fc1.weight"
            old, new = before[name], model.state_dict()[name]
            assert block.relative_change == pytest.approx(
                100 * ((new - old).norm() / old.norm()).item(), 1e-3
            )
            assert block.moved_percent == pytest.approx(100 * (new != old).double().mean().item())
    average = block_changes(first.change_stats, 3)["image"][1]
    assert average.relative_change == pytest.approx(towers["image"][1].relative_change, rel=0.05)
    assert average.moved_percent == pytest.approx(towers["image"][1].moved_percent)
    assert "In the image tower, block 2 moved farthest" in page.text
    assert (folder / "plots" / "where-it-moved.png").exists()


def change_stats(tensor: str, far: float = 0.01) -> ChangeStats:
    return ChangeStats(
        tensor=tensor, size=100, selected=10, moved=10, change=far, weights=1.0, histogram=[0] * 24
    )


@pytest.mark.parametrize(
    ("tensors", "image", "text"),
    [
        (
            [f"visual.transformer.resblocks.{i}.mlp.c_fc.weight" for i in (11, 2, 0)]
            + ["transformer.resblocks.10.mlp.c_fc.weight", "transformer.resblocks.9.ln_1.bias"],
            ["1", "3", "12"],
            ["10", "11"],
        ),
        (
            [
                "visual.proj",
                "visual.conv1.weight",
                "visual.transformer.resblocks.0.ln_1.weight",
                "positional_embedding",
                "token_embedding.weight",
                "text_projection",
                "logit_scale",
            ],
            ["in", "1", "out"],
            ["in", "out"],
        ),
        (
            [
                "visual_projection.weight",
                "vision_model.embeddings.patch_embedding.weight",
                "text_model.embeddings.token_embedding.weight",
                "text_projection.weight",
            ],
            ["in", "out"],
            ["in", "out"],
        ),
        (
            [
                "visual.layer2.0.conv1.weight",
                "visual.layer1.1.conv1.weight",
                "visual.conv1.weight",
                "visual.layer1.0.conv1.weight",
                "text.transformer.resblocks.0.mlp.c_fc.weight",
            ],
            ["in", "1", "2", "3"],
            ["1"],
        ),
        (["prompts.keys.0", "prompts.pool", "texts.table.weight"], ["prompts"], ["out"]),
        (["images.1.weight", "images.10.weight", "texts.0.weight"], ["2", "11"], ["1"]),
    ],
)
def test_tensors_are_found_in_their_towers(
    tensors: list[str], image: list[str], text: list[str]
) -> None:
    towers = block_changes([change_stats(tensor) for tensor in tensors], 1)
    assert {tower: [b.name for b in every] for tower, every in towers.items()} == {
        "image": image,
        "text": text,
    }
    assert len(plots.change_by_layer(towers).axes) == 4


def test_the_largest_changes_in_sentences() -> None:
    names = [
        "visual.proj",
        "transformer.resblocks.3.ln_1.bias",
        "transformer.resblocks.4.ln_1.bias",
    ]
    towers = block_changes(
        [change_stats(names[0], 0.5), change_stats(names[1], 0.01), change_stats(names[2], 0.0)], 1
    )
    assert largest_change_sentences(towers) == [
        "In the image tower, what comes after the blocks moved farthest: by 16 % of its weights.",
        "In the text tower, block 4 moved farthest: by 0.32 % of its weights.",
    ]
    assert largest_change_sentences(block_changes([change_stats("visual.proj", 0.0)], 1)) == []


@pytest.mark.slow
def test_a_delta_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", fake_results(accuracy=(80,)))
    (run / "deltas" / "task-01.safetensors").write_bytes(b"damaged")
    page = page_of(run, run)
    assert "This cannot be shown:" in page.text
    assert "task-01.safetensors is damaged" in page.text
