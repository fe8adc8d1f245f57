"""The analyses on a run's page, and files there that are refused."""

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest
from report_pages import page_of
from task_selections import learned_run

from retouch.analysis.overlap.compute import read_overlap
from retouch.analysis.result_files import analysis_folder
from retouch.files import checksummed
from retouch.report.figures import MAX_BYTES, read_analyses

PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 20


def write_analysis_files(run: Path, name: str, facts: str, picture: bytes) -> Path:
    folder = analysis_folder(run, name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(facts)
    with suppress(ValueError):
        content = {**json.loads(facts), "picture": sha256(picture).hexdigest()}
        checksummed.write_json(folder / f"{name}.json", content)
    (folder / f"{name}.png").write_bytes(picture)
    return folder


@pytest.mark.slow
def test_the_page_shows_the_overlap_and_other_analyses(tmp_path: Path) -> None:
    run = learned_run(tmp_path / "run")
    write_analysis_files(
        run, "cam", '{"title": "<i>Cam</i>", "caption": "3 & more", "numbers": {}}', PNG
    )
    page = page_of(run, run)
    assert "Looking inside" in page.text
    means = [100 * layer.weights.mean for layer in read_overlap(run).layers_of("image")]
    assert f"two tasks share {min(means):.1f} to {max(means):.1f}" in page.text.replace("\xa0", " ")
    assert "<i>Cam</i>" in page.text  # as text
    assert "3 & more" in page.text
    shown = [value for name, value in page.attributes if name == "src" and "image/png" in value]
    assert len(shown) == 1
    assert (run / "plots" / "overlap.svg").exists()
    assert page_of(run, run).source == page.source
    assert "Looking inside" not in page_of(run.parent, run, run).text


@pytest.mark.parametrize(
    ("facts", "picture", "message"),
    [
        ("not json", PNG, "trace.json is damaged"),
        ('{"title": 7}', PNG, "title=7: input should be"),
        (
            '{"title": "t", "caption": ""}',
            b"<svg onload='alert(1)'/>",
            "trace.png is not a picture",
        ),
        ('{"title": "t", "caption": ""}', PNG + b"0" * MAX_BYTES, "trace.png is too large"),
    ],
)
def test_files_that_are_not_a_figure_are_reported(
    tmp_path: Path, facts: str, picture: bytes, message: str
) -> None:
    write_analysis_files(tmp_path, "trace", facts, picture)
    (analysis,) = read_analyses(tmp_path)
    assert message in analysis.problem
    assert analysis.picture == ""


def test_a_figure_outside_of_the_run_is_not_read(tmp_path: Path) -> None:
    folder = write_analysis_files(tmp_path / "run", "trace", '{"title": "t", "caption": ""}', PNG)
    assert read_analyses(tmp_path / "run")[0].picture.startswith("data:image/png;base64,")
    (folder / "trace.png").rename(tmp_path / "secret.png")
    assert "trace.png is missing" in read_analyses(tmp_path / "run")[0].problem
    (folder / "trace.png").symlink_to(tmp_path / "secret.png")
    assert "leads out of the run" in read_analyses(tmp_path / "run")[0].problem


@pytest.mark.slow
def test_damage_is_reported_on_the_page(tmp_path: Path) -> None:
    run = learned_run(tmp_path / "run", tasks=2)
    write_analysis_files(run, "trace", "no json <script>alert(1)</script>", PNG)
    file = run / "deltas" / "task-02.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    page = page_of(run, run)
    assert "What tasks share cannot be shown" in page.text
    assert "task-02.safetensors is damaged" in page.text
    assert "trace.json is damaged or was changed by hand" in page.text
    assert "alert" not in page.source
