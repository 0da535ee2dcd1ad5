"""Distillation that goes on from a draft: its weights, tokens and shape are kept, and what does not fit is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import library
from distilling import PLAN
from outrider.cli.main import app
from outrider.drafters.head import HeadDrafter
from outrider.errors import BadOption, ModelNotFound
from outrider.models.hub import loading
from outrider.training.distill import distill, make_student
from outrider.training.head_students import HeadStudent


def test_a_draft_goes_on_from_another(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches weights that are not used, tokens that are not kept, and a shape that is not the draft's."""
    distill(target, tmp_path / "first", replace(PLAN, blocks=2, size="24"))
    first = HeadDrafter.load(tmp_path / "first")
    plan = replace(PLAN, start=str(tmp_path / "first"), vocab=None)
    student, save = make_student(target, plan, first.tokens)
    assert isinstance(student, HeadStudent) and student.head.config == first.head.config
    for mine, its in zip(student.module.parameters(), first.head.parameters(), strict=True):
        assert mine.requires_grad and torch.equal(mine, its)
    still = replace(plan, budget=replace(PLAN.budget, rate=1e-12))
    distill(target, tmp_path / "same", still)
    distill(target, tmp_path / "second", plan)
    one, same, two = (load_file(str(tmp_path / name / "model.safetensors")) for name in ("first", "same", "second"))
    assert torch.equal(one["tokens"], two["tokens"]) and one.keys() == two.keys()
    assert all(torch.equal(one[k], same[k]) for k in one) and not all(torch.equal(one[k], two[k]) for k in one)
    other = replace(plan, vocab=40)  # another choice of tokens: a head's states know nothing of them
    distill(target, tmp_path / "fewer", other)
    assert len(HeadDrafter.load(tmp_path / "fewer").tokens) == 40


def test_a_block_head_takes_over_the_layers_of_a_feature_head(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches layers that begin anew, and a depth or a corrector that the draft it goes on from has not."""
    first = _fresh_head(target, tmp_path / "first")
    plan = replace(PLAN, kind="block", start=str(tmp_path / "first"), vocab=None, depth=3, rank=6)
    student, save = make_student(target, plan, first.tokens)
    assert isinstance(student, HeadStudent)
    made, taken = student.head.state_dict(), first.head.state_dict()
    assert all(torch.equal(made[name], weight) for name, weight in taken.items())
    assert {name.split(".")[0] for name in made.keys() - taken.keys()} == {"masks", "corrector"}
    (tmp_path / "block").mkdir()
    save(tmp_path / "block")
    again = replace(plan, start=str(tmp_path / "block"))
    assert make_student(target, replace(again, rank=None), first.tokens)[0].module.state_dict().keys() == made.keys()
    for wrong, message in (
        ({"rank": 7}, "rank of the draft .* is 6, not 7"),
        ({"depth": 4}, "makes 3 guesses, fewer than --depth 4"),
    ):
        with pytest.raises(BadOption, match=message):
            make_student(target, replace(again, **wrong), first.tokens)


def test_a_rank_is_refused_where_there_is_no_corrector() -> None:
    """Catches an option that is dropped in silence."""
    with pytest.raises(BadOption, match="leave out --rank 6"):
        replace(PLAN, kind="feature", rank=6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"blocks": 2}, "blocks of the draft .* is 1, not 2"),
        ({"size": "24"}, "inner_size"),
        ({"reads": (1,)}, "layers"),
        ({"attention": False}, "heads"),
        ({"kind": "blockwise"}, "kind of the draft .* is feature, not blockwise"),
    ],
)
def test_a_draft_of_another_shape_is_refused(
    given: dict[str, Any], message: str, target: loading.Loaded, tmp_path: Path
) -> None:
    """Catches a wish for another shape that is passed over in silence."""
    _fresh_head(target, tmp_path)
    with pytest.raises(BadOption, match=message):
        make_student(target, replace(PLAN, start=str(tmp_path), **given), torch.arange(64))


def test_only_a_draft_for_the_same_target_goes_on(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a head whose states mean something else to this target."""
    _fresh_head(target, tmp_path / "draft")
    other = loading.load(str(library.save_llama(tmp_path / "other", seed=5)), "cpu", "float32")
    plan = replace(PLAN, start=str(tmp_path / "draft"))
    with pytest.raises(BadOption, match="another target"):
        make_student(other, plan, torch.arange(64))
    with pytest.raises(BadOption, match="only heads go on"):
        replace(plan, kind="model")
    with pytest.raises(ModelNotFound, match="no trained draft"):
        make_student(target, replace(PLAN, start=str(tmp_path)), torch.arange(64))


def test_the_command_goes_on_from_a_draft(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches an option that does not reach the training, and words about a draft that are not true."""
    _fresh_head(target, tmp_path / "first")
    words = ["distill", target.name, "--tokens", "1500", "--text-tokens", "1500", "--block", "32", "--batch", "4"]
    words += ["--depth", "2", "--generate-batch", "8", "--dtype", "float32", "--no-measure", "--temperatures", "1,0"]
    out = tmp_path / "second"
    result = CliRunner().invoke(app, [*words, "--out", str(out), "--from", str(tmp_path / "first")])
    assert result.exit_code == 0, result.output + repr(result.exception)
    settings = json.loads((out / "training" / "plan.json").read_text(encoding="utf-8"))
    assert settings["temperatures"] == [1.0, 0.0] and settings["start"] == str(tmp_path / "first")
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "went on from the draft in" in card and "the tokens of the draft it goes on from" in card
    assert HeadDrafter.load(out).head.config == HeadDrafter.load(tmp_path / "first").head.config
    for wrong, message in ((["--from", "nowhere"], "not the directory"), (["--temperatures", "hot"], "must look like")):
        result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "third"), *wrong])
        assert result.exit_code != 0 and message in " ".join(f"{result.output} {result.exception}".split())


def _fresh_head(target: loading.Loaded, folder: Path) -> HeadDrafter:
    folder.mkdir(exist_ok=True)
    make_student(target, PLAN, torch.arange(64))[1](folder)
    return HeadDrafter.load(folder)
