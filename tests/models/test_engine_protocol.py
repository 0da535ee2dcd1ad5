"""One engine protocol, one session: a backend is a class with ``run``, and everything else is shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from outrider.core.embedding_table import EmbeddingTable
from outrider.core.model_facts import CPU, ModelFacts
from outrider.core.protocols import Shape, Source
from outrider.errors import BadOption
from outrider.models.cached_session import CachedSession
from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.engine_protocol import Engine, Result, Wanted
from outrider.models.kv_buffers import Buffers
from outrider.models.session import no_source
from outrider.models.transformers.model import HuggingFaceModel
from outrider.testing import check_session

SIZE, VOCAB = 6, 11
TEXT = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])


class FadingSum:
    """A backend of twenty lines: each token attends to a fading sum over the tokens in its row's cache."""

    trims_prefill = True
    prefill_tokens = 8
    facts = ModelFacts(VOCAB, dtype=torch.float64, engine="sum", hidden_size=SIZE, layers=1)

    def __init__(self) -> None:
        self.table = torch.randn((VOCAB, SIZE), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def allocate(self, rows: int, shape: Shape) -> Buffers:
        return Buffers.allocate([(1, SIZE, 1)], rows, shape.capacity, torch.float64, CPU)

    def run(self, tokens: Tensor, positions: Tensor, cache: Buffers, wanted: Wanted) -> Result:
        keys, x = cache.buffers()[0][0], self.table[tokens]
        keys[torch.arange(len(tokens))[:, None], 0, positions] = x
        distance = positions[..., None] - cache.slots  # [B, w, C]
        hidden = torch.where(distance >= 0, 0.7 ** distance.double(), 0) @ keys[:, 0]
        states = torch.stack([x if layer == 0 else hidden for layer in wanted.states], 2) if wanted.states else None
        part = hidden if wanted.tokens is None else hidden[:, wanted.tokens.start : wanted.tokens.stop]
        return Result(part @ self.table.T if wanted.logits else None, part, states)

    def encode(self, sources: Mapping[int, Source], cache: Buffers) -> None:
        raise no_source()


class Scratch(CheckpointModel):
    def __init__(self, engine: FadingSum) -> None:
        self.engine: Engine = engine
        self.facts, self.config, self.table = engine.facts, None, engine.table

    @property
    def generation_config(self) -> Any:
        return None

    @property
    def embedding(self) -> EmbeddingTable:
        return self.table

    @property
    def unembedding(self) -> EmbeddingTable:
        return self.table


def test_a_new_backend_gets_the_whole_session() -> None:
    """Rollback, forks, released rows and reordering are the session's: a backend has no say in them."""
    check_session(Scratch(FadingSum()).start)


def test_a_session_keeps_what_a_backend_gives() -> None:
    session = Scratch(FadingSum()).start(2, Shape(capacity=64, width=4, chunk=3))
    session.keep_states((0, -1))
    session.admit(1, TEXT[0].tolist())
    assert session.states is not None and session.hidden is not None
    assert torch.equal(session.states[1, : TEXT.shape[1] - 1, 0], FadingSum().table[TEXT[0, :-1]])
    assert torch.equal(session.states[1, TEXT.shape[1] - 2, 1], session.hidden[1])
    with pytest.raises(BadOption, match="source"):
        session.admit(0, [1, 2], source=[3])


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "t5"])
def test_transformers_runs_only_what_is_wanted(family: str) -> None:
    """Logits and hidden states of some tokens are those tokens' part of all; states are of all tokens."""
    engine = HuggingFaceModel(tiny.build(family)).engine
    shape = Shape(capacity=32, width=8, source_capacity=8)
    positions = torch.arange(TEXT.shape[1])[None]

    def run(wanted: Wanted) -> Result:
        cache = engine.allocate(1, shape)
        if engine.facts.encoder_decoder:
            engine.encode({0: [5, 6, 7]}, cache)
        return engine.run(TEXT, positions, cache, wanted)

    whole = run(Wanted(states=(0, -1)))
    some, prefill = run(Wanted(range(5, 8), filled_only=True)), run(Wanted(range(4, 5), logits=False))
    assert whole.logits is not None and whole.hidden is not None and whole.states is not None
    assert some.logits is not None and some.hidden is not None and some.states is None
    assert whole.states.shape == (1, 8, 2, engine.facts.hidden_size)
    assert torch.allclose(some.logits, whole.logits[:, 5:], atol=1e-5)
    assert torch.allclose(some.hidden, whole.hidden[:, 5:], atol=1e-5)
    assert prefill.logits is None and prefill.hidden is not None
    assert torch.allclose(prefill.hidden, whole.hidden[:, 4:5], atol=1e-5)


def test_no_engine_pretends_to_be_transformers() -> None:
    """A model run by numba was a transformers model with an empty module inside."""
    pytest.importorskip("numba")
    from outrider.models.engine.llama_engine import LlamaEngine
    from outrider.models.engine.model import EngineModel
    from outrider.models.engine.numba_engine import NumbaEngine

    assert issubclass(NumbaEngine, LlamaEngine) and not issubclass(EngineModel, HuggingFaceModel)
    assert issubclass(EngineModel, CheckpointModel) and HuggingFaceModel.start is CheckpointModel.start
    assert isinstance(Scratch(FadingSum()).start(1, Shape(16, 4)), CachedSession)


def test_an_embedding_table_is_a_tensor_or_rows_in_panels() -> None:
    """Rows in panels were passed off as a tensor by a cast."""
    pytest.importorskip("numba")
    from outrider.models.engine.panel_rows import PanelRows

    values = torch.randn((16, 3), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    bits = values.view(torch.int16).view(1, 2, 8, 3).permute(0, 3, 2, 1).contiguous().numpy().view(np.uint16)
    for table in (values.float(), PanelRows(bits.view(np.uint8).ravel(), 0, bits.shape, 16, 3)):
        assert isinstance(table, EmbeddingTable) and table.detach() is not None
        assert (tuple(table.shape), len(table), table.dtype) == ((16, 3), 16, torch.float32)
        assert torch.equal(table[torch.tensor([[5, 15], [0, 8]])], values.float()[torch.tensor([[5, 15], [0, 8]])])
        assert torch.equal(table[2:4], values.float()[2:4])
