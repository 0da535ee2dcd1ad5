"""Numbers written down once: the noise, and text that depends on it. A change here changes every user's samples.

The weights come from numpy's frozen legacy generator, so that no release of torch or transformers moves them.
If one of these fails, either something broke or seeds now mean something else: that is a breaking change, to be
announced in the changelog, never a reason to quietly write down new numbers.
"""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
import transformers as tf
from helpers import run

from outrider.core.noise import Noise, row_seeds
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.drafters import Copying, ModelDrafter, Nothing, Uniform
from outrider.models.toy import ToyModel
from outrider.models.transformers.model import HuggingFaceModel

GREEDY = [44, 42, 32, 62, 19, 29, 55, 41, 49, 15, 2, 42, 15, 9, 59, 59, 31, 56, 49, 9, 34, 62, 59, 9]
GUMBEL = {
    0: [35, 44, 47, 21, 54, 50, 59, 31, 37, 16, 9, 11, 12, 20, 20, 14, 62, 58, 56, 5, 42, 34, 49, 37],
    1: [44, 42, 56, 2, 44, 50, 45, 20, 15, 11, 2, 48, 25, 11, 15, 39, 33, 20, 53, 15, 42, 18, 16, 18],
    2**40: [19, 48, 7, 27, 2, 25, 40, 59, 8, 21, 19, 43, 39, 56, 22, 37, 20, 62, 12, 24, 2, 49, 3, 12],
}
MAXIMAL = [8, 9, 9, 6, 8, 4, 0, 3, 8, 1, 7, 8, 1, 11, 9, 3, 9, 9, 7, 4, 7, 2, 3, 5]
SEEDS = [-3638259800180276489, -6505836245717875234, -8436425132669894135]
SEED_BELOW_ZERO = -7415382270313580470
UNIFORM = [1058022391, 1062313611, 1052478542, 1059830427]
RACE = [
    1042744350, 1034382539, 1064910626, 1051381595, 1072420376, 1063023257, 1064080214, 1076337901,
    1048580433, 1085424840, 1035150710, 1053817791, 1052786869, 1058003243, 1073868130, 1057154035,
    1059222741, 1069717886, 1062931523, 1049336296, 1055786192, 1077622450, 1052527821, 1064717086,
]  # fmt: skip


def bits(values: torch.Tensor) -> list[int]:
    return values.flatten().contiguous().view(torch.int32).tolist()


@pytest.fixture(scope="module")
def llama() -> HuggingFaceModel:
    config = tf.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    model = tf.LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(weight.shape)
                weight.copy_(torch.tensor(values * 0.4))
            else:
                weight.fill_(1.0)
    return HuggingFaceModel(model)


PROMPT = (5, 17, 5, 17, 33)


def test_noise() -> None:
    """Catches a changed hash, stream name or conversion: the bits of uniforms and arrival times."""
    noise = Noise(torch.tensor([0, 12345]))
    at = torch.tensor([[0, 7], [1, 100_000]])
    assert bits(noise.uniform("accept", at)) == UNIFORM
    assert bits(torch.cat([noise.race("token", at, 3), noise.child("draft").race("token", at, 3)])) == RACE


def test_seeds_of_rows() -> None:
    """Catches another hash of seed, prompt and place: what a call's ``seed`` means to every user."""
    assert row_seeds(0, [(1, 2), (1, 2), ()]) == SEEDS
    assert row_seeds([0, -1], [(1, 2), (1, 2)]) == [SEEDS[0], SEED_BELOW_ZERO]


@pytest.mark.parametrize("drafter", [Nothing(), Copying(), Uniform()], ids=lambda d: d.name)
def test_greedy(llama: HuggingFaceModel, drafter: object) -> None:
    """Catches a change in how logits become greedy text."""
    texts, _ = run(llama, drafter, [Request(PROMPT, Stopping(24))])  # type: ignore[arg-type]
    assert texts[0] == GREEDY


@pytest.mark.parametrize("seed", [0, 1, 2**40])
def test_gumbel(llama: HuggingFaceModel, seed: int) -> None:
    """Catches a silent change of what a seed means."""
    texts, _ = run(llama, Uniform(), [Request(PROMPT, Stopping(24), seed)], sampling=Sampling(1.0, top_p=0.95))
    assert texts[0] == GUMBEL[seed]


def test_maximal() -> None:
    """Catches a changed stream in acceptance, correction or draft (exact arithmetic, so any change shows)."""
    drafter = ModelDrafter(_table(12, "draft"))
    texts, _ = run(
        _table(12, "target"), drafter, [Request((1, 2), Stopping(24), 7)], 3, Sampling(1.0), maximal_coupling
    )
    assert texts[0] == MAXIMAL


def _table(size: int, name: str) -> ToyModel:
    model = ToyModel(size)
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(model.table.shape)
    model.table = torch.tensor(values)
    return model
