"""Distillation on a tiny target: objectives, resume, saving, refusals."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import library
import outrider
from distilling import PLAN
from outrider.cli.main import app
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.drafters.head import HeadDrafter, choice, prepared
from outrider.drafters.head.backends import numpy_backend
from outrider.drafters.head.choice import BackendChoice
from outrider.errors import BadOption, ModelNotFound
from outrider.models.hub import loading
from outrider.testing import check_drafter
from outrider.training.data import Corpus
from outrider.training.distill import NoProgress, distill, make_student
from outrider.training.head_students import HeadStudent
from outrider.training.loop import mixed
from outrider.training.objectives import OBJECTIVES
from outrider.training.optimisers import OPTIMISERS, Optimiser
from outrider.training.students import Guesses, TokenPositions, Vocabulary
from outrider.training.teacher import Teacher
from outrider.training.writing import write


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_objectives_have_the_right_gradient(name: str) -> None:
    """Catches a loss whose gradient is not the derivative of what it says: finite differences decide."""
    torch.manual_seed(1)
    logits = torch.randn((3, 5), dtype=torch.float64, requires_grad=True)
    p = torch.rand((3, 5), dtype=torch.float64).softmax(-1) * 0.9
    label = torch.tensor([1, -1, 4])
    assert torch.autograd.gradcheck(lambda x: OBJECTIVES[name](x, p, label), (logits,))


def test_total_variation_is_one_minus_acceptance() -> None:
    """Catches an objective that is not the acceptance rate it claims to be."""
    p, logits = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.2, 0.6]]).log()
    assert torch.allclose(OBJECTIVES["tv"](logits, p, torch.tensor([0])), torch.tensor([0.4]))


@pytest.mark.parametrize(
    ("kind", "on_policy", "optimizer"),
    [
        ("feature", 0.0, "adamw"), ("feature", 0.0, "muon"), ("block", 0.0, "adamw"), ("blockwise", 0.0, "adamw"),
        ("eagle3", 0.3, "adamw"), ("model", 0.0, "adamw"), ("model", 0.3, "muon"),
    ],
)  # fmt: skip
def test_a_killed_run_ends_with_the_same_weights(
    kind: str, on_policy: float, optimizer: str, target: loading.Loaded, tmp_path: Path
) -> None:
    """Catches a checkpoint without an optimiser, or text or guesses drawn in another order after a restart."""
    budget = replace(PLAN.budget, on_policy=on_policy, optimizer=optimizer)
    plan = replace(PLAN, kind=kind, size="16x32x1x2" if kind == "model" else None, budget=budget)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    distill(target, whole, plan)

    class Killed(Exception):
        pass

    class Killer(NoProgress):
        def training(self, report: Any) -> None:
            raise Killed

    import outrider.training.distill as module

    train = module.train
    try:
        module.train = lambda *a, **k: train(*a, **k, every=5)  # type: ignore[assignment]
        with pytest.raises(Killed):
            distill(target, broken, plan, Killer())
        with pytest.raises(Killed):
            distill(target, broken, plan, Killer())
        distill(target, broken, plan)
    finally:
        module.train = train
    one, two = (load_file(str(folder / "model.safetensors")) for folder in (whole, broken))
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_muon_has_the_matrices_and_adamw_the_rest() -> None:
    """Catches weights that nobody learns, a matrix that both do, and a rate that is not passed on."""
    layer, rate = torch.nn.Linear(3, 2), 0.5
    for name in OPTIMISERS:
        weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
        optimiser = Optimiser(name, layer, rate=0.0)
        layer(torch.ones(1, 3)).sum().backward()
        optimiser.step(rate)
        steps = (weight - layer.weight).abs(), (bias - layer.bias).abs()
        assert all((step > 0).all() for step in steps)
        # AdamW's first step is the rate itself, with the decay on top; Muon's has a root mean square of about 0.2.
        assert torch.allclose(steps[1], torch.full((2,), rate), atol=0.01)
        assert (steps[0].square().mean().sqrt() < 0.5 * rate) == (name == "muon")
        optimiser.zero_grad()


@pytest.mark.parametrize("kind", ["feature", "block", "blockwise"])
def test_a_trained_head_drafts_by_the_contract(kind: str, target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a head whose reported q is not what it drew from, or that changes the text."""
    distill(target, tmp_path / "draft", replace(PLAN, kind=kind))
    drafter = HeadDrafter.load(tmp_path / "draft")
    check_drafter(drafter, target.model)
    llm = outrider.load(target.name, draft=str(tmp_path / "draft"), dtype="float32")
    plain = outrider.load(target.name, draft=None, dtype="float32")
    for options in ({}, {"temperature": 1.0, "coupling": "gumbel", "seed": 3}):
        one, two = (x.generate("the thin the", max_new_tokens=20, **options) for x in (llm, plain))
        assert one.tokens == two.tokens and one.stats.drafted > 0 and one.stats.drafter_error is None


WAYS = [(3, "batched"), (1, "numpy"), (1, "eight bits"), (1, "compiled")]
"""How many rows draft, and by what; torch alone runs a block head."""


@pytest.mark.parametrize(
    ("wish", "rows", "way"),
    [({"attention": attention}, *way) for attention in (True, False) for way in WAYS]
    + [({"kind": "block"}, 3, "batched")],
)
def test_drafting_sees_what_training_saw(
    wish: dict[str, Any], rows: int, way: str, target: loading.Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a head whose keys, places or states differ between training and drafting: it would draft worse, mutely.

    The text grows by uneven steps, with guesses that were wrong, in one of three rows, or alone: there with
    weights as they are, and rounded as they are for drafting on this CPU, by numpy and compiled.
    """
    chosen = {"batched": "torch", "compiled": "numba"}.get(way, "numpy")
    if chosen == "numba" and choice.choose_for_one_row().backend != "numba":
        pytest.skip("no numba, or a CPU without products of bytes")
    monkeypatch.setattr(prepared, "choose", lambda *facts: BackendChoice(chosen, "this test"))
    if way == "numpy":
        monkeypatch.setattr(numpy_backend, "product_with", lambda w: lambda x: x @ w.detach().float().t())
    distill(target, tmp_path / "draft", replace(PLAN, **wish))
    drafter = HeadDrafter.load(tmp_path / "draft")
    drafter.floor = 0.0  # draft on, however sure it is
    shape = Shape(capacity=96, width=5, chunk=4)
    session = target.model.start(rows, shape)
    head = drafter.start(rows, shape, session)
    text, row = [3, 9, 4, 11, 7, 5], rows // 2
    session.admit(row, text)
    head.admit(row, text)
    vocabulary = Vocabulary(drafter.tokens, session.vocab_size, session.device)
    student = HeadStudent(Teacher(target.model), drafter.head, vocabulary, 3)
    at = torch.zeros((rows, 4), dtype=torch.int64)
    for kept, new in ((0, 8), (2, 1), (1, 6), (3, 2), (0, 5)):
        for _ in range(7):  # a stretch in which it is not asked: its keys must be made all the same
            text = _one_more(text, session, head)
        draft = head.propose(3, Sampling(temperature=1.0), Noise(torch.zeros(rows, dtype=torch.int64)), at)
        draft = draft.dense(session.vocab_size)
        guesses = draft.tokens[row].tolist()
        seen = student.guesses(Corpus(torch.tensor([text + guesses])))
        for k, guess in enumerate(seen):
            known = guess.logits[guess.positions.columns == len(text) + k][0].softmax(-1)
            q = torch.zeros(target.model.vocab_size).index_put_((drafter.tokens,), known)
            assert torch.allclose(draft.probs[row, k], q, atol=1e-5 if way in ("batched", "numpy") else 0.03)
        session.score(draft.tokens)
        emitted = torch.tensor([[*guesses[:kept], new, 0, 0, 0][:4]]).expand(rows, -1)
        for part in (session, head):
            part.commit(emitted, _only(row, rows) * (kept + 1))
        text = text + emitted[row, : kept + 1].tolist()


def _one_more(text: list[int], session: Any, head: Any) -> list[int]:
    token, rows = (text[-1] * 7 + 3) % 60, session.context.rows
    session.score(torch.zeros((rows, 0), dtype=torch.int64))
    for part in (session, head):
        part.commit(torch.full((rows, 1), token), _only(rows // 2, rows))
    return [*text, token]


def _only(row: int, rows: int) -> torch.Tensor:
    return (torch.arange(rows) == row).to(torch.int64)


def test_nothing_is_overwritten(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a run that writes into somebody's directory, or goes on with other settings."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    with pytest.raises(BadOption, match="not empty"):
        distill(target, tmp_path / "mine", PLAN)
    distill(target, tmp_path / "draft", PLAN)
    with pytest.raises(BadOption, match="other settings"):
        distill(target, tmp_path / "draft", replace(PLAN, depth=2))


def test_a_head_of_another_target_is_refused(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a head run on hidden states it was never trained on."""
    distill(target, tmp_path / "draft", PLAN)
    other = library.save_llama(tmp_path / "other", seed=5)
    with pytest.raises(BadOption, match="another target"):
        outrider.load(str(other), draft=str(tmp_path / "draft"), dtype="float32")


@pytest.mark.parametrize("kind", ["feature", "model"])
def test_on_policy_text_holds_the_drafts_own_guesses(kind: str, target: loading.Loaded) -> None:
    """Catches guesses put one place off, or drawn from another distribution than the draft's.

    A student that is certain of token 7 everywhere must have it put wherever it can guess, and nowhere else.
    """
    plan = replace(PLAN, kind=kind, size="16x32x1x2" if kind == "model" else None)
    student, _ = make_student(target, plan, torch.arange(64))
    batch = Corpus(torch.randint(8, 60, (3, 12)))
    first = 1 if kind == "model" else 2
    drawn = student.draw(batch, torch.Generator().manual_seed(0))
    assert (drawn[:, :first] < 0).all() and (drawn[:, first:] >= 0).all() and int(drawn.max()) < 64
    positions = TokenPositions.of(batch, torch.device("cpu"))
    zeros = torch.zeros(33)
    certain = Guesses(torch.zeros((33, 64)), torch.zeros((33, 64)), zeros, zeros, torch.ones(33), positions)
    certain.logits[..., 7] = 100
    assert (certain.draw(torch.arange(64), batch.tokens, torch.Generator())[:, 1:] == 7).all()
    some = mixed(student, batch, replace(PLAN.budget, on_policy=0.5), step=3)
    changed = some.tokens != batch.tokens
    assert 0 < int(changed.sum()) < 30 and not changed[:, :first].any()
    assert torch.equal(some.tokens, mixed(student, batch, replace(PLAN.budget, on_policy=0.5), step=3).tokens)
    assert mixed(student, batch, PLAN.budget, step=3) is batch


def test_a_target_writes_no_further_than_it_can_count(tmp_path: Path) -> None:
    """A model with learnt positions failed deep inside when prompt and answer were longer than its table."""
    short = loading.load(str(library.save_bart(tmp_path / "bart")), "cpu", "float32")
    assert short.model.max_length == 128
    [(source, answer)] = write(
        short.model, short.tokenizer, [[5] * 200], new_tokens=300, temperature=1.0, batch=1, seed=0
    )
    assert len(source) == 128 and 1 <= len(answer) <= 127


def test_no_text(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches training on nothing."""
    (tmp_path / "empty.txt").write_text("\n \n", encoding="utf-8")
    with pytest.raises(BadOption, match="less than one block of 32; give more text"):
        distill(target, tmp_path / "draft", replace(PLAN, data=(str(tmp_path / "empty.txt"),)))
    with pytest.raises(ModelNotFound, match="does not exist"):
        distill(target, tmp_path / "other", replace(PLAN, data=(str(tmp_path / "none.txt"),)))


def test_a_card_whose_command_gives_its_figures(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a card with figures nobody can get again, and a command line that trains and says nothing of it."""
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"task": t, "prompt": p} for t, p in (("one", "the end"), ("one", "a thin"), ("two", "then the"))]
    prompts.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    out = tmp_path / "draft"
    words = ["distill", target.name, "--out", str(out), "--tokens", "1500", "--text-tokens", "1500", "--block", "32"]
    words += ["--batch", "4", "--depth", "2", "--generate-batch", "8", "--vocab", "64", "--dtype", "float32"]
    result = CliRunner().invoke(app, [*words, "--measure-prompts", str(prompts), "--json"])
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert json.loads(result.stdout)["held_out"]["overlap"]
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "## Held-out text" in card and "## Measured" in card and "text the target wrote itself" in card
    command = next(line for line in card.splitlines() if line.startswith("outrider measure"))
    report = json.loads(CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"]).stdout)
    rows = [line.split(" | ") for line in card.splitlines() if line.startswith(("| 0 | ", "| 1 | "))]
    rows = [row for row in rows if len(row) > 5]
    assert [r[1] for r in rows] == ["one", "two", "all"] * 2
    for shown, row in zip(rows, report["rows"], strict=True):
        stats = row["stats"]
        assert shown[3] == str(stats["examined"]) and shown[4].startswith(f"{stats['alpha']:.2f}")
