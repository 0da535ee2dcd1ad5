"""Real acceptance at a real cost: a trained target inflated to a large one's size, and the draft it was trained with.

The inflated model computes the trained one's function (models/inflate.py), so alpha is genuine; its weights are as
many as a large model's, so c is as small as in the paper. What was inflated stands in the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.bench.gpu import Lane, Setting
from outrider.bench.prompts import read
from outrider.bench.timing import timed
from outrider.decoding.decoder import Decoder, Request
from outrider.decoding.lanes import Lanes
from outrider.decoding.stepper import Rule
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, Nothing
from outrider.drafters.heads import HeadDrafter
from outrider.errors import BadOption
from outrider.models.graphs import Recorder
from outrider.models.huggingface import HuggingFaceModel
from outrider.models.inflate import EIGHT_BILLION, Larger, describe, inflate
from outrider.models.loading import load
from outrider.models.shapes import SIZES, build
from outrider.naming import shipped_draft
from outrider.noise import Noise
from outrider.sampling import Sampling
from outrider.theory import expected_tokens, speedup
from outrider.trace import Trace, ratio, summarise
from outrider.types import Drafter, DraftSession, Session, Shape
from outrider.verification.choose import choose

TINY = Larger(hidden=96, inner=192, layers=4, heads=12, kv_heads=3)


@dataclass(frozen=True)
class Pair:
    """An inflated target with its draft, and what to ask it."""

    target: HuggingFaceModel
    drafter: Drafter
    prompts: list[tuple[int, ...]]
    about: str


class _Narrow:
    """A session as the model before inflation would show it: the first ``size`` columns of everything."""

    def __init__(self, session: Session, size: int) -> None:
        assert session.embedding is not None and session.unembedding is not None
        self._session, self._size = session, size
        self.embedding, self.unembedding = session.embedding[:, :size], session.unembedding[:, :size]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def hidden(self) -> Tensor | None:
        hidden = self._session.hidden
        return None if hidden is None else hidden[:, : self._size]

    @property
    def states(self) -> Tensor | None:
        states = self._session.states
        return None if states is None else states[..., : self._size]


class Narrowed:
    """A head of the model before inflation, beside the inflated one."""

    def __init__(self, head: HeadDrafter) -> None:
        self.head, self.name = head, head.name

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        narrow: Any = _Narrow(target, self.head.head.config.hidden_size)
        return self.head.start(rows, shape, narrow)


def tiny_pair(device: torch.device) -> Pair:
    """For machines without a GPU: a random model drafts for itself, inflated, so that every guess must be right."""
    small = build(SIZES["tiny"], device, torch.float32)
    large = HuggingFaceModel(inflate(small.model, TINY))
    drawn = torch.Generator().manual_seed(0)
    prompts = [tuple(torch.randint(3, small.vocab_size, (9,), generator=drawn).tolist()) for _ in range(2)]
    return Pair(large, ModelDrafter(small, "itself"), prompts, describe(small.model, large.model))


def trained_pair(name: str, draft: Path | None, device: torch.device, dtype: str) -> Pair:
    """A trained Llama by name or directory, inflated to eight billion weights, with a head trained for it."""
    loaded = load(name, str(device), dtype)
    head = HeadDrafter.load(draft) if draft is not None else shipped_draft(loaded)
    if not isinstance(head, HeadDrafter):
        raise BadOption(f"no head comes with {name!r}; train one with `outrider distill` and name it with --pair-draft")
    large = HuggingFaceModel(inflate(loaded.model.model, EIGHT_BILLION))
    large.fuse()
    asked = [text for texts in read(None).values() for text in texts]
    words = loaded.tokenizer
    chat = bool(getattr(words, "chat_template", None))
    texts = [_as_chat(words, text) if chat else text for text in asked]
    prompts = [tuple(words.encode(text, add_special_tokens=not chat)) for text in texts]
    return Pair(large, Narrowed(head), prompts, describe(loaded.model.model, large.model))


def _as_chat(words: Any, text: str) -> str:
    message = [{"role": "user", "content": text}]
    return str(words.apply_chat_template(message, tokenize=False, add_generation_prompt=True))


def measure(pair: Pair, setting: Setting, tokens: int, temperatures: Sequence[float] = (0.0, 1.0)) -> dict[str, Any]:
    """alpha, c, Theorem 3.8's prediction and the speed-up reached, at each temperature. Prefill is not in it."""
    lanes = Lanes(graphs=setting.device.type == "cuda")
    result: dict[str, Any] = {"about": pair.about, "drafter": pair.drafter.name, "gamma": setting.gamma}
    for temperature in temperatures:
        rule = Rule(choose("maximal", temperature == 0), Sampling(temperature))
        plain = _decoded(pair, Nothing(), rule, replace(setting, gamma=0), lanes, tokens)
        ours = _decoded(pair, pair.drafter, rule, setting, lanes, tokens)
        stats, speed = summarise(ours), summarise(plain).tokens_per_second
        c = cost(pair, rule, setting)
        predicted = speedup(stats.alpha, setting.gamma, c) if not math.isnan(stats.alpha) else math.nan
        realised = ratio(stats.tokens_per_second, speed)
        result[f"temperature {temperature:g}"] = {
            "alpha": stats.alpha,
            "alpha_counted": stats.alpha_counted,
            "c": c,
            "tokens_per_run": stats.tokens_per_run,
            "expected_tokens_per_run": expected_tokens(stats.alpha, setting.gamma),
            "plain_tokens_per_second": speed,
            "tokens_per_second": stats.tokens_per_second,
            "speedup": realised,
            "predicted_speedup": predicted,
            "realised_over_predicted": ratio(realised, predicted),
            "tokens": stats.tokens,
        }
    return result


def _decoded(pair: Pair, drafter: Drafter, rule: Rule, setting: Setting, lanes: Lanes, tokens: int) -> Trace:
    """Every prompt, one at a time, by the product's own loop; the first call records and is not counted."""
    decoder = Decoder(
        pair.target, drafter, rule.verifier, rule.sampling, setting.gamma, setting.width, slots=1, lanes=lanes
    )
    trace = Trace(drafter.name)
    for number, prompt in enumerate([pair.prompts[0], *pair.prompts]):
        request = Request(prompt, Stopping(tokens), seed=number)
        for _ in decoder.stream([request], Trace(drafter.name) if number == 0 else trace):
            pass
    if trace.drafter_error:
        raise RuntimeError(trace.drafter_error)
    return trace


def cost(pair: Pair, rule: Rule, setting: Setting) -> float:
    """c: the time of one guess over the time of a plain target step of the same width, each timed by itself."""
    own = replace(setting, target=pair.target, draft=pair.target)
    plain = Lane(own, Nothing(), own.shape())
    step = _median(own, plain, lambda: plain.stepper.launch(rule, 0))
    lane = Lane(own, pair.drafter, own.shape())
    session, target = lane.stepper.drafter.session, lane.stepper.target
    assert session is not None
    noise = rule.verifier.noise_for_draft(Noise(lane.stepper.seeds), target.context.positions(own.gamma + 1))

    def guess() -> Tensor:
        return session.propose(own.gamma, rule.sampling, noise, target.context.positions(own.gamma + 1)).tokens

    recorder = Recorder(target, lane.stepper.drafter)
    on_gpu = own.device.type == "cuda"
    drafting = _median(own, lane, (lambda: recorder.run("guess", guess)) if on_gpu else guess)
    return drafting / own.gamma / step


def _median(setting: Setting, lane: Lane, work: Any) -> float:
    with torch.no_grad():
        times = timed(work, setting.device, setting.repeats, setting.inner, lambda: lane.stand_at(setting.context))
    return times["median"]
