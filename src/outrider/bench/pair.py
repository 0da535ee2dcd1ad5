"""Measures acceptance and speed with a trained target padded to a large model's size and the draft trained for it.

The inflated model computes the trained one's function (bench/inflate.py), so alpha is genuine; its weights are as
many as a large model's, so c is as small as in the paper. What was inflated stands in the result.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.bench.gpu import StepSetting
from outrider.bench.inflate import EIGHT_BILLION, Larger, describe, inflate
from outrider.bench.loop import Decoded, decode
from outrider.bench.parts import parts
from outrider.bench.prompts import read
from outrider.bench.shapes import SIZES, build
from outrider.core.protocols import Drafter, DraftSession, Session, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.choose import choose
from outrider.decoding.loop import Decoder, Request, bucket
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import Rule
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, Nothing
from outrider.drafters.by_name import shipped_draft
from outrider.drafters.head import HeadDrafter
from outrider.errors import BadOption
from outrider.models.hub.generation_config import defaults
from outrider.models.hub.loading import Loaded, load
from outrider.models.settings import has_chat_template
from outrider.models.transformers.model import HuggingFaceModel
from outrider.theory import expected_tokens, optimal_gamma
from outrider.trace import Trace, ratio, summarise

TINY = Larger(hidden=96, inner=192, layers=4, heads=12, kv_heads=3)


@dataclass(frozen=True)
class Pair:
    """An inflated target with its draft, and what to ask it."""

    target: HuggingFaceModel
    drafter: Drafter
    prompts: list[tuple[int, ...]]
    about: str
    ends: frozenset[int] = frozenset()  # tokens that end a text
    tasks: tuple[str, ...] = ()  # what each prompt asks for, where it is known


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


@dataclass(frozen=True)
class Inflated:
    """A trained Llama padded to a larger size, and the head that was trained for it."""

    loaded: Loaded
    drafter: Narrowed
    about: str


def inflated(name: str, draft: Path | None, device: torch.device, dtype: str) -> Inflated:
    """A trained Llama by name or directory, inflated to eight billion weights, with a head trained for it."""
    loaded = load(name, str(device), dtype)
    head = HeadDrafter.load(draft) if draft is not None else shipped_draft(loaded)
    if not isinstance(head, HeadDrafter):
        raise BadOption(f"no head comes with {name!r}; train one with `outrider distill` and name its directory")
    head = HeadDrafter(head.head, head.tokens, head.name, floor=0.0)  # gamma guesses always, as the theorem has it
    small = loaded.transformers_model.model
    large = HuggingFaceModel(inflate(small, EIGHT_BILLION))
    large.fuse()
    large.find_batch_invariance()
    return Inflated(replace(loaded, model=large), Narrowed(head), describe(small, large.model))


def trained_pair(name: str, draft: Path | None, device: torch.device, dtype: str, prompts: Path | None = None) -> Pair:
    """An inflated target with its head, and prompts of a file or of six tasks."""
    asked = [(task, text) for task, texts in read(prompts).items() for text in texts]
    made = inflated(name, draft, device, dtype)
    words = made.loaded.tokenizer
    chat = has_chat_template(words)
    texts = [_as_chat(words, text) if chat else text for _, text in asked]
    encoded = [tuple(words.encode(text, add_special_tokens=not chat)) for text in texts]
    model = made.loaded.model
    assert isinstance(model, HuggingFaceModel)
    return Pair(model, made.drafter, encoded, made.about, defaults(model).eos, tuple(task for task, _ in asked))


def _as_chat(words: Any, text: str) -> str:
    message = [{"role": "user", "content": text}]
    return str(words.apply_chat_template(message, tokenize=False, add_generation_prompt=True))


def measure(pair: Pair, setting: StepSetting, tokens: int, temperature: float) -> dict[str, Any]:
    """With the setting's gamma first, then with the one that Theorem 3.8 prefers for the alpha and c found there.

    All at the setting's width: another one would round differently, and at temperature 0 write other texts.
    """
    pool = SessionPool(graphs=True)
    rule = Rule(choose("maximal", temperature == 0), Sampling(temperature))
    plain = decoded(pair, Nothing(), rule, replace(setting, gamma=0), pool, tokens)
    first = _compared(pair, rule, setting, tokens, plain)
    best = optimal_gamma(first["alpha"], first["c"], setting.width - 1) if first["examined"] else 0
    if best in (0, setting.gamma):
        return first
    return {**_compared(pair, rule, replace(setting, gamma=best), tokens, plain), "first": first}


def _compared(pair: Pair, rule: Rule, setting: StepSetting, tokens: int, plain: Decoded) -> dict[str, Any]:
    """alpha, c, Theorem 3.8's prediction, the speed-up reached, and where the two differ.

    Reached over predicted is the product of three: tokens a run over equation (1), which takes acceptance for
    independent and equal everywhere; what the end of a text cuts off; and the predicted time of a run over the real
    one, in which lies all the overhead.
    """
    ours = decoded(pair, pair.drafter, rule, setting, SessionPool(graphs=True), tokens)
    own = replace(setting, target=pair.target, context=ours.context, capacity=bucket(ours.context + 256))
    steps = parts(own, pair.drafter, rule)
    stats, gamma, c = summarise(ours.trace), setting.gamma, steps.c
    expected = expected_tokens(min(stats.alpha, 1.0), gamma) if stats.examined else math.nan
    predicted, realised = expected / (gamma * c + 1), ratio(ours.rate, plain.rate)
    return {
        "alpha": min(stats.alpha, 1.0),  # rounding may exceed 1
        "alpha_counted": stats.alpha_counted,
        "alpha_interval": stats.alpha_interval,
        "alpha_by_depth": _by_depth(ours.trace, gamma),
        "alpha_by_task": by_task(ours.trace, pair.tasks),
        "examined": stats.examined,
        "c": c,
        "gamma": gamma,
        "width": setting.width,
        "tokens": stats.tokens,
        "plain_tokens_per_second": plain.rate,
        "tokens_per_second": ours.rate,
        "speedup": realised,
        "predicted_speedup": predicted,
        "realised_over_predicted": ratio(realised, predicted),
        "of_which": {
            "tokens_a_run": ratio(ours.kept, ours.runs) / expected,
            "ends_of_texts": ratio(ours.tokens, ours.kept),
            "time_of_a_run": (gamma * c + 1) * ratio(plain.milliseconds, ours.milliseconds),
        },
        "tokens_per_run": ratio(ours.kept, ours.runs),
        "expected_tokens_per_run": expected,
        "steps": {**asdict(steps), "context": ours.context},
        "decoder_plain_ms": plain.milliseconds,
        "decoder_ms": ours.milliseconds,
        "exposed_host_plain_ms": plain.milliseconds - steps.plain_ms,
        "exposed_host_ms": ours.milliseconds - steps.speculative_ms,
    }


def decoded(pair: Pair, drafter: Drafter, rule: Rule, setting: StepSetting, pool: SessionPool, tokens: int) -> Decoded:
    decoder = Decoder(
        pair.target, drafter, rule.verifier, rule.sampling, setting.gamma, setting.width, slots=1, pool=pool
    )
    return decode(
        decoder, [Request(p, Stopping(tokens, pair.ends), seed=number) for number, p in enumerate(pair.prompts)]
    )


def _by_depth(trace: Trace, gamma: int) -> list[float]:
    """How often guess 1, 2, ... was kept where those before it were."""
    tried = [sum(r.examined > k for r in trace.records) for k in range(gamma)]
    kept = [sum(r.accepted > k for r in trace.records) for k in range(gamma)]
    return [round(ratio(a, b), 4) for a, b in zip(kept, tried, strict=True)]


def by_task(trace: Trace, tasks: tuple[str, ...]) -> dict[str, float]:
    found = {}
    for name in dict.fromkeys(tasks):
        rows = {row for row, task in enumerate(tasks) if task == name}
        found[name] = round(summarise(replace(trace, records=[r for r in trace.records if r.row in rows])).alpha, 4)
    return found
