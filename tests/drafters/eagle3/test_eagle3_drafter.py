"""An EAGLE-3 head as a drafter: the contract, the same text, and what ``draft=`` makes of its directory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import eagle_heads
import library
import outrider
from helpers import case, run, run_only_if_asked, wrapped
from outrider.core.abilities import forkable
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling, draw
from outrider.core.traits import traits_of
from outrider.drafters import Nothing
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.errors import BadOption
from outrider.testing import check_drafter

PROMPT = "the quick brown fox the quick"


def loaded(folder: Path, **sizes: int) -> Eagle3Drafter:
    weights = eagle_heads.tensors(embedding=1, **sizes)
    drafter = Eagle3Drafter.load(eagle_heads.saved(folder, eagle_heads.speculators_config(), weights))
    return drafter.beside(wrapped("llama").facts)


@pytest.mark.slow
def test_the_contract_of_a_drafter(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Catches a q reported that was not drawn from, keys that fall out of step, and forks that show."""
    run_only_if_asked(request)
    drafter = loaded(tmp_path)
    check_drafter(Eagle3Drafter(drafter.head, drafter.tokens, floor=0.0), wrapped("llama"))


def test_the_q_returned_is_the_q_drawn_from(tmp_path: Path) -> None:
    """Over the target's tokens, zero where the head has none; and a fork goes on from the head's own state."""
    drafter, model = loaded(tmp_path), wrapped("llama")
    drafter = Eagle3Drafter(drafter.head, drafter.tokens, floor=0.0)
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
def test_the_text_is_that_of_plain_decoding(tmp_path: Path, temperature: float) -> None:
    """At temperature 0, and with Gumbel coupling, whatever the head guesses."""
    wanted, drafter = case("llama"), loaded(tmp_path)
    requests, sampling = wanted.seeded(), Sampling(temperature=temperature)
    found, trace = run(wanted.model, drafter, requests, sampling=sampling)
    plain, _ = run(wanted.model, Nothing(), requests, sampling=sampling)
    assert found == plain
    assert any(record.drafted for record in trace.records)


def test_a_rows_draft_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    drafter, model = loaded(tmp_path), wrapped("llama")
    requests = case("llama").seeded()
    sampling = Sampling(temperature=1.0)
    together, _ = run(model, drafter, requests, sampling=sampling, slots=len(requests))
    alone, _ = run(model, drafter, requests[1:2], sampling=sampling, slots=len(requests))
    assert alone == together[1:2]


def test_what_it_declares(tmp_path: Path) -> None:
    """Guesses by default are those that the checkpoint was made for; a guess costs what it reads."""
    drafter = loaded(tmp_path)
    assert traits_of(drafter).gamma == 5 and traits_of(drafter).stops_itself
    read = wrapped("llama").facts.weights_read
    weights = eagle_heads.tensors()
    names = [name for name in weights if name.endswith("proj.weight") or name == "lm_head.weight"]
    assert drafter.config.weights_read == sum(weights[name].numel() for name in names)
    assert read is None or drafter.cost == pytest.approx(1.6 * drafter.config.weights_read / read)


def test_a_directory_is_a_draft(tmp_path: Path) -> None:
    """Both formats by name, in a batch, on whatever engine "auto" takes; a chain refuses a head in its middle."""
    library.save_llama(tmp_path / "target")
    size = {"vocab_size": library.ROWS}
    tensors = eagle_heads.tensors() | _mapping(torch.arange(eagle_heads.TOKENS) * 3)
    eagle_heads.saved(tmp_path / "spec", eagle_heads.speculators_config(size), tensors)
    plain = eagle_heads.tensors("midlayer") | _mapping(torch.arange(eagle_heads.TOKENS) * 3)
    eagle_heads.saved(tmp_path / "plain", eagle_heads.plain_config(**size), plain)
    llm = outrider.load(str(tmp_path / "target"), "none")
    expected = [out.tokens for out in llm.generate([PROMPT, "a"], max_new_tokens=12)]
    for name in ("spec", "plain"):
        other = llm.with_draft(str(tmp_path / name))
        assert isinstance(other.drafter, Eagle3Drafter) and other.drafter.name == name
        out = other.generate([PROMPT, "a"], max_new_tokens=12)
        assert [each.tokens for each in out] == expected and out[0].stats.drafter_error is None
    with pytest.raises(BadOption, match="is a head, which reads the target's activations"):
        llm.with_draft(f"copy>{tmp_path / 'spec'}")


def _mapping(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    marked = torch.zeros(library.ROWS, dtype=torch.bool).index_fill_(0, tokens, True)
    return {"d2t": tokens - torch.arange(len(tokens)), "t2d": marked}
