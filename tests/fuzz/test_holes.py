"""Faults put back one by one: the fuzzer must find each. The first five were once in the code, and no test saw them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from checks import Found, check_distribution, check_neighbours, check_texts
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy
from strategies import worlds
from test_captured import BIASED, check_captured
from test_stack import check_independent, check_stops
from torch import Tensor
from worlds import Ends, Model, Named, Planned, Strict, Toy, Two, World

from outrider import LLM, options
from outrider.call import Call
from outrider.core import sampling
from outrider.core.noise import Noise
from outrider.core.protocols import Draft
from outrider.core.sampling import LogitBias, Sampling
from outrider.core.verification import block, maximal
from outrider.decoding.loop import Decoder
from outrider.decoding.safe_drafter import SafeDrafter
from outrider.drafters.mixture import _MixtureSession
from outrider.drafters.model import _ModelSession
from outrider.errors import ProcessorError
from outrider.options import Options

RULES = worlds(kinds=("model", "named"), couplings=("maximal",))
MODELS = worlds(kinds=("model",), couplings=("maximal", "block"))


def beside(*first: Named, gamma: Planned = Planned("turns")) -> SearchStrategy[World]:
    """Rows with gammas of their own, drafted for by a model, or by a mixture with it."""

    def focused(world: World) -> World:
        model = Model(world.toy.seed, 0.5)
        return replace(
            world,
            sampling=Sampling(1.0),
            ends=Ends(30),
            drafter=Two("mixture", first[0], model) if first else model,
            gamma=gamma,
            width=5,
        )

    return worlds(new=(20,), beside=(3,), couplings=("maximal", "block")).map(focused)


def hunt(check: Callable[[World], None], strategy: SearchStrategy[World], cases: int = 300) -> None:
    """The same worlds in every run, none made smaller: what is looked for is whether one fails."""

    @settings(
        max_examples=cases, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(strategy)
    def each(world: World) -> None:
        check(world)

    each()


def found(check: Callable[[World], None], strategy: SearchStrategy[World], match: str, cases: int = 300) -> None:
    with pytest.raises(Found, match=match):
        hunt(check, strategy, cases)


# --- five faults that were there ----------------------------------------------------------------------


def test_a_q_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where options forbade all that a draft knew, its q was NaN, and what was left of p too: token 0."""

    def usable(draft: Draft, vocab_size: int) -> Draft:
        known = (draft.tokens >= 0) & (draft.tokens < vocab_size)
        proposed = (draft.proposed & known).to(torch.int64).cumprod(-1).bool()
        return replace(draft, tokens=draft.tokens.clamp(0, vocab_size - 1), proposed=proposed)

    def taken_from(draft: Draft, p: Tensor, n: Tensor) -> Tensor:
        q = torch.zeros_like(p)[:, None].repeat(1, draft.tokens.shape[1] + 1, 1)
        if draft.probs is not None:
            q[:, :-1] = draft.probs.masked_fill(~draft.proposed[..., None], 0)
        return real(draft, p, n) if draft.probs is None else (p - maximal.take(q, n)).clamp(min=0)

    real = Draft.taken_from
    monkeypatch.setattr(Draft, "usable", usable)
    monkeypatch.setattr(Draft, "taken_from", taken_from)  # today's would take nothing for NaN
    found(
        check_distribution,
        worlds(kinds=("named", "model"), couplings=("maximal",)),
        "probability zero|not the distribution",
    )


def test_prompts_that_share_their_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prompt of a call had the seed of the call; only equal prompts had the next."""

    def row_seeds(seed: int | Sequence[int], prompts: Sequence[Sequence[int]]) -> list[int]:
        given = [seed] * len(prompts) if isinstance(seed, int) else list(seed)
        before = [[*map(tuple, prompts[:i])].count(tuple(prompt)) for i, prompt in enumerate(prompts)]
        return [one + more for one, more in zip(given, before, strict=True)]

    monkeypatch.setattr(options, "row_seeds", row_seeds)
    for name in ("maximal", "gumbel"):
        with pytest.raises(AssertionError, match="depend on each other"):
            check_independent(Toy(4, 2, 1), Named("ngram"), name, seeded=False)


@pytest.mark.parametrize("half", ["cut", "batched"])
def test_a_mixture_that_learns_what_rows_beside_decide(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It learnt from guesses that were cut off before they were verified, and forgot by commits, not by drafts."""
    gamma = Planned("turns")
    if half == "cut":
        monkeypatch.setattr(_MixtureSession, "caps", property(lambda session: None, lambda session, caps: None))
    else:
        gamma = Planned("auto", 0.6)  # asks for nothing many times in a row
        learn = _MixtureSession._learn

        def _learn(session: _MixtureSession, tokens: Tensor, count: Tensor) -> None:
            session.asked = torch.ones_like(session.kind, dtype=torch.bool)
            learn(session, tokens, count)

        monkeypatch.setattr(_MixtureSession, "_learn", _learn)
    found(check_neighbours, beside(Named("copy"), gamma=gamma), "alone it is")


def test_a_recording_that_reads_what_a_cache_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 64 calls with other biases a replayed step read freed memory."""

    @lru_cache(maxsize=64)
    def sent(bias: tuple[tuple[int, float], ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        tokens, values = zip(*bias, strict=True)
        return torch.tensor(tokens, device=device), torch.tensor(values, dtype=dtype, device=device)

    monkeypatch.setattr(sampling, "sent", sent, raising=False)
    monkeypatch.setattr(LogitBias, "on", lambda bias, dtype, device: sent(tuple(bias.items()), dtype, device))
    with pytest.raises(Found, match="nobody holds"):
        check_captured(BIASED)


def test_a_stop_string_that_is_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tokenizer gives the unknown token for a string that is none; it is special, and ended every text."""

    right = LLM.call

    def wrong(llm: LLM, asked: Options) -> Call:
        call = right(llm, asked)
        ids = {llm.tokenizer.convert_tokens_to_ids(stop) for stop in asked.stop_strings}
        special = frozenset(ids & set(llm.tokenizer.all_special_ids))
        return replace(call, stopping=replace(call.stopping, eos=call.stopping.eos | special))

    monkeypatch.setattr(LLM, "call", wrong)
    with pytest.raises(AssertionError, match="ended"):
        check_stops(Toy(6, 1, 0, 0.5), Named("ngram"), ["\n\n"], "<unk>")


# --- and faults of a later review ---------------------------------------------------------------------


def test_a_p_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Block verification never kept a guess with NaN behind it, though the text ended there and nobody saw it."""
    monkeypatch.setattr(block, "_numbers", lambda p: p)

    def focused(world: World) -> World:
        ends = replace(world.ends, new=1, stop=())
        return replace(world, toy=replace(world.toy, broken=(2,)), sampling=Sampling(1.0), ends=ends)

    found(
        check_distribution,
        worlds(kinds=("model", "hostile"), couplings=("block",)).map(focused),
        "not the distribution",
    )


@pytest.mark.parametrize("fault", ["behind the end", "behind nothing drawn"])
def test_a_constraint_that_is_asked_where_it_has_no_answer(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked behind end tokens among the guesses, and behind what was "drawn" from a q that is no number."""
    if fault == "behind the end":
        monkeypatch.setattr(Decoder, "ending", lambda decoder, requests: decoder)
    else:
        monkeypatch.setattr(Sampling, "only", lambda sampling, rows: sampling)

    def focused(world: World) -> World:
        rule = Strict((1,), (2,))  # token 0 stands for nothing drawn
        return replace(world, sampling=Sampling(1.0, processors=(rule,)), ends=Ends(4, rule.ends), prompt=(1, 1))

    with pytest.raises(ProcessorError, match="asked behind"):
        hunt(check_texts, worlds(beside=(0,), kinds=("model", "cascade")).map(focused))


# --- wrong rules --------------------------------------------------------------------------------------


def test_a_wrong_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rejection the token comes from p, not from what is left of it."""
    monkeypatch.setattr(Draft, "taken_from", lambda draft, p, n: p)
    found(check_distribution, RULES, "not the distribution")


def test_acceptance_by_the_same_numbers_in_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """r counts from the start of a run, not by position."""

    def kept(p: Tensor, draft: Draft, noise: Noise, at: Tensor) -> Tensor:
        guesses = draft.tokens.shape[1]
        r = noise.uniform("accept", at[:, :guesses] - at[:, :1])
        p_of_x = p[:, :guesses].gather(-1, draft.tokens[..., None])[..., 0]
        return maximal.accepted_prefix(draft.proposed & (r * draft.of_tokens() <= p_of_x))

    monkeypatch.setattr(maximal, "kept", kept)
    found(check_distribution, RULES, "not the distribution")


def changed(monkeypatch: pytest.MonkeyPatch, change: Callable[[Draft], Draft]) -> None:
    """What draft models propose is changed on its way out."""
    real = _ModelSession.propose

    def propose(self: _ModelSession, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        draft = real(self, gamma, sampling, noise, at)
        return draft if draft.probs is None else change(draft)

    monkeypatch.setattr(_ModelSession, "propose", propose)


def test_raw_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn from one q, judged by another that knows of more tokens."""

    def raw(draft: Draft) -> Draft:
        assert draft.probs is not None
        return replace(draft, probs=0.6 * draft.probs + 0.4 / draft.probs.shape[-1])

    changed(monkeypatch, raw)
    found(check_distribution, MODELS, "not the distribution")


def test_an_argmax_with_a_soft_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """The likeliest token, reported as if it had been drawn."""

    def argmax(draft: Draft) -> Draft:
        assert draft.probs is not None
        return replace(draft, tokens=draft.probs.nan_to_num(-1.0).argmax(-1))

    changed(monkeypatch, argmax)
    found(check_distribution, MODELS, "not the distribution")


def test_a_gamma_that_depends_on_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows share a run of the drafter: without a cap each gets as many guesses as the one that asked for most."""
    monkeypatch.setattr(SafeDrafter, "cap", lambda self, guesses: None)
    found(check_neighbours, beside(), "alone it is")
