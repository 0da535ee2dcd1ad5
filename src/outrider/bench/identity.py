"""Compares tokens: CUDA graph replay with eager steps, and speculative with plain decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outrider.bench.gpu import COUPLED, GREEDY, StepSetting
from outrider.core.noise import Noise
from outrider.core.protocols import Drafter
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.drafters import ModelDrafter, Nothing
from outrider.drafters.known_text import KnownText
from outrider.kernels.triton import available

RULES = {"temperature 0": GREEDY, "temperature 1": COUPLED}


def texts(
    setting: StepSetting, drafter: Drafter, rule: Rule, prompts: list[list[int]], count: int, gamma: int, graphs: bool
) -> tuple[list[list[int]], int]:
    """``count`` new tokens after each prompt, and the steps they took."""
    longest = max(map(len, prompts)) + count + 3 * setting.width
    shape = setting.shape(capacity=max(256, 1 << (longest - 1).bit_length()))
    runner = StepRunner((setting.target, drafter), len(prompts), shape, graphs)
    for row, prompt in enumerate(prompts):
        runner.target.admit(row, prompt)
        runner.drafter.admit(row, prompt)
        runner.seeds[row] = row
    found: list[list[int]] = [[] for _ in prompts]
    steps, ended = 0, set()
    while min(map(len, found)) < count:
        host = runner.launch(rule, gamma).read()
        steps += 1
        for row, text in enumerate(found):
            text.extend(host.row(row)[0])
            if len(text) >= count and row not in ended:
                ended.add(row)
                runner.target.release(row)
                runner.drafter.release(row)
    if runner.drafter.error:
        raise RuntimeError(runner.drafter.error)
    return [text[:count] for text in found], steps


def compare(setting: StepSetting, rows: int, count: int, spoiled: float) -> dict[str, Any]:
    """Plain text first; then speculation with guesses from that text, some spoiled: mismatches among the tokens."""
    chosen = torch.Generator().manual_seed(1)
    prompts = [
        torch.randint(3, setting.target.vocab_size, (5 + 3 * row,), generator=chosen).tolist() for row in range(rows)
    ]
    result: dict[str, Any] = {}
    for name, rule in RULES.items():
        plain, plain_steps = texts(setting, Nothing(), rule, prompts, count, 0, graphs=True)
        known = _table(prompts, plain)
        guessed, steps = texts(setting, KnownText(known, spoiled), rule, prompts, count, setting.gamma, graphs=True)
        result[name] = {
            "tokens": rows * count,
            "mismatches": _differing(plain, guessed),
            "different_tokens": len({token for text in plain for token in text}),
            "plain_steps": plain_steps,
            "speculative_steps": steps,
        }
    return result


def replayed_is_eager(setting: StepSetting, count: int) -> dict[str, Any]:
    """The same step functions run one by one and replayed, with a draft model: mismatches among the tokens."""
    prompts = [[5, 6, 7, 8], [9]]
    result = {}
    for name, rule in RULES.items():
        drafter = ModelDrafter(setting.draft)
        eager, _ = texts(setting, drafter, rule, prompts, count, setting.gamma, graphs=False)
        replayed, _ = texts(setting, drafter, rule, prompts, count, setting.gamma, graphs=True)
        plain, _ = texts(setting, Nothing(), rule, prompts, count, 0, graphs=False)
        result[name] = {
            "tokens": 2 * count, "mismatches": _differing(eager, replayed), "plain_eager": _differing(plain, replayed)
        }  # fmt: skip
    return result


def same_noise(setting: StepSetting) -> dict[str, Any]:
    """Noise made on this device against noise made on a CPU, bit by bit."""
    seeds, at = torch.tensor([0, 7, -(2**60)]), torch.tensor([[1, 2], [511, 512], [100_000, 3]])
    here = Noise(seeds.to(setting.device)).race("token", at.to(setting.device), setting.target.vocab_size).cpu()
    wanted, available.wanted = available.wanted, False
    try:
        torched = Noise(seeds.to(setting.device)).race("token", at.to(setting.device), setting.target.vocab_size).cpu()
    finally:
        available.wanted = wanted
    there = Noise(seeds).race("token", at, setting.target.vocab_size)
    return {
        "values": there.numel(),
        "different": int((here != there).sum()),
        "different_without_kernel": int((torched != there).sum()),
    }


def _table(prompts: list[list[int]], texts: list[list[int]]) -> Tensor:
    rows = [prompt + text for prompt, text in zip(prompts, texts, strict=True)]
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


def _differing(ours: list[list[int]], theirs: list[list[int]]) -> int:
    return sum(a != b for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))
