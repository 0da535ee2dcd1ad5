"""Options out of range are refused with one line: the parameter, the rule, the value received."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outrider.core.sampling import Sampling
from outrider.errors import BadOption, OutriderError
from outrider.options import Options

BAD: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, r"temperature must be at least 0, got -0.1"),
    ({"temperature": float("nan")}, r"temperature must be at least 0, got nan"),
    ({"temperature": float("inf")}, r"temperature must be below 1e6, got inf"),
    ({"temperature": "hot"}, r"temperature must be a number, got 'hot'"),
    ({"top_k": 0}, r"top_k must be at least 1, got 0"),
    ({"top_k": 2.5}, r"top_k must be a whole number"),
    ({"top_k": True}, r"top_k must be a whole number"),
    ({"top_p": 0}, r"top_p must be above 0 and at most 1, got 0"),
    ({"top_p": 1.01}, r"top_p must be above 0 and at most 1, got 1.01"),
    ({"top_p": None}, r"top_p must be a number, got None"),
    ({"min_p": -0.1}, r"min_p must be at least 0 and at most 1"),
    ({"min_p": 2}, r"min_p must be at least 0 and at most 1"),
    ({"repetition_penalty": 0}, r"repetition_penalty must be above 0"),
    ({"frequency_penalty": 2.5}, r"frequency_penalty must be at least -2 and at most 2"),
    ({"presence_penalty": -3}, r"presence_penalty must be at least -2 and at most 2"),
]

BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"max_new_tokens": 0}, r"max_new_tokens must be a whole number of at least 1, got 0"),
    ({"max_new_tokens": 1.5}, r"max_new_tokens must be a whole number"),
    ({"gamma": -1}, r"gamma must be a whole number of at least 0, .*, got -1"),
    ({"gamma": True}, r"gamma must be a whole number"),
    ({"coupling": "optimal"}, r"coupling must be one of maximal, gumbel, block, got 'optimal'"),
    ({"lenience": 0}, r"lenience must be a number above 0 and at most 1 \(1 is exact\), got 0"),
    ({"lenience": 1.5}, r"lenience must be a number above 0 and at most 1"),
    ({"lenience": "half"}, r"lenience must be a number .* got 'half'"),
    ({"lenience": float("nan")}, r"lenience must be a number above 0"),
    ({"lenience": 0.5, "coupling": "gumbel"}, r"lenience 0.5 loosens coupling 'maximal' only, got 'gumbel'"),
    ({"lenience": 0.5, "coupling": "block"}, r"lenience 0.5 loosens coupling 'maximal' only, got 'block'"),
    ({"temperature": 1, "draft_temperature": -1}, r"draft_temperature must be at least 0, got -1"),
    ({"temperature": 1, "draft_top_k": 0}, r"draft_top_k must be at least 1, got 0"),
    ({"temperature": 1, "draft_top_p": 2}, r"draft_top_p must be above 0 and at most 1, got 2"),
    ({"draft_top_k": 5, "draft_top_p": 0.9}, r"draft_top_k, draft_top_p cannot help at temperature 0"),
    ({"stop": ""}, r"stop must be non-empty strings"),
    ({"stop": ["a", 3]}, r"stop must be non-empty strings"),
    ({"temprature": 1}, r"unknown option 'temprature'; did you mean 'temperature'\?"),
    ({"do_sample": True}, r"unknown option 'do_sample'; known options: .*max_new_tokens"),
]


@pytest.mark.parametrize(("options", "says"), BAD)
def test_sampling_refuses(options: dict[str, Any], says: str) -> None:
    """Catches a value that is let through, or refused without saying why."""
    with pytest.raises(BadOption, match=says) as caught:
        Sampling(**options)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, OutriderError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("options", "says"), [*BAD, *BAD_CALLS])
def test_a_call_refuses(options: dict[str, Any], says: str) -> None:
    """Catches an option that is dropped in silence on its way from ``generate`` to the sampler."""
    with pytest.raises(BadOption, match=says) as caught:
        Options.parse(options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"seed": "abc"},
        {"seed": 1.5},
        {"stop": 5},
        {"eos": "x"},
        {"eos": ["</s>"]},
        {"logit_bias": {"word": 1.0}},
        {"logit_bias": [1, 2]},
        {"logit_bias": {3: float("nan")}},
        {"logits_processor": 3},
        {"stopping_criteria": 3},
        {"seed": 2**80},
    ],
    ids=str,
)
def test_values_of_the_wrong_kind_are_refused_too(options: dict[str, Any]) -> None:
    """Catches a TypeError from the depths, or an option that is silently without effect (eos='x' once was)."""
    name = next(iter(options))
    with pytest.raises(BadOption, match=f"{name} must be|{name} must map"):
        Options.parse(options)


def test_seeds() -> None:
    """Catches repeated prompts that give the same sample twice, and a prompt whose text depends on its neighbours."""
    several = Options(seed=5).seeds([[1], [2], [1], [1]], fresh=0)
    assert len(set(several)) == 4
    assert Options(seed=5).seeds([[2], [1]], fresh=0) == [several[1], several[0]]
    assert Options().seeds([[1]], fresh=5) == several[:1]
    assert Options(seed=[9, 5]).seeds([[1], [1]], fresh=0)[1] == several[0]
    with pytest.raises(BadOption, match="seed has 2 values for 1 prompts"):
        Options(seed=[9, 4]).seeds([[1]], fresh=0)


def test_seeds_of_64_bits() -> None:
    """Catches a seed that overflows beside a second prompt: the sum of the largest one and a row's number did."""
    for seed in (2**63 - 1, -(2**63), -1, 0):
        found = Options(seed=seed).seeds([[1], [1], [2]], fresh=0)
        assert len(set(found)) == 3
        assert torch.tensor(found, dtype=torch.int64).tolist() == found


def test_what_options_hand_on() -> None:
    """Catches an option accepted and then forgotten."""

    def processor(ids: Any, scores: Any) -> Any:
        return scores

    sampling = Options(
        temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, frequency_penalty=0.2, presence_penalty=0.3,
        logit_bias={"7": 1}, logits_processor=[processor],
    ).sampling(default_penalty=1.2, constraints=["first"])  # fmt: skip
    assert sampling == Sampling(0.5, 3, 0.9, 0.1, 1.2, 0.2, 0.3, {7: 1.0}, ("first", processor))  # type: ignore[arg-type]
    assert Options(repetition_penalty=1.0).sampling(default_penalty=1.2).repetition_penalty == 1.0
