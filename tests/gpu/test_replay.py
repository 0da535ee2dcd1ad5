"""On a GPU: a replayed graph gives the eager tokens, and speculative text is plain text, bit for bit."""

from __future__ import annotations

import warnings

import pytest
import torch

import library
import outrider
import tiny
from outrider.bench import identity
from outrider.bench.gpu import StepSetting
from outrider.bench.gpu_run import GpuPlan, run
from outrider.bench.gpu_table import failed
from outrider.bench.shapes import SIZES, build
from outrider.core.protocols import Drafter, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Decoder
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.step_runner import Rule, StepRunner
from outrider.drafters import Copying, Mixture, ModelDrafter, Ngram, NgramTable, Standardised, Uniform
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.models.transformers.model import HuggingFaceModel
from outrider.trace import Trace

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
DEVICE = torch.device("cuda")


def mismatches(result: dict[str, dict[str, int]]) -> list[int]:
    return [value for part in result.values() for name, value in part.items() if name in ("mismatches", "plain_eager")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_replayed_is_eager_and_speculative_is_plain(fused: bool, dtype: torch.dtype) -> None:
    target, draft = build(SIZES["tiny"], DEVICE, dtype), build(SIZES["tinier"], DEVICE, dtype, seed=1)
    if fused:
        assert target.fuse() and draft.fuse()
    setting = StepSetting(target, draft, context=64, capacity=256)
    assert not any(mismatches(identity.replayed_is_eager(setting, 40)))
    assert not any(mismatches(identity.compare(setting, 4, 200, spoiled=0.3)))


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_every_family_is_captured_or_says_why_not(family: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Through the decoder: the same text as eager steps give, twice, the second time from the recording."""
    from helpers import case

    model = HuggingFaceModel(tiny.build(family).to(DEVICE))
    texts = []
    for used in (SessionPool(), pool := SessionPool(graphs=True), pool):
        decoder = Decoder(model, Copying(), gumbel_coupling, Sampling(), 3, slots=2, pool=used)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            rows = {event.index: event.row.tokens for event in decoder.stream(case(family).requests, Trace())}
        texts.append(rows)
        assert all("cannot be replayed" in str(w.message) for w in said)
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("name", ["head", "mixture", "copy", "ngram", "table", "uniform", "standardised"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_drafter_is_captured(name: str, temperature: float) -> None:
    """The default draft is a mixture with a head: one that fell back to eager steps would be slow and say little."""
    target = HuggingFaceModel(tiny.build("llama").to(DEVICE))
    rule, drafter = Rule(maximal_coupling, Sampling(temperature)), drafter_named(name)
    texts = []
    for graphs in (False, True):
        made = StepRunner((target, drafter), 2, Shape(256, 5, chunk=8), graphs)
        for row, prompt in enumerate(([3, 4, 5, 6, 7, 8, 9, 10, 11, 12], [9])):
            made.target.admit(row, prompt)
            made.drafter.admit(row, prompt)
            made.seeds[row] = row
        steps = [made.launch(rule, gamma).read() for gamma in (4, 4, 4, 0, 4, 2, 4, 4)]
        texts.append([step.row(row)[0] for step in steps for row in range(2)])
        assert made.drafter.error is None and made.graphs == graphs
    assert texts[0] == texts[1]


def drafter_named(name: str) -> Drafter:
    text = torch.arange(200).remainder(tiny.VOCAB)
    config = HeadConfig("feature", 32, 64, 1, layers=(1, -1), heads=(4, 2), gamma=3)
    head = HeadDrafter(Head(config), torch.arange(0, tiny.VOCAB, 2))
    other = HuggingFaceModel(tiny.build("llama", seed=1).to(DEVICE))
    made: dict[str, Drafter] = {
        "head": head,
        "mixture": Mixture(Copying(), head),
        "copy": Copying(),
        "ngram": Ngram(),
        "table": Ngram(NgramTable.fit([text.tolist()], tiny.VOCAB, order=3)),
        "uniform": Uniform(),
        "standardised": Standardised(ModelDrafter(other), temperature=0.5),
    }
    return made[name]


def test_the_front_door_replays_by_itself(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("model")
    library.save_llama(folder)
    llm = outrider.load(str(folder), "copy", device="cuda")
    eager = outrider.load(str(folder), "copy", device="cuda", graphs=False)
    assert llm.graphs and not eager.graphs
    for options in (
        {},
        {"temperature": 1.0, "seed": 3, "coupling": "gumbel"},
        {"temperature": 1.0, "seed": 3, "gamma": 3},
    ):
        assert llm.generate("hello the", **options).tokens == eager.generate("hello the", **options).tokens


def test_a_recorded_bias_outlives_other_biases(tmp_path_factory: pytest.TempPathFactory) -> None:
    """After 80 calls with other biases, of another length, the first call's recording read freed memory."""
    folder = tmp_path_factory.mktemp("model")
    library.save_llama(folder)
    llm = outrider.load(str(folder), "copy", device="cuda")
    wanted = {"logit_bias": {50: 100.0}, "max_new_tokens": 4, "eos": (), "gamma": 2}
    assert llm.generate([3, 4, 5], **wanted).tokens == [50] * 4
    for token in range(80):
        llm.generate(
            [3, 4, 5],
            logit_bias={token % 40: 100.0 + token},
            max_new_tokens=300,
            stopping_criteria=[lambda ids, scores: ids.shape[1] > 6],
            eos=(),
            gamma=2,
        )
    used = [torch.full((size,), 7, device=DEVICE) for size in range(1, 200)]  # whatever was freed is overwritten
    assert llm.generate([3, 4, 5], **wanted).tokens == [50] * 4
    del used


def test_the_benchmark_runs() -> None:
    report = run(GpuPlan("tiny", "cuda", ("latency", "identity", "curves", "pair", "micro"), tokens=50))
    assert not failed(report.results)
