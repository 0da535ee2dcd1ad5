"""Text the target writes itself: kept round by round, and only what it wrote counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import library
from outrider.models.hub import loading
from outrider.training import answers
from outrider.training.answers import SelfText, self_written
from outrider.training.data import Corpus, frequent_tokens, from_answers
from outrider.training.distill import make_student
from outrider.training.distill_plan import DistillPlan
from outrider.training.head_students import HeadStudent
from outrider.training.progress import Gathering
from outrider.training.rounds import Rounds
from outrider.training.students import ModelStudent
from outrider.training.teacher import Teacher

PLAN = SelfText(tokens=1500, new_tokens=16, batch=8, block=32)


@pytest.fixture(scope="module")
def target(tmp_path_factory: Any) -> loading.Loaded:
    return loading.load(str(library.save_llama(tmp_path_factory.mktemp("answers") / "llama")), "cpu", "float32")


def gathering() -> Gathering:
    return Gathering(PLAN.tokens)


def test_a_killed_run_keeps_its_rounds(target: loading.Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text was lost when a run was killed before all of it was written."""
    prompts = ["the end", "a thin", "then the"]
    whole = self_written(target, PLAN, prompts, gathering())
    began = []
    real = answers.write_round

    def killed(*given: Any) -> Any:
        began.append(given[3])
        if len(began) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(answers, "write_round", killed)
    with pytest.raises(KeyboardInterrupt):
        self_written(target, PLAN, prompts, gathering(), Rounds(tmp_path / "rounds"))
    resumed = self_written(target, PLAN, prompts, gathering(), Rounds(tmp_path / "rounds"))
    assert began[:4] == [0, 1, 2, 2]  # the third begins again, the first two are read
    assert torch.equal(resumed.tokens, whole.tokens)
    assert resumed.written is not None and whole.written is not None and torch.equal(resumed.written, whole.written)


def test_given_prompts_are_asked_in_turn(target: loading.Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third round is of the target's own making: prompts must not be passed over because of it."""
    asked: list[str] = []
    monkeypatch.setattr(answers, "messages", lambda loaded, texts: asked.extend(texts) or [])
    prompts = [f"prompt {i}" for i in range(12)]
    for number in (0, 1, 3):
        answers.round_prompts(target, PLAN, prompts, number, 4, gathering().until())
    assert asked == prompts


def test_prompts_do_not_count(target: loading.Loaded, tmp_path: Path) -> None:
    """A draft is never asked for a prompt's tokens: learning them costs it what it is asked for."""
    corpus = from_answers([([1, 2, 3], [4, 5, 6, 7, 8]), ([9, 9], [10, 11]), ([9] * 4, [12])], block=8)
    some = [[False] * 3 + [True] * 5, [False, False, True, True] + [False] * 4, [False] * 4 + [True] + [False] * 3]
    assert corpus.counts.tolist() == some
    assert frequent_tokens(corpus, 64, 8).tolist() == [4, 5, 6, 7, 8, 10, 11, 12]
    corpus.save(tmp_path / "text.safetensors", "mine")
    again = Corpus.load(tmp_path / "text.safetensors", "mine")
    assert torch.equal(again.counts, corpus.counts) and torch.equal(again.take([1]).counts, corpus.counts[1:2, :4])


@pytest.mark.parametrize("kind", ["feature", "block", "blockwise", "model"])
def test_only_answers_are_learnt_from(kind: str, target: loading.Loaded) -> None:
    """The loss over a text is that over its answers, whatever lies around them."""
    torch.manual_seed(0)
    plan = replace(DistillPlan(), kind=kind, depth=1, vocab=0, size="16x32x1x2" if kind == "model" else None)
    student, _ = make_student(target, plan, torch.arange(target.model.vocab_size))
    assert isinstance(student, HeadStudent | ModelStudent) and isinstance(student.teacher, Teacher)
    tokens = torch.randint(0, 64, (1, 12))
    written = torch.zeros((1, 12), dtype=torch.bool)
    written[0, 6] = True

    def per_position(logits: torch.Tensor, p: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        return token.float()

    assert float(student.loss(Corpus(tokens, written=written), per_position)) == float(tokens[0, 6])
