"""Methods of one's own under a name: registered in Python, or offered by an installed package."""

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bench_for_tests import SMALL, tiny_data
from commands import run as command
from recipes_for_tests import QUICK
from tiny import images, tiny_clip, tiny_folder

import retouch
from retouch.bench import Bench, Suite
from retouch.cli.options import complete_method
from retouch.data import Images, Stream
from retouch.errors import UserError
from retouch.methods import RECIPES, Method, available_methods, recipe, registry
from retouch.methods.method_config import method_config, read_method
from retouch.methods.updates.full_finetune import FullFinetune

MINE = Method(name="mine", summary="only the projection", update=FullFinetune(where="*projection*"))
PACKAGE = """
from retouch.methods import Method, Regularizer
from retouch.methods.updates.full_finetune import FullFinetune


class Pull(Regularizer):
    weight: float = 1.0


with_part = Method(name="with_part", update=FullFinetune(), regularizer=Pull())
packaged = Method(name="packaged", update=FullFinetune(where="*projection*"))
other_name = packaged
not_a_method = 3
spu = Method(name="spu", update=FullFinetune())
"""
Install = Callable[..., None]


@pytest.fixture(autouse=True)
def _clean_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a package with these entry points, as pip would."""
    site = tmp_path / "site-packages"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def install(package: str = "acme_methods", **entry_points: str) -> None:
        (site / f"{package}.py").write_text(PACKAGE)
        info = site / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entry_points.items()]
        (info / "entry_points.txt").write_text("\n".join(["[retouch.methods]", *lines, ""]))
        monkeypatch.delitem(sys.modules, package, raising=False)

    return install


def two_classes() -> tuple[Images, Images]:
    return images("train", 2, 6), images("test", 2, 2)


def tiny_stream() -> Stream:
    return Stream.split(images("train", 4, 6), images("test", 4, 2), tasks=2)


@pytest.mark.slow
def test_a_registered_method_is_known_by_its_name(tmp_path: Path):
    assert retouch.register(MINE) is MINE
    assert recipe("mine", {"update.where": "logit_scale"}).update.where == "logit_scale"
    assert "mine" in available_methods()
    assert complete_method("mi") == ["mine"], "for the shell's completion"
    model = tiny_folder(tmp_path / "model")
    run = retouch.load(str(model))
    retouch.teach(run, tiny_stream(), "mine", settings=QUICK, out=tmp_path / "run")
    new = [replace(part, classes=["pale red", "pale blue"]) for part in two_classes()]
    results = retouch.continue_run(tmp_path / "run", *new, out=tmp_path / "more")
    assert results.method == "mine"
    assert results.done == 3


def test_a_bench_accepts_it(tmp_path: Path):
    retouch.register(MINE)
    suite = Suite(title="Mine", name="mine", rows=({"name": "mine", "method": "mine"},))
    (done,) = Bench(suite, tiny_data(), "builtin", tmp_path, SMALL).run()
    assert done.results.method == "mine"


def test_a_name_that_is_taken_is_refused():
    retouch.register(MINE)
    changed = MINE.model_copy(update={"summary": "another"})
    with pytest.raises(UserError, match=r"'mine' is registered already; .*replace=True"):
        retouch.register(changed)
    assert retouch.register(changed, replace=True) is changed
    assert recipe("mine").summary == "another"
    with pytest.raises(UserError, match="'spu' is the name of a built-in method"):
        retouch.register(MINE.model_copy(update={"name": "spu"}), replace=True)
    with pytest.raises(
        UserError, match=r"method cannot be 'mine'; give a retouch\.methods\.Method"
    ):
        retouch.register("mine")


def test_an_installed_package_offers_methods(install: Install):
    install(packaged="acme_methods:packaged")
    assert list(available_methods()) == [*RECIPES, "packaged"]
    results = retouch.teach(tiny_clip(), tiny_stream(), "packaged", settings=QUICK)
    assert results.method == "packaged"
    with pytest.raises(UserError, match="'packaged' is registered already"):
        retouch.register(Method(name="packaged"))


def test_the_part_of_an_installed_package_is_found_by_its_name(install: Install):
    """In a new process, where nothing has asked for the method yet."""
    stored = method_config(Method(name="with_part", update=FullFinetune()))
    stored["regularizer"] = {"class": "acme_parts.Pull", "weight": 2.0}
    with pytest.raises(UserError, match=r"the regularizer of with_part is acme_parts\.Pull, which"):
        read_method(stored, "config.yaml")
    registry._installed.cache_clear()
    install("acme_parts", with_part="acme_parts:with_part", gone="acme_parts:gone")
    rebuilt = read_method(stored, "config.yaml")
    assert rebuilt == recipe("with_part", {"regularizer.weight": 2.0, "summary": ""})
    changed = recipe("spu", {"regularizer": "acme_parts.Pull"})
    assert type(changed.regularizer) is type(rebuilt.regularizer), "for --set, too"
    stored["name"], stored["regularizer"]["class"] = "gone", "acme_parts.Gone"
    with pytest.raises(UserError, match=r"acme_parts\.Gone, which is unknown.*cannot be loaded"):
        read_method(stored, "config.yaml")


def test_an_entry_point_that_fails_is_named_and_does_not_affect_the_others(
    install: Install, caplog: pytest.LogCaptureFixture
):
    install(
        "broken_methods",
        missing="broken_methods:missing",
        no_module="broken_methods.gone:method",
        not_a_method="broken_methods:not_a_method",
        other="broken_methods:other_name",
        spu="broken_methods:spu",
    )
    install("acme_methods", packaged="acme_methods:packaged")
    with caplog.at_level(logging.WARNING, "retouch"):
        assert recipe("packaged").name == "packaged"
        assert recipe("spu") == RECIPES["spu"]
        assert set(available_methods()) == {*RECIPES, "packaged"}
    assert len(caplog.messages) == 5, "each once"
    for name, problem in {
        "missing": r"of the package broken_methods cannot be loaded; .*: AttributeError: .*missing",
        "no_module": r"loaded; repair or remove it: ModuleNotFoundError: .*broken_methods",
        "not_a_method": r"broken_methods:not_a_method is not a retouch\.methods\.Method",
        "other": "it calls itself 'packaged'",
    }.items():
        with pytest.raises(UserError, match=problem):
            recipe(name)
    assert "the method 'spu' of the package broken_methods is ignored" in caplog.text
    with pytest.raises(UserError, match=r"no method 'nothing'; there are frozen, .*packaged"):
        recipe("nothing")


def test_an_entry_point_that_calls_sys_exit_does_not_end_the_program(
    install: Install, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    install("leaving_methods", left="leaving_methods:left")
    (tmp_path / "site-packages" / "leaving_methods.py").write_text("import sys; sys.exit(3)")
    assert "spu+" in command("methods").stdout
    assert "leaving_methods cannot be loaded; repair or remove it: it ends the pr" in caplog.text
