"""Throughput against the number of requests that come at once: ours and transformers' in one process.

Before the clock starts, every number of guesses that may be asked for is captured and each batch is decoded twice;
captures that happen all the same are counted. Prefill counts. The texts of every batch are compared with those of the
same requests alone.
"""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from outrider.bench.gpu import StepSetting
from outrider.bench.shapes import weight_bytes
from outrider.bench.timing import settle, spread
from outrider.core.protocols import Drafter
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.decoding.loop import Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import Rule
from outrider.decoding.stopping import Stopping
from outrider.drafters import Nothing
from outrider.models.transformers.model import HuggingFaceModel
from outrider.planning.policies import Auto, Policy, Rehearsal
from outrider.runtime import timer
from outrider.trace import Trace

SHORTEST, LONGEST = 40, 250  # tokens of a prompt


def random_prompts(vocabulary: int, count: int, longest: int = LONGEST) -> list[tuple[int, ...]]:
    drawn = torch.Generator().manual_seed(5)
    lengths = torch.randint(min(SHORTEST, longest - 1), longest, (count,), generator=drawn).tolist()
    return [tuple(torch.randint(3, vocabulary, (length,), generator=drawn).tolist()) for length in lengths]


class DecoderUnderLoad:
    """A target with a drafter, to be asked many things at once."""

    def __init__(
        self, target: HuggingFaceModel, drafter: Drafter, rule: Rule, policy: int | Policy, width: int
    ) -> None:
        self.pool = SessionPool(graphs=True)
        # Where the text depends on gamma and a policy chooses it, seeds are drawn for every call, as without a seed:
        # only then do rows decide together.
        self.fresh = not rule.verifier.compares and not isinstance(policy, int)
        self.decoder = Decoder(
            target, drafter, rule.verifier, rule.sampling, policy, width, pool=self.pool, fresh_seeds=self.fresh
        )

    def texts(
        self, prompts: Sequence[tuple[int, ...]], tokens: int, first_seed: int = 0
    ) -> tuple[list[list[int]], Trace]:
        """``tokens`` new ones after each prompt; seeds count up from ``first_seed``, or from a number drawn now."""
        return self._texts(self.decoder, prompts, tokens, secrets.randbits(62) if self.fresh else first_seed)

    def warm_up(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Capture what calls with as many prompts may replay, and let the policy time it."""
        plain, policy = replace(self.decoder, gamma=0), self.decoder.gamma
        self._texts(plain, prompts, 2, 0)
        if not isinstance(policy, int):
            runs = Rehearsal.of_graphs(self.decoder.width - 1, policy)
            self._texts(replace(self.decoder, gamma=runs), prompts, runs.tokens, 0)

    @property
    def captures(self) -> int:
        """CUDA graphs captured so far, by the sessions that are kept."""
        return sum(runner.captures for runner in self.pool.idle)

    @staticmethod
    def _texts(
        decoder: Decoder, prompts: Sequence[tuple[int, ...]], tokens: int, first_seed: int
    ) -> tuple[list[list[int]], Trace]:
        trace = Trace(decoder.drafter.name)
        requests = [Request(prompt, Stopping(tokens), seed=seed) for seed, prompt in enumerate(prompts, first_seed)]
        rows = {event.index: event.row for event in decoder.stream(requests, trace)}
        return [list(rows[index].tokens) for index in range(len(prompts))], trace


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    found = []
    for _ in range(repeats):
        settle(device)
        began = timer.now()
        work()
        settle(device)
        found.append(timer.now() - began)
    return found


def points(
    setting: StepSetting,
    rule: Rule,
    batches: Sequence[int],
    prompts: Sequence[tuple[int, ...]],
    tokens: int,
    drafter: Drafter | None = None,
    others: bool = True,
    repeats: int = 3,
) -> Iterator[dict[str, Any]]:
    """A point for every number of requests: tokens a second, and tokens that differ from those of a request alone.

    Plain and speculative decoding take turns.
    """
    ways: dict[str, DecoderUnderLoad] = {"plain": DecoderUnderLoad(setting.target, Nothing(), rule, 0, setting.width)}
    if drafter is not None:
        ways["speculative"] = DecoderUnderLoad(setting.target, drafter, rule, Auto(), setting.width)
    some = prompts[: min(8, max(batches))]
    alone = [ways["plain"].texts([prompt], tokens, seed)[0][0] for seed, prompt in enumerate(some)]
    for count in batches:
        asked = list(prompts[:count])
        point: dict[str, Any] = {"rows": count, "tokens": tokens}
        took: dict[str, list[float]] = {name: [] for name in ways}
        for name, way in ways.items():
            way.warm_up(asked)
            first = seconds(lambda: way.texts(asked, tokens), setting.device, 1)[0]  # noqa: B023
            found, trace = way.texts(asked, tokens)
            point[name] = {"first_seconds": first, "runs": trace.runs, "prefill_seconds": trace.seconds["prefill"]}
            if name == "plain" or rule.verifier is gumbel_coupling:  # else guesses change what noise is for what
                point[name]["mismatches"] = _differing(alone, found)
        before = {name: way.captures for name, way in ways.items()}
        for turn in range(repeats):
            for name in list(ways)[:: 1 if turn % 2 else -1]:
                took[name] += seconds(lambda: ways[name].texts(asked, tokens), setting.device, 1)  # noqa: B023
        for name, times in took.items():
            point[name] |= {"tokens_per_second": count * tokens / statistics.median(times), "seconds": times}
            point[name]["captures_while_timed"] = ways[name].captures - before[name]
        if drafter is not None:
            ratios = [plain / guessed for plain, guessed in zip(took["plain"], took["speculative"], strict=True)]
            point["speculative_over_plain"] = spread(ratios)
        if others:
            point |= _others(setting, asked, tokens)
        point["roofline_tokens_per_second"] = count / _step_floor(setting)
        yield point
    for way in ways.values():
        way.pool.clear()


def _differing(alone: list[list[int]], found: list[list[int]]) -> int:
    """Tokens of the first requests that are others than without the rest."""
    pairs = zip(alone, found, strict=False)
    return sum(a != b for one, other in pairs for a, b in zip(one, other, strict=True))


def _step_floor(setting: StepSetting) -> float:
    """Seconds to read the weights once."""
    size = 2**30 if setting.device.type == "cuda" else 2**24
    source = torch.empty(size, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    took = min(seconds(lambda: target.copy_(source), setting.device, 5))
    return weight_bytes(setting.target) / (2 * size / took)


def _others(setting: StepSetting, prompts: list[tuple[int, ...]], tokens: int) -> dict[str, Any]:
    """transformers' own loops over the same model: padded, and paged with continuous batching."""
    result: dict[str, Any] = {}
    for name, work in (("transformers", _padded), ("transformers_paged", _paged)):
        try:
            work(setting, prompts, 8)
            took = seconds(lambda: work(setting, prompts, tokens), setting.device, 1)[0]  # noqa: B023
            result[name] = {"tokens_per_second": len(prompts) * tokens / took, "seconds": [took]}
        except Exception as error:  # a version without it, or a model that it refuses
            result[name] = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    return result


def _padded(setting: StepSetting, prompts: list[tuple[int, ...]], tokens: int) -> None:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=setting.device)
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=setting.device)
    setting.target.model.generate(
        ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0
    )


def _paged(setting: StepSetting, prompts: list[tuple[int, ...]], tokens: int) -> None:
    from transformers import GenerationConfig

    wanted = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, eos_token_id=-1)
    setting.target.model.generate_batch(
        inputs=[list(prompt) for prompt in prompts], generation_config=wanted, progress_bar=False
    )
