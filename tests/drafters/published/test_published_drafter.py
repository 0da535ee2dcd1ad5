"""A published head as a drafter: the contract, the same text, and what ``draft=`` makes of its directory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import block_heads
import eagle_heads
import library
import outrider
from helpers import case, run, run_only_if_asked, wrapped
from outrider.core import host_sync
from outrider.core.abilities import forkable
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling, draw
from outrider.core.traits import traits_of
from outrider.drafters import Nothing
from outrider.drafters.head.session import HeadSession
from outrider.drafters.published import DFlashHead, PublishedDrafter
from outrider.errors import BadOption
from outrider.testing import check_drafter
from published_kinds import KINDS, loaded

PROMPT = "the quick brown fox the quick"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_contract_of_a_drafter(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    """Catches a q reported that was not drawn from, keys that fall out of step, and forks that show."""
    run_only_if_asked(request)
    check_drafter(loaded(tmp_path, kind, floor=0.0), wrapped("llama"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_q_returned_is_the_q_drawn_from(tmp_path: Path, kind: str) -> None:
    """Over the target's tokens, zero where the head has none; and a fork goes on from the head's own guesses."""
    drafter, model = loaded(tmp_path, kind, floor=0.0), wrapped("llama")
    target = model.start(2, shape := Shape(64, 6, chunk=4))
    session = forkable(drafter.start(2, shape, target))
    for row, prompt in enumerate(([3, 9, 4, 5], [8, 2])):
        for part in (target, session):
            part.admit(row, prompt)
    noise, at = Noise(torch.arange(2)), target.context.positions(4)
    draft = session.propose(3, Sampling(temperature=1.0), noise, at)
    q = draft.dense(model.vocab_size).probs
    assert q is not None and draft.proposed.all()
    assert torch.equal(draft.tokens, draw(q, noise.race("token", at[:, :3], model.vocab_size)))
    assert not q[..., [t for t in range(model.vocab_size) if t not in drafter.tokens.tolist()]].any()
    fork = session.fork(torch.tensor([1, 0]))
    fork.commit(draft.tokens[[1, 0], :1], torch.ones(2, dtype=torch.int64))
    ahead = fork.propose(1, Sampling(temperature=1.0), noise, at[[1, 0], 1:3])
    assert ahead.probs is not None and draft.probs is not None
    torch.testing.assert_close(ahead.probs[:, 0], draft.probs[[1, 0], 1], rtol=0, atol=1e-6)
    again = session.propose(3, Sampling(temperature=1.0), noise, at)
    assert torch.equal(again.tokens, draft.tokens), "nothing of the fork shows"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_that_of_plain_decoding(tmp_path: Path, kind: str, temperature: float) -> None:
    """At temperature 0, and with Gumbel coupling, whatever the head guesses; one row waits for a slot."""
    wanted, drafter = case("llama"), loaded(tmp_path, kind)
    requests, sampling = wanted.seeded(), Sampling(temperature=temperature)
    found, trace = run(wanted.model, drafter, requests, sampling=sampling, slots=2)
    plain, _ = run(wanted.model, Nothing(), requests, sampling=sampling, slots=2)
    assert found == plain
    assert any(record.drafted for record in trace.records)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rows_draft_does_not_depend_on_its_neighbours(tmp_path: Path, kind: str) -> None:
    """Alone in a batch it keeps the same guesses, and so takes the same runs; asking for fewer changes none of them."""
    drafter, model = loaded(tmp_path, kind), wrapped("llama")
    requests = case("llama").seeded()
    sampling = Sampling(temperature=1.0)
    together, _ = run(model, drafter, requests, sampling=sampling, slots=len(requests))
    alone, _ = run(model, drafter, requests[1:2], sampling=sampling, slots=len(requests))
    assert alone == together[1:2]
    few = []
    for gamma in (1, 3):
        target = model.start(1, shape := Shape(64, 6, chunk=4))
        session = drafter.start(1, shape, target)
        for part in (target, session):
            part.admit(0, [3, 9, 4, 5])
        few.append(session.propose(gamma, sampling, Noise(torch.arange(1)), target.context.positions(gamma + 1)))
    assert few[0].tokens[0, 0] == few[1].tokens[0, 0]
    assert few[0].probs is not None and few[1].probs is not None
    torch.testing.assert_close(few[0].probs[:, 0], few[1].probs[:, 0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_text_is_read_at_once_where_steps_are_captured(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU prompts are read in pieces as they come, and the newest tokens at each commit: the same guesses."""
    drafter, model, drafts = loaded(tmp_path, kind, floor=0.0), wrapped("llama"), []
    for lazily in (True, False):
        target = model.start(2, shape := Shape(128, 6, chunk=4))
        with monkeypatch.context() as patch:
            patch.setattr(host_sync, "free", lambda device, known=lazily: known)
            session = drafter.start(2, shape, target)
        for row, prompt in enumerate((list(range(3, 90)), [8, 2])):
            for part in (target, session):
                part.admit(row, prompt)
        noise, sampling = Noise(torch.arange(2)), Sampling(temperature=1.0)
        for _ in range(2):
            target.score(torch.tensor([[5, 6], [9, 1]]))
            for part in (target, session):
                part.commit(torch.tensor([[5, 6, 7], [4, 0, 0]]), torch.tensor([3, 1]))
        target.score(torch.zeros((2, 0), dtype=torch.int64))
        drafts.append(session.propose(4, sampling, noise, target.context.positions(5)))
        assert isinstance(session, HeadSession) and session.capturable != lazily
    assert torch.equal(drafts[0].tokens, drafts[1].tokens)
    assert drafts[0].probs is not None and drafts[1].probs is not None
    torch.testing.assert_close(drafts[0].probs, drafts[1].probs, rtol=0, atol=1e-5)


def test_what_it_declares(tmp_path: Path) -> None:
    """Guesses by default are those that the checkpoint was made for; a guess costs what it reads."""
    drafter = loaded(tmp_path, "EAGLE-3")
    assert traits_of(drafter).gamma == 5 and traits_of(drafter).stops_itself
    read = wrapped("llama").facts.weights_read
    weights = eagle_heads.tensors()
    names = [name for name in weights if name.endswith("proj.weight") or name == "lm_head.weight"]
    assert drafter.config.weights_read == sum(weights[name].numel() for name in names)
    assert read is None or drafter.cost == pytest.approx(1.6 * drafter.config.weights_read / read)


def test_a_block_head_declares_the_guesses_of_its_block(tmp_path: Path) -> None:
    """One fewer than it has places where the first one is the newest token's; of its layers a guess reads a share."""
    behind, at = loaded(tmp_path / "a", "DFlash"), loaded(tmp_path / "b", "DSpark")
    assert traits_of(behind).gamma == 5 and traits_of(at).gamma == 5
    assert isinstance(behind.head, DFlashHead) and behind.head.guesses == 5 == block_heads.BLOCK
    weights = block_heads.tensors(block_heads.config("dflash"))
    layers = sum(w.numel() for name, w in weights.items() if name.startswith("layers.") and w.dim() == 2)
    assert behind.config.weights_read == layers // 5 + 96 * eagle_heads.SIZE


def test_a_directory_is_a_draft(tmp_path: Path) -> None:
    """Every format by name, in a batch, on whatever engine "auto" takes; a chain refuses a head in its middle."""
    library.save_llama(tmp_path / "target")
    size = {"vocab_size": library.ROWS}
    tensors = eagle_heads.tensors() | _mapping(torch.arange(eagle_heads.TOKENS) * 3)
    eagle_heads.saved(tmp_path / "spec", eagle_heads.speculators_config(size), tensors)
    plain = eagle_heads.tensors("midlayer") | _mapping(torch.arange(eagle_heads.TOKENS) * 3)
    eagle_heads.saved(tmp_path / "plain", eagle_heads.plain_config(**size), plain)
    block = block_heads.config("dspark", size, draft_vocab_size=library.ROWS, markov_head_type="rnn")
    eagle_heads.saved(tmp_path / "block", block, block_heads.tensors(block, rows=library.ROWS))
    llm = outrider.load(str(tmp_path / "target"), "none")
    expected = [out.tokens for out in llm.generate([PROMPT, "a"], max_new_tokens=12)]
    for name in ("spec", "plain", "block"):
        other = llm.with_draft(str(tmp_path / name))
        assert isinstance(other.drafter, PublishedDrafter) and other.drafter.name == name
        out = other.generate([PROMPT, "a"], max_new_tokens=12)
        assert [each.tokens for each in out] == expected and out[0].stats.drafter_error is None
    with pytest.raises(BadOption, match="is a head, which reads the target's activations"):
        llm.with_draft(f"copy>{tmp_path / 'spec'}")


def _mapping(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    marked = torch.zeros(library.ROWS, dtype=torch.bool).index_fill_(0, tokens, True)
    return {"d2t": tokens - torch.arange(len(tokens)), "t2d": marked}
