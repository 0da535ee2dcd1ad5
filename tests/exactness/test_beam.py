"""Speculative beam search gives the hypotheses of plain beam search to the bit, and of transformers' num_beams."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import transformers as tf

import tiny
from helpers import run_only_if_asked, wrapped
from outrider.beam import rules as beam_rules
from outrider.beam import search as beam_search
from outrider.beam.rules import Hypothesis
from outrider.beam.search import BeamDecoder
from outrider.core.protocols import Drafter, LanguageModel
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, Fallback, ModelDrafter, Ngram, Nothing, Uniform
from outrider.models.toy import ToyModel
from outrider.trace import Trace, summarise

FAMILIES = ("llama", "gpt2", "t5", "bart")
WIDTHS = (2, 4, 8)
NEW_TOKENS = 9


@dataclass(frozen=True)
class Asked:
    """One beam search: everything but the model and the drafter."""

    request: Request
    beams: int
    rows: int  # u
    gamma: int
    length_penalty: float
    early_stopping: bool | str


def asked(seed: int, beams: int, encoder_decoder: bool) -> Asked:
    drawn = random.Random(1000 * beams + seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(drawn.randrange(3, tiny.VOCAB) for _ in range(count))

    stopping = Stopping(NEW_TOKENS, eos=frozenset(tokens(drawn.choice([0, 1, 1, 3]))))
    text = tokens(drawn.randrange(3, 9))
    request = Request((0,), stopping, source=text) if encoder_decoder else Request(text, stopping)
    return Asked(
        request,
        beams,
        rows=drawn.choice([beams, beams + 2, 2 * beams]),
        gamma=drawn.choice([1, 2, 4]),
        length_penalty=drawn.choice([1.0, 0.0, 2.0, -0.5]),
        early_stopping=drawn.choice([True, False, "never"]),
    )


def search(
    model: LanguageModel, drafter: Drafter, want: Asked, sampling: Sampling | None = None
) -> tuple[tuple[Hypothesis, ...], Trace]:
    decoder = Decoder(model, drafter, gumbel_coupling, sampling or Sampling(), want.gamma, want.gamma + 1)
    trace = Trace(drafter.name)
    plan = BeamDecoder(decoder, want.beams, want.rows, want.length_penalty, want.early_stopping)
    found = plan.search(want.request, trace)
    assert trace.drafter_error is None
    return found, trace


def by_transformers(network: tf.PreTrainedModel, want: Asked, **options: Any) -> list[tuple[tuple[int, ...], float]]:
    """transformers' own hypotheses and scores, alone and unpadded."""
    request = want.request
    ids = torch.tensor([list(request.prompt)])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if request.source is not None:
        source = torch.tensor([list(request.source)])
        inputs = {"input_ids": source, "attention_mask": torch.ones_like(source), "decoder_input_ids": ids}
    ends = sorted(request.stopping.eos)
    output = network.generate(
        **inputs, do_sample=False, max_new_tokens=NEW_TOKENS, eos_token_id=ends or None, num_beams=want.beams,
        num_return_sequences=want.beams, length_penalty=want.length_penalty, early_stopping=want.early_stopping,
        output_scores=True, return_dict_in_generate=True, **options,
    )  # fmt: skip
    new = output.sequences[:, len(request.prompt) :].tolist()
    return [(_cut(row, ends), s) for row, s in zip(new, output.sequences_scores.tolist(), strict=True)]


def _cut(tokens: Sequence[int], ends: Sequence[int]) -> tuple[int, ...]:
    """Without the padding behind an end."""
    stop = next((k + 1 for k, token in enumerate(tokens) if token in ends), len(tokens))
    return tuple(tokens[:stop])


def same_as_transformers(found: Sequence[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> bool:
    close = all(abs(h.score - s) <= 1e-3 * max(1, abs(s)) for h, (_, s) in zip(found, expected, strict=True))
    return close and [h.tokens for h in found] == [tokens for tokens, _ in expected]


def drafters(family: str) -> list[Drafter]:
    """Good, bad and adversarial: the target itself, another model, copying and n-grams, uniform, the opposite."""
    return [
        ModelDrafter(wrapped(family), "self"),
        ModelDrafter(wrapped(family, seed=1), "other"),
        Fallback(Copying(shortest=1), Ngram()),
        Uniform(),
        ModelDrafter(wrapped(family), "opposite", Sampling(temperature=1.0, processors=(lambda ids, scores: -scores,))),
    ]


def check(family: str, beams: int, seeds: range, drafters_each: int) -> list[float]:
    """Compare with transformers and, over several drafters, with plain search -> tokens per run with the target itself.

    A text that transformers itself changes in float64 hangs on rounding: only such a one may differ.
    """
    network, model, guessers = tiny.build(family), wrapped(family), drafters(family)
    gains = []
    for seed in seeds:
        want = asked(seed, beams, model.encoder_decoder)
        plain, trace = search(model, Nothing(), want)
        assert summarise(trace).tokens_per_run == 1
        expected = by_transformers(network, want)
        if not same_as_transformers(plain, expected):
            wide = by_transformers(tiny.build(family).double(), want)
            assert [t for t, _ in wide] != [t for t, _ in expected], f"{family}, seed {seed}: {plain} is not {expected}"
        for turn in range(drafters_each):
            drafter = guessers[(seed + turn) % len(guessers)]
            found, trace = search(model, drafter, want)
            assert found == plain, f"{family}, seed {seed}, {drafter.name}: {found} is not {plain}"  # scores to the bit
            if drafter.name == "self":
                gains.append(summarise(trace).tokens_per_run)
    return gains


@pytest.mark.parametrize("beams", WIDTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_same_hypotheses(family: str, beams: int) -> None:
    """Catches a search that is not transformers', or not the same with guesses as without."""
    assert max(check(family, beams, range(5), 1)) > 1, "with the target as its own drafter, guesses must be accepted"


@pytest.mark.slow
@pytest.mark.parametrize("beams", WIDTHS)
@pytest.mark.parametrize("family", FAMILIES)
def test_same_hypotheses_over_many_prompts(family: str, beams: int, request: pytest.FixtureRequest) -> None:
    """The same over 200 other prompts for every family and width: ``pytest tests/exactness/test_beam.py -m slow``."""
    run_only_if_asked(request)
    check(family, beams, range(5, 205), 1)


TOY = ToyModel(vocab_size=24, order=2, seed=5, sharpness=2.0)


def toy_differences(seeds: range) -> int:
    """How many toy searches come out otherwise with guesses of a drafter of middling quality than without."""
    guesser = ModelDrafter(TOY.near(0.7), "near")
    different = 0
    for seed in seeds:
        want = asked(seed, WIDTHS[seed % 3], encoder_decoder=False)
        prompt = tuple(t % TOY.vocab_size for t in want.request.prompt)
        stopping = Stopping(NEW_TOKENS, eos=frozenset(t % TOY.vocab_size for t in want.request.stopping.eos))
        want = Asked(Request(prompt, stopping), *list(vars(want).values())[1:])
        different += search(TOY, guesser, want)[0] != search(TOY, Nothing(), want)[0]
    return different


def test_same_hypotheses_on_a_toy() -> None:
    """Catches what tiny transformers are too slow to find: many searches, half of the levels accepted."""
    assert toy_differences(range(60)) == 0


def test_accepting_without_the_check_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a comparison that would pass with A.4's containment left out: unscored hypotheses simply dropped."""

    def unchecked(state: Any, rules: Any, scored: Any) -> Any:
        steps = 0
        while not state.done and (known := [h for h in state.running if h.tokens in scored.place]):
            length = len(known[0].tokens) + 1
            state = beam_rules.next_beams(state, rules, beam_rules.best_candidates(known, length, rules, scored)[0])
            steps += 1
        return state, steps

    monkeypatch.setattr(beam_search, "replay", unchecked)
    assert toy_differences(range(12)) > 0


OPTIONS: dict[str, tuple[dict[str, Any], Sampling]] = {
    "repetition_penalty": ({"repetition_penalty": 1.4}, Sampling(repetition_penalty=1.4)),
    "no_repeat_ngram": ({"no_repeat_ngram_size": 2}, Sampling(processors=(tf.NoRepeatNGramLogitsProcessor(2),))),
    "bias": ({"sequence_bias": [[[5], 1.5], [[9], -3.0]]}, Sampling(logit_bias={5: 1.5, 9: -3.0})),
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_penalties_and_processors(family: str, name: str) -> None:
    """Catches options applied before the logarithm, over the wrong prefix, or ignored; a bias forbids domination."""
    theirs, ours = OPTIONS[name]
    want = asked(3, 4, wrapped(family).encoder_decoder)
    expected = by_transformers(tiny.build(family), want, **theirs)
    for drafter in (Nothing(), ModelDrafter(wrapped(family), "self")):
        found, _ = search(wrapped(family), drafter, want, ours)
        assert same_as_transformers(found, expected)


def test_a_broken_drafter_costs_its_guesses_only() -> None:
    """Catches a search that ends with its drafter."""

    class Broken(Nothing):
        name = "broken"

        def start(self, rows: int, shape: Any, target: Any) -> Any:
            session = super().start(rows, shape, target)
            session.propose = lambda *_: 1 / 0
            return session

    want = asked(1, 2, encoder_decoder=False)
    decoder = Decoder(wrapped("llama"), Broken(), gumbel_coupling, Sampling(), want.gamma, want.gamma + 1)
    trace = Trace("broken")
    with pytest.warns(UserWarning, match="division by zero"):
        found = BeamDecoder(decoder, 2, want.rows, want.length_penalty, want.early_stopping).search(want.request, trace)
    assert found == search(wrapped("llama"), Nothing(), want)[0]
    assert trace.drafter_error == "ZeroDivisionError: division by zero"
