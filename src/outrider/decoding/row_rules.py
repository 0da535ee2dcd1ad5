"""One step for rows with rules of their own: requests with different options share a target run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from outrider.core.draft import Choices, Draft
from outrider.core.noise import Noise
from outrider.core.processors import ByRow
from outrider.core.protocols import Verdict, Verifier
from outrider.core.sampling import Sampling, SamplingByRow
from outrider.decoding.step_runner import Rule
from outrider.errors import require

Rows = tuple[int, ...]
T = TypeVar("T", Sampling, Verifier)


def joint_rule(rules: Mapping[int, Rule]) -> Rule:
    """The rule of a step for rows with these rules, by slot: one that they share as it is, else each its own."""
    wanted = [rule.logprobs for rule in rules.values() if rule.logprobs is not None]
    sampling = _grouped([(rule.sampling, slot) for slot, rule in rules.items()])
    verifiers = _grouped([(rule.verifier, slot) for slot, rule in rules.items()])
    if len(verifiers) > 1 or len(sampling) > 1:
        _check(rules.values())
    return Rule(
        verifiers[0][0] if len(verifiers) == 1 else _by_row(verifiers),
        sampling[0][0] if len(sampling) == 1 else SamplingByRow.of(sampling),
        max(wanted, default=None),
    )


def _check(rules: Iterable[Rule]) -> None:
    """Refuse what only a batch of equal rows can have."""
    for rule in rules:
        plain = Verifier("", rule.verifier.rule, True, True)
        bounded = (rule.verifier.sees, rule.verifier.ceiling) != (plain.sees, plain.ceiling)
        require(not bounded, f"rows of coupling {rule.verifier.name!r} and rows of other rules cannot share a batch")
        by_slot = any(isinstance(one, ByRow) for one in rule.sampling.processors)
        require(not by_slot, "logits processors by row and rows with other options cannot share a batch")


def _grouped(entries: list[tuple[T, int]]) -> list[tuple[T, Rows]]:
    """Rows with equal options or rules together; options with processors of their own are equal to themselves only."""
    kinds: list[T] = []
    members: list[list[int]] = []
    for one, slot in entries:
        place = next((place for place, kind in enumerate(kinds) if kind is one or kind == one), len(kinds))
        if place == len(kinds):
            kinds.append(one)
            members.append([])
        members[place].append(slot)
    return [(kind, tuple(slots)) for kind, slots in zip(kinds, members, strict=True)]


@dataclass(frozen=True)
class _ByRow(Verifier):
    """Verifies each row by its own rule."""

    groups: tuple[tuple[Verifier, Rows], ...] = ()

    def __call__(self, p: Tensor | Choices, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        assert isinstance(p, Tensor)  # it does not compare tokens alone
        accepted, token = torch.zeros_like(at[:, 0]), torch.zeros_like(at[:, 0])
        for verifier, own in self.groups:
            rows = torch.tensor(own, device=at.device)
            verdict = verifier(p[rows], _of_rows(draft, rows), noise.of_rows(rows), at[rows])
            accepted[rows], token[rows] = verdict.accepted, verdict.token
        return Verdict(accepted, token)

    def noise_for_draft(self, noise: Noise, at: Tensor) -> Noise:
        parts = tuple((verifier.noise_for_draft(noise, at), rows) for verifier, rows in self.groups)
        return NoiseByRow(noise.seeds, "/by row", parts)


def _by_row(groups: list[tuple[Verifier, Rows]]) -> Verifier:
    def never(p: object, draft: Draft, noise: Noise, at: Tensor) -> Verdict:
        raise AssertionError("each row is verified by its own rule")

    exact = all(verifier.exact for verifier, _ in groups)
    return _ByRow("by row", never, exact, shares_noise=False, capturable=False, groups=tuple(groups))


def _of_rows(draft: Draft, rows: Tensor) -> Draft:
    probs = None if draft.probs is None else draft.probs[rows]
    return replace(draft, tokens=draft.tokens[rows], probs=probs, proposed=draft.proposed[rows])


@dataclass(frozen=True)
class NoiseByRow(Noise):
    """Streams of randomness that rows have from different places: shared with the target, or independent of it."""

    parts: tuple[tuple[Noise, Rows], ...] = ()

    def child(self, name: str) -> Noise:
        return replace(self, parts=tuple((noise.child(name), rows) for noise, rows in self.parts))

    def of_rows(self, rows: Tensor) -> Noise:
        order, parts = rows.tolist(), []
        for noise, own in self.parts:
            if places := tuple(place for place, row in enumerate(order) if row in own):
                parts.append((noise.of_rows(rows), places))
        return replace(self, seeds=self.seeds[rows], parts=tuple(parts))

    def of_run(self, at: Tensor) -> Noise:
        return replace(self, parts=tuple((noise.of_run(at), rows) for noise, rows in self.parts))

    def keys(self, stream: str, at: Tensor) -> Tensor:
        keys = torch.zeros_like(at)
        for noise, own in self.parts:
            rows = torch.tensor(own, device=at.device)
            keys[rows] = noise.keys(stream, at)[rows]
        return keys
