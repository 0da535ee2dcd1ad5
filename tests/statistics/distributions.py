"""The joint distribution of the first tokens, by the product's own step and drafters, against the enumerated one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outrider.core.protocols import Drafter, LanguageModel, Verifier
from outrider.core.sampling import Sampling
from outrider.drafters import Cascade, Copying, Fallback, ModelDrafter, Ngram, NgramTable, Nothing, Uniform
from outrider.models.toy import ToyModel
from outrider.testing import SameDistribution, assert_same_distribution, counts_of, exact_distribution, sample

VOCAB = 5
TARGET = ToyModel(VOCAB, order=2, seed=11, sharpness=1.0)
PROMPT = (1, 2, 0, 1, 2)
RAGGED = (PROMPT, (3,), (4, 4, 2))

SAMPLINGS = {
    "temperature 1": Sampling(1.0),
    "temperature 0.6": Sampling(0.6),
    "top-k": Sampling(1.0, top_k=3),
    "top-p": Sampling(1.0, top_p=0.8),
    "min-p": Sampling(1.0, min_p=0.2),
    "penalties": Sampling(1.0, repetition_penalty=1.4, frequency_penalty=0.6, presence_penalty=0.4),
    "everything": Sampling(1.3, top_k=4, top_p=0.95, min_p=0.02, frequency_penalty=1.0, logit_bias={3: 0.7}),
}


def drafters() -> dict[str, Drafter]:
    corpus = [[1, 2, 0, 1, 3, 4, 4, 2, 1, 0, 2, 2]]
    return {
        "near": near(),
        "far": far(),
        "self": ModelDrafter(TARGET, "self"),
        "cool": ModelDrafter(TARGET.near(0.5), "cool", sampling=Sampling(0.4, top_k=3)),
        "uniform": Uniform(),
        "copy": Copying(longest=3),
        "ngram": Ngram(order=3),
        "table": Ngram(NgramTable.fit(corpus, VOCAB)),
        "auto": Fallback(Copying(longest=3), Ngram(order=3)),
        "none": Nothing(),
        "cascade": cascade(),
        "cascade of three": Cascade(Cascade(Uniform(), far(), guesses=2), near(), guesses=2),
        "cascade, asked once": cascade(once=True),
        "cascade on copying": Cascade(Copying(shortest=1, longest=3), near(), guesses=2),
    }


def near() -> ModelDrafter:
    return ModelDrafter(TARGET.near(0.5), "near")


def far() -> ModelDrafter:
    return ModelDrafter(ToyModel(VOCAB, seed=5, sharpness=3.0), "far")


def cascade(once: bool = False) -> Cascade:
    """The lower drafter is bad and the middle one good: rejections at both levels, and guesses thrown away."""
    return Cascade(far(), near(), guesses=3, once=once)


def check_distribution(
    drafter: Drafter | None,
    verifier: Verifier,
    sampling: Sampling = SAMPLINGS["temperature 1"],
    *,
    target: LanguageModel = TARGET,
    prompts: Sequence[Sequence[int]] = (PROMPT,),
    rows: int = 100_000,
    length: int = 2,
    gamma: int = 2,
    detects: float = 0.02,
) -> SameDistribution:
    """Fail (one time in 1e9 if all is well) unless the first ``length`` tokens follow the target's distribution."""
    tokens = sample(target, drafter, verifier, sampling, prompts=prompts, rows=rows, length=length, gamma=gamma)
    count = len(prompts)
    counts = torch.stack([counts_of(tokens[i::count], target.vocab_size) for i in range(count)])
    # Every prompt has its share of the rows, so one table serves all: prompt by outcome.
    share = torch.tensor([len(tokens[i::count]) / rows for i in range(count)])
    distribution = torch.stack(
        [exact_distribution(target, sampling, p, length) * s for p, s in zip(prompts, share, strict=True)]
    )
    return assert_same_distribution(counts, distribution, detects=detects)
