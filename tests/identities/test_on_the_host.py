"""What a CPU does a row at a time, in numpy or compiled: the bits of the formulas for any device, for any numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider.core import draft as draft_module
from outrider.core import host_sync, noise, numpy_ops
from outrider.core import top_p as module
from outrider.core.algorithm import Step
from outrider.core.noise import Noise, counter_of
from outrider.core.protocols import Draft, Verifier
from outrider.core.top_p import in_order, nucleus
from outrider.core.verification import maximal
from outrider.core.verification.choose import VERIFIERS
from outrider.core.verification.lenient import lenient

SIZE = 1500  # races of so many are not run in full
COMPILED = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")
TINIEST = float(np.finfo(np.float32).smallest_subnormal)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_sync, "on_cpu", False)
        yield


def spread(seed: int, rows: int = 1, flat: float = 4.0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return (torch.randn((rows, SIZE), generator=drawn) * flat).softmax(-1)


def only(*places: tuple[int, float]) -> Tensor:
    weights = torch.zeros(SIZE)
    for place, weight in places:
        weights[place] = weight
    return weights


WEIGHTS = {
    "any": spread(0)[0],
    "even": torch.full((SIZE,), 1 / SIZE),
    "nothing": torch.zeros(SIZE),
    "one token": only((700, 1.0)),
    "two that tie": only((3, 0.5), (1499, 0.5)),
    "one tiny token": only((41, TINIEST)),
    "subnormal": spread(1)[0] * 1e-38,
    "all but nothing": torch.full((SIZE,), TINIEST),
    "bounds that round to nothing": spread(2)[0] * 1e-34,
    "bounds that lose bits": spread(3)[0] * 1e-29,
    "bounds near the end": spread(4)[0] * 1e-27,
    "large": spread(5)[0] * 1e30,
    "infinite": only((9, torch.inf), (4, torch.inf), (5, 1.0)),
    "no numbers": torch.full((SIZE,), torch.nan),
    "one that is no number": only((3, 0.5), (8, torch.nan), (9, torch.nan), (11, 0.5)),
}


@pytest.mark.parametrize("name", WEIGHTS)
@pytest.mark.parametrize("way", ["numpy", pytest.param("compiled", marks=COMPILED)])
def test_winners_of_races_among_any_weights(name: str, way: str) -> None:
    """Bounds of weights below 1e-28 were rounded to nothing, and the wrong token won; compiled code passed NaN by."""
    weights, counter = WEIGHTS[name], counter_of(torch.arange(SIZE))
    first = noise.first_to_arrive
    if way == "compiled":
        from outrider.kernels.numba import race

        first = race.first
    for seed in range(60):
        key, at = Noise(torch.tensor([seed])), torch.tensor([[seed]])
        expected = (weights / key.race("token", at, SIZE)[0, 0]).argmax()
        assert first(weights.numpy(), counter.numpy(), int(key.keys("token", at))) == int(expected)


def drafts(p: Tensor) -> dict[str, Draft]:
    """Of two rows with three guesses: q near p, of some tokens only, points, ragged, and with what is no number."""
    q = (p[:, :3] + spread(8, 6).view(2, 3, SIZE)) / 2
    tokens = q.argmax(-1)
    all_of_them, ragged = torch.ones((2, 3), dtype=torch.bool), torch.tensor([[True, False, False], [True, True, True]])
    known = torch.arange(0, SIZE, 3)
    some = q[..., known] / q[..., known].sum(-1, keepdim=True)
    hostile = q.clone()
    hostile[0, 0, ::2], hostile[1, 0, ::3], hostile[1, 1, 5] = torch.nan, -1.0, torch.inf
    return {
        "near": Draft(tokens, q, all_of_them),
        "the same": Draft(p[:, :3].argmax(-1), p[:, :3].clone(), all_of_them),
        "some tokens": Draft(known[some.argmax(-1)], some, all_of_them, support=known),
        "points": Draft(tokens, None, all_of_them),
        "ragged": Draft(tokens, q, ragged),
        "ragged points": Draft(tokens, None, ragged),
        "hostile": Draft(tokens, hostile, all_of_them),
        "double": Draft(tokens, q.double(), all_of_them),
        "none": Draft.empty(2, p.device),
    }


def target(name: str) -> Tensor:
    p = spread(7, 8).view(2, 4, SIZE).clone()
    p[0, 1], p[1, 0] = {
        "any": (p[0, 1], p[1, 0]),
        "one token and zeros": (only((5, 1.0)), p[1, 0] * (torch.arange(SIZE) % 2)),
        "tiny": (p[0, 1] * 1e-38, p[1, 0] * 1e-30),
        "no numbers": (torch.full((SIZE,), torch.nan), p[1, 0]),
    }[name]
    return p


@pytest.fixture(params=["numpy", pytest.param("compiled", marks=COMPILED)])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Whether judging is left to numpy, or to numba where it may be: not what some other test has imported."""

    def kernel(of: str, name: str) -> Any:
        if request.param == "numpy" or of != "verdicts":
            return None
        from outrider.kernels.numba import verdicts

        return vars(verdicts)[name]

    monkeypatch.setattr(draft_module, "loaded_kernel", kernel)
    monkeypatch.setattr(maximal, "loaded_kernel", kernel)
    return str(request.param)


@pytest.mark.parametrize("rule", [*VERIFIERS.values(), lenient(0.5)], ids=lambda rule: rule.name)
@pytest.mark.parametrize("name", ["any", "one token and zeros", "tiny", "no numbers"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.usefixtures("way")
def test_verdicts_are_those_of_any_device(rule: Verifier, name: str, dtype: torch.dtype) -> None:
    """Residuals over a vocabulary took 2 ms in torch beside runs of 10; in numpy they must be the same to the bit."""
    p = target(name).to(dtype)
    for kind, draft in drafts(target("any")).items():
        for seed in range(6):
            streams, at = Noise(torch.tensor([seed, seed + 9])), torch.arange(4).expand(2, -1) + 11
            at = at[:, : draft.tokens.shape[1] + 1]
            seen = p[:, : draft.tokens.shape[1] + 1]
            here = rule(seen, draft, streams, at)
            with as_on_a_gpu():
                there = rule(seen, draft, streams, at)
            assert torch.equal(here.accepted, there.accepted), kind
            assert torch.equal(here.token, there.token), kind
        if draft.tokens.shape[1]:
            n = torch.tensor([seed % 3, 3])
            here_rest = draft.taken_from(seen[:, 1], n)
            with as_on_a_gpu():
                assert torch.equal(here_rest.nan_to_num(-1), draft.taken_from(seen[:, 1], n).nan_to_num(-1)), kind


def drafts_of_one_row(p: Tensor) -> dict[str, Draft]:
    """With q of some tokens: near p, p itself, far off, ragged, hostile, and with a guess that is none of them."""
    known = torch.arange(0, SIZE, 3)
    near = (p[:, :3] + spread(8, 3)[None]) / 2
    likely = [
        (near[..., known] / near[..., known].sum(-1, keepdim=True)),
        p[:, :3, known],
        spread(9, 3)[None, :, known],
    ]
    tokens, sure = known[likely[0].argmax(-1)], torch.ones((1, 3), dtype=torch.bool)
    hostile = likely[0].clone()
    hostile[0, 0, ::2], hostile[0, 1, ::3], hostile[0, 2, 5] = torch.nan, -1.0, torch.inf
    return {
        "near": Draft(tokens, likely[0], sure, support=known),
        "p itself": Draft(known[likely[1].argmax(-1)], likely[1], sure, support=known),
        "far off": Draft(known[likely[2].argmax(-1)], likely[2], sure, support=known),
        "ragged": Draft(tokens, likely[0], torch.tensor([[True, False, False]]), support=known),
        "hostile": Draft(tokens, hostile, sure, support=known),
        "a guess it does not know": Draft(torch.tensor([[3, 4, SIZE - 1]]), likely[0], sure, support=known),
    }


@COMPILED
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("name", ["any", "one token and zeros", "tiny", "no numbers"])
def test_one_row_is_judged_in_one_call(name: str, row: int) -> None:
    """Judging the guesses of a head took 0.7 ms of a run of 12; compiled a sixth, and the verdict is the same."""
    from outrider.kernels.numba import verdicts

    assert numpy_ops.loaded_kernel("verdicts", "judge") is verdicts.judge
    p, found = target(name)[row : row + 1], set()
    for kind, draft in drafts_of_one_row(target("any")[row : row + 1]).items():
        for seed in range(30):
            streams, at = Noise(torch.tensor([seed])), torch.arange(4)[None] + 11
            here = maximal.in_one_call(p, draft, streams, at)
            assert here is not None, "or nothing would be compared"
            with as_on_a_gpu():
                there = maximal.maximal_coupling(p, draft, streams, at)
            assert torch.equal(here.accepted, there.accepted), kind
            assert torch.equal(here.token, there.token), kind
            found.add(int(here.accepted))
    assert len(found) > 1 or name != "any", "or nothing was rejected, or nothing kept"


@pytest.mark.parametrize("way", ["compiled"], indirect=True)
@COMPILED
def test_tokens_that_are_none_are_no_memory(way: str) -> None:
    """Compiled code checks no bounds: what a drafter of another vocabulary says it knows was read and written behind
    the end of p. numpy refuses it, and the drafter is left out."""
    p = target("any")[:1]
    for known in (torch.arange(SIZE - 3, SIZE + 3), torch.arange(-3, 3), torch.tensor([1, 2, 1 << 40])):
        q = torch.full((1, 3, len(known)), 1 / len(known))
        draft = Draft(
            known[known.clamp(0, SIZE - 1) == known][:1].expand(1, 3), q, torch.ones((1, 3)).bool(), support=known
        )
        if int(known[-1]) >= SIZE:  # negative ones numpy counts from the end
            with pytest.raises(IndexError):
                draft.overlap(p)
            with pytest.raises(IndexError):
                draft.taken_from(p[:, 0], torch.tensor([0]))
        else:
            draft.overlap(p), draft.taken_from(p[:, 0], torch.tensor([0]))
    from outrider.kernels.numba import verdicts

    short, known = np.ones((1, 1), np.float32), np.arange(5)
    assert (
        not verdicts.subtract(p[0, 0].numpy().copy(), known, short[0])
        and verdicts.shared(p[0, 0].numpy(), known, short[0]) == -1
    )
    keys, counters = np.zeros(2, np.int64), np.zeros(SIZE, np.int32)
    for tokens, q in ((np.array([SIZE]), np.ones((1, 5), np.float32)), (np.array([0]), short)):
        judged = verdicts.judge(p[0].numpy(), tokens, np.ones(1, bool), q, known, keys[:1], keys, counters)
        assert judged == (-1, 0)


@pytest.mark.parametrize("name", ["any", "one token and zeros", "tiny", "no numbers"])
@pytest.mark.usefixtures("way")
def test_what_is_told_of_a_step(name: str) -> None:
    """Overlaps up to the order of summation, and how many tokens rest on numbers."""
    p, some = target(name), {f"of one row, {k}": d for k, d in drafts_of_one_row(target("any")[:1]).items()}
    for kind, draft in (drafts(target("any")) | some).items():
        seen = p[: len(draft.tokens), : draft.tokens.shape[1] + 1]
        here = draft.overlap(seen)
        with as_on_a_gpu():
            there = draft.overlap(seen)
        assert here.dtype == there.dtype and torch.allclose(here, there, rtol=1e-5, atol=0, equal_nan=True), kind
        step = Step(draft.tokens, torch.ones(len(seen), dtype=torch.int64), draft, here, seen)
        expected = seen.amax(-1).isfinite().to(torch.int64).cumprod(-1).sum(-1)
        assert torch.equal(step.finite, expected)


def shapes_of_logits() -> dict[str, Tensor]:
    drawn = torch.Generator().manual_seed(1)
    any_of_them = torch.randn((3, 2, 5000), generator=drawn) * 4
    return {
        "any": any_of_them,
        "ties": (any_of_them * 2).round() / 2,
        "even": torch.zeros((1, 1, 3000)),
        "one token": torch.full((1, 1, 3000), -torch.inf).index_fill(-1, torch.tensor([77]), 3.0),
        "far apart": any_of_them * 100,
        "forbidden ones": any_of_them.masked_fill(any_of_them < 0, -torch.inf),
        "no numbers": any_of_them.masked_fill(any_of_them > 12, torch.nan),
        "huge": any_of_them * 1e37,
    }


@pytest.mark.parametrize("name", shapes_of_logits())
@pytest.mark.parametrize("way", ["numpy", pytest.param("compiled", marks=COMPILED)])
def test_top_p_of_any_logits(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Top-p took 0.7 ms for every guess; compiled or not, it keeps the tokens that putting all in order keeps."""
    cut = None
    if way == "compiled":
        from outrider.kernels.numba.top_p import cut
    monkeypatch.setattr(module, "loaded_kernel", lambda *names: cut)
    logits = shapes_of_logits()[name]
    for top_p in (1e-6, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9):
        expected, found = in_order(logits, top_p), nucleus(logits, top_p)
        assert torch.equal(found.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0)), top_p


def test_kernels_are_used_where_they_are_loaded() -> None:
    """Catches a name that nobody has: the slow way would be taken for good, and no test would see it."""
    pytest.importorskip("numba")
    from outrider.kernels.numba import race, top_p, verdicts

    assert numpy_ops.loaded_kernel("race", "first") is race.first
    assert numpy_ops.loaded_kernel("verdicts", "subtract") is verdicts.subtract
    assert numpy_ops.loaded_kernel("verdicts", "shared") is verdicts.shared
    assert numpy_ops.loaded_kernel("top_p", "cut") is top_p.cut
    assert numpy_ops.loaded_kernel("top_p", "nothing") is None and numpy_ops.loaded_kernel("nothing", "cut") is None
