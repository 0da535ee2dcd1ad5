"""Decoding with trees of guesses on toys: the text of plain decoding, for every drafter that can be forked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import run
from outrider.core.noise import row_seeds
from outrider.core.prices import Ladder
from outrider.core.protocols import Drafter, Verifier
from outrider.core.sampling import Sampling
from outrider.core.token_tree import ROOT, TokenTree
from outrider.core.verification.block import block_coupling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder
from outrider.decoding.request import Request
from outrider.decoding.step_runner import Rule
from outrider.decoding.stopping import Stopping
from outrider.drafters import Cascade, Copying, Fallback, ModelDrafter, Ngram, Nothing, Uniform
from outrider.errors import BadOption, NumericalError
from outrider.models.toy import ToyModel, ToySession
from outrider.planning.policies import Auto
from outrider.planning.tree_costs import TreeCosts, floors
from outrider.trace import Trace, summarise

PROMPTS = ((1, 2, 0, 1, 2), (3,), (4, 4, 2))
TARGET = ToyModel(5, order=2, seed=11, sharpness=1.0)
NEAR = ModelDrafter(TARGET.near(0.5), "near")
FAR = ModelDrafter(ToyModel(5, seed=5, sharpness=3.0), "far")
ALL: dict[str, Drafter] = {
    "near": NEAR,
    "far": FAR,
    "self": ModelDrafter(TARGET, "self"),
    "cool": ModelDrafter(TARGET.near(0.5), "cool", sampling=Sampling(0.4, top_k=3)),
    "uniform": Uniform(),
    "copy": Copying(longest=3),
    "ngram": Ngram(order=3),
    "auto": Fallback(Copying(longest=3), Ngram(order=3)),
    "none": Nothing(),
}
SAMPLINGS = {
    "temperature 1": Sampling(1.0),
    "top-k": Sampling(1.0, top_k=3),
    "penalties": Sampling(1.0, repetition_penalty=1.4, frequency_penalty=0.6, presence_penalty=0.4),
    "everything": Sampling(1.3, top_k=4, top_p=0.95, min_p=0.02, frequency_penalty=1.0, logit_bias={3: 0.7}),
}


def requests(length: int = 16, **options: Any) -> list[Request]:
    seeds = row_seeds(5, PROMPTS)
    stopping = Stopping(length, **options)
    return [Request(prompt, stopping, seed) for prompt, seed in zip(PROMPTS, seeds, strict=True)]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("nodes", [1, 4, 8])
def test_greedy_text_is_plain_decodings(name: str, nodes: int) -> None:
    """Catches a candidate that is kept though the target prefers another, and a path that is put together wrongly."""
    plain, _ = run(TARGET, Nothing(), requests(), gamma=0)
    for gamma in (1, 3, Auto(clock=False)):
        found, trace = run(TARGET, ALL[name], requests(), gamma=gamma, tree=nodes)
        assert found == plain, (name, nodes, gamma)
        assert trace.drafter_error is None


@pytest.mark.parametrize("options", SAMPLINGS)
@pytest.mark.parametrize("name", ["near", "cool", "copy", "ngram", "auto"])
def test_gumbel_text_is_plain_decodings(name: str, options: str) -> None:
    """Catches penalties behind another path than a node's own, and noise that a tree moves to another position."""
    sampling = SAMPLINGS[options]
    plain, _ = run(TARGET, Nothing(), requests(), gamma=0, sampling=sampling)
    found, _ = run(TARGET, ALL[name], requests(), gamma=4, sampling=sampling, tree=6)
    assert found == plain


@pytest.mark.parametrize(("temperature", "gain"), [(0.0, 1.2), (1.0, 1.05)])
def test_a_tree_gives_more_tokens_than_a_chain(temperature: float, gain: float) -> None:
    """Catches candidates that are never looked at: as many guesses, a draft that is often right in its second."""
    target = ToyModel(20, order=2, seed=3, sharpness=1.0)
    drafter, verifier = ModelDrafter(target.near(0.8), "draft"), maximal_coupling if temperature else gumbel_coupling
    chain, tree = (
        summarise(run(target, drafter, requests(60), 4, Sampling(temperature), verifier, **options)[1])
        for options in ({}, {"tree": 4})
    )
    assert tree.tokens_per_run > gain * chain.tokens_per_run
    assert tree.drafted <= 4 * tree.runs and tree.tokens == chain.tokens


def test_a_good_draft_gets_a_chain() -> None:
    """Catches a tree that spends its guesses on second candidates where first ones are nearly always kept."""
    chain, tree = (
        summarise(run(TARGET, ALL["self"], requests(100), gamma=4, sampling=Sampling(1.0), **options)[1])
        for options in ({}, {"tree": 4})
    )
    assert tree.tokens_per_run > 0.9 * chain.tokens_per_run


def test_stops_and_ends_cut_the_text_where_plain_decoding_does() -> None:
    """Catches guesses that are run behind an end token, and tokens behind one that enter the text."""
    for ends in ({1}, {0, 3}):
        rows = requests(24, eos=frozenset(ends))
        plain, _ = run(TARGET, Nothing(), rows, gamma=0)
        found, trace = run(TARGET, ALL["self"], rows, gamma=6, tree=8)
        assert found == plain
        assert all(record.emitted <= record.accepted + 1 for record in trace.records)


def test_processors_see_the_path_of_a_node() -> None:
    """Catches a constraint that is asked behind another text than plain decoding would ask it behind."""

    def no_repeats(ids: Tensor, scores: Tensor) -> Tensor:
        return scores.scatter(1, ids[:, -1:], -torch.inf)

    sampling = Sampling(processors=(no_repeats,))
    plain, _ = run(TARGET, Nothing(), requests(), gamma=0, sampling=sampling)
    found, _ = run(TARGET, ALL["near"], requests(), gamma=4, sampling=sampling, tree=8)
    assert found == plain


class _Broken(ToySession):
    """Gives NaN behind the token 2."""

    def score(self, tail: Tensor) -> Tensor:
        logits = super().score(tail)
        last = self.context.positions(tail.shape[1] + 1, offset=-1)
        return logits.masked_fill((self.context.tokens.gather(1, last) == 2)[..., None], torch.nan)


class _BrokenModel(ToyModel):
    def start(self, rows: int, shape: Any) -> ToySession:
        return _Broken(self, rows, shape)


def test_bad_logits_end_a_text_where_they_are_met() -> None:
    """Catches NaN behind a candidate that is not kept, which is nobody's business, and behind one that is."""
    model = _BrokenModel(5, order=2, seed=11, sharpness=1.0)
    for row in requests(12):
        texts = []
        for drafter, options in ((Nothing(), {}), (ALL["near"], {"tree": 8})):
            decoder, events = Decoder(model, drafter, gumbel_coupling, Sampling(), 4 if options else 0, **options), []
            with suppress(NumericalError):
                for event in decoder.stream([row], Trace()):
                    events.append(event)
            texts.append((events[-1].row.tokens, events[-1].row.finish_reason))
        assert texts[0] == texts[1]


def decoder_of(verifier: Verifier = gumbel_coupling, **options: Any) -> Decoder:
    return Decoder(TARGET, ALL["near"], verifier, Sampling(), **{"gamma": 4, **options})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tree": 0}, "tree must be at least 1"),
        ({"tree": 9}, "width=10"),
        ({"tree": 4, "verifier": block_coupling}, "judges chains of guesses only"),
        ({"tree": 4, "gamma": 0}, "gamma=0 makes no guesses, and tree=4 is made of them"),
    ],
)
def test_what_a_tree_cannot_be_is_refused(options: dict[str, Any], words: str) -> None:
    """Catches an option that is ignored."""
    with pytest.raises(BadOption, match=words):
        decoder_of(**options)


def test_requests_that_a_tree_does_not_honour_are_refused() -> None:
    """Catches a request's own rule or gamma that nobody reads, and a server that decodes with chains instead."""
    decoder = decoder_of(tree=4)
    for own in ({"gamma": 2}, {"rule": Rule(maximal_coupling, Sampling(1.0))}, {"source": (1, 2)}):
        with pytest.raises(BadOption, match="tree"):
            list(decoder.stream([replace(requests()[0], **own)], Trace()))
    with pytest.raises(BadOption, match="a server does not decode with trees"):
        next(decoder.serve(decoder.queue(64), Trace(), 64, 1))


def test_paths_of_a_tree() -> None:
    """Catches nodes that are numbered behind their children, and paths that miss a node."""
    tree = TokenTree((5, 6, 7, 8), (ROOT, 0, ROOT, 1))
    assert tree.depths == (1, 2, 1, 3) and tree.path(3) == (0, 1, 3) and tree.text(2) == (7,)
    assert tree.children(ROOT) == (0, 2) and tree.children(3) == () and tree.path(ROOT) == ()


def test_a_drafter_that_cannot_be_forked_is_refused_by_name() -> None:
    """Catches a tree that quietly becomes plain decoding."""
    with pytest.raises(BadOption, match="tree: .* has no fork"):
        run(TARGET, Cascade(FAR, NEAR, guesses=2), requests(), gamma=4, tree=4)


def test_rows_that_cost_are_left_alone() -> None:
    """Catches a planner that runs guesses however dear they are, or none though they are free."""
    free, dear = Ladder((1.0,) * 5, (0.0,) * 5), Ladder((1.0, 3.0, 5.0, 7.0, 9.0), (0.0,) * 5)
    assert floors(free, 1.0) == [0.0] * 4
    assert min(floors(dear, 1.0)) > 1
    stepped = Ladder((1.0, 1.6, 1.6, 1.6, 1.6), (0.0,) * 5)
    assert floors(stepped, 1.0)[0] == pytest.approx(0.15)
    costs = TreeCosts(dear)
    costs.learn(0, 1)
    assert costs.time == 1 and min(costs.floors) > 1
