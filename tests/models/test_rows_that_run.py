"""Empty slots of a batch do not go through the compiled layers; other rows have the bits of a batch without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import library
import outrider
from outrider.core.protocols import Shape
from outrider.llm import LLM
from outrider.models.engine.model import EngineModel
from outrider.runtime import cpu

pytest.importorskip("numba", reason="numba is not installed")
pytestmark = [
    pytest.mark.cpu_paths,
    pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication"),
]
SHAPE = Shape(64, 5)
PROMPTS = [[5, 6, 7, 5, 6], [9, 8], [33, 5, 33, 12]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = library.save_llama(tmp_path_factory.mktemp("rows") / "target")
    return outrider.load(str(folder), None, "cpu", engine="numba")


@pytest.fixture
def run_rows(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each run of the layers has."""
    counts: list[int] = []
    model = llm.target.model
    assert isinstance(model, EngineModel)
    engine: Any = model.engine
    run_layers = engine.run_layers

    def counted(cache: Any, given: Any, keep: Any, logits: bool) -> Any:
        counts.append(len(given.start))
        return run_layers(cache, given, keep, logits)

    monkeypatch.setattr(engine, "run_layers", counted)
    return counts


def alone(llm: LLM, prompt: list[int], tokens: list[int], tail: list[int]) -> torch.Tensor:
    session = llm.target.model.start(1, SHAPE)
    session.admit(0, prompt)
    for token in tokens:
        session.score(torch.zeros((1, 0), dtype=torch.int64))
        session.commit(torch.tensor([[token]]), torch.ones(1, dtype=torch.int64))
    return session.score(torch.tensor([tail], dtype=torch.int64))[0]


def test_rows_that_are_there_run_alone(llm: LLM, run_rows: list[int]) -> None:
    """One request among eight slots took as long as eight: all rows went through the model, empty ones too."""
    session = llm.target.model.start(4, SHAPE)
    tail = torch.tensor([[3, 4]]).expand(4, 2)
    nothing, one = tail[:, :0], torch.ones(4, dtype=torch.int64)
    session.admit(2, PROMPTS[0])
    run_rows.clear()
    assert torch.equal(session.score(nothing)[2], alone(llm, PROMPTS[0], [], []))
    assert run_rows[0] == 1
    session.commit(torch.full((4, 1), 11), one)
    session.admit(0, PROMPTS[1])  # joins, below and above the row that runs
    session.admit(3, PROMPTS[2])
    run_rows.clear()
    found = session.score(tail)
    assert run_rows == [3]
    for row, prompt, tokens in ((2, PROMPTS[0], [11]), (0, PROMPTS[1], []), (3, PROMPTS[2], [])):
        assert torch.equal(found[row], alone(llm, prompt, tokens, [3, 4])), row
    session.commit(torch.full((4, 1), 12), one)
    session.release(2)
    session.admit(1, PROMPTS[0])
    found = session.score(tail)
    for row, prompt, tokens in ((1, PROMPTS[0], []), (0, PROMPTS[1], [12]), (3, PROMPTS[2], [12])):
        assert torch.equal(found[row], alone(llm, prompt, tokens, [3, 4])), row


def test_a_row_outside_the_cache_is_refused(llm: LLM) -> None:
    """Compiled code does not check where it writes."""
    from outrider.models.engine_protocol import Wanted

    model = llm.target.model
    assert isinstance(model, EngineModel)
    cache = model.engine.allocate(2, SHAPE)
    tokens, positions = torch.tensor([[1], [2], [3]]), torch.zeros((3, 1), dtype=torch.int64)
    with pytest.raises(IndexError, match="rows 2 to 2 .* do not fit"):
        model.engine.run(tokens, positions, cache, Wanted(rows=torch.tensor([2])))


def test_what_never_ran_is_not_shared(llm: LLM) -> None:
    """A row that ends with tokens pending no longer runs: the next prompt that begins like it must not copy them."""
    text = list(range(5, 45))
    session: Any = llm.target.model.start(3, SHAPE)
    session.share_prefixes = True
    session.admit(0, text[:-3])
    session.admit(1, PROMPTS[1])
    session.score(torch.zeros((3, 0), dtype=torch.int64))
    session.commit(torch.tensor([text[-3:]] * 3), torch.tensor([3, 1, 0]), follows=False)
    session.release(0)
    session.score(torch.zeros((3, 0), dtype=torch.int64))  # of the other row alone
    session.commit(torch.tensor([[12]] * 3), torch.tensor([0, 1, 0]))
    session.admit(2, [*text, 12, 13])
    assert session.reused > 0
    found = session.score(torch.tensor([[3, 4]] * 3))[2]
    assert torch.equal(found, alone(llm, [*text, 12, 13], [], [3, 4]))


def test_a_beam_search_runs_the_rows_of_its_hypotheses(llm: LLM, run_rows: list[int]) -> None:
    """A search ran a row for every branch it might have had, in plain steps and where the tree was smaller, too."""
    options: dict[str, Any] = {"beams": 2, "max_new_tokens": 8, "eos": ()}
    plain = outrider.LLM(llm.target, outrider.Nothing()).generate("the fox", **options, draft_beams=4)
    assert set(run_rows[-7:]) == {2}
    run_rows.clear()
    guessed = llm.with_draft(outrider.Copying(shortest=1)).generate("the fox", **options, draft_beams=4, gamma=2)
    assert guessed.hypotheses == plain.hypotheses and min(run_rows) < 4


def test_rows_that_change_places_copy_what_differs(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step of a beam search copied whole prompts; hypotheses differ in their last tokens."""
    session: Any = llm.target.model.start(3, SHAPE)
    prompt = [5 + token % 30 for token in range(40)]
    session.admit(0, prompt)
    copied: list[tuple[int, int]] = []
    move = session.cache.move

    def counted(to: Any, source: Any, length: int, start: int = 0) -> None:
        copied.append((start, length))
        move(to, source, length, start)

    monkeypatch.setattr(session.cache, "move", counted)
    session.select(torch.tensor([0, 0, 2]))
    assert copied == [(0, 40)]
    nothing, one = torch.zeros((3, 0), dtype=torch.int64), torch.ones(3, dtype=torch.int64)
    for tokens in ([9, 12, 0], [10, 11, 0]):
        session.score(nothing)
        session.commit(torch.tensor(tokens)[:, None], one)
    session.select(torch.tensor([0, 1, 2]))
    assert len(copied) == 1, "rows that stay are not copied"
    session.select(torch.tensor([1, 1, 0]))
    assert copied[1:] == [(0, 42)], "an empty slot among them takes all"
    session.score(nothing)
    session.commit(torch.tensor([[3], [4], [3]]), one)
    session.select(torch.tensor([2, 0, 1]))
    assert copied[2:] == [(40, 43)]
    found = session.score(torch.tensor([[7], [7], [7]]))
    for row, written in enumerate(([9, 10, 3], [12, 11, 3], [12, 11, 4])):
        assert torch.equal(found[row], alone(llm, prompt, written, [7]))
