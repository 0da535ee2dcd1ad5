"""Any transformers causal or encoder-decoder model as a LanguageModel, through its own forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from outrider.kernels import row_products
from outrider.kernels.packed_linear import packed_layers
from outrider.models import batch_invariance
from outrider.models.checkpoint_model import CheckpointModel
from outrider.models.transformers import families, rotary, selfcheck, two_queries
from outrider.models.transformers.engine import TransformersEngine
from outrider.models.transformers.watch import forward
from outrider.models.width_costs import NOMINAL

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SLOTS_ON_CPU, _CACHE_ON_CPU = 128, 2**30
"""The same of an encoder-decoder model on a CPU, as far as so many bytes hold their KV caches."""

_SLOTS = 64
"""Rows that run together on a GPU: steps of so many take little longer than steps of one."""


class HuggingFaceModel(CheckpointModel):
    """A transformers model, unchanged, with the facts sessions need about it."""

    engine: TransformersEngine

    def __init__(self, model: PreTrainedModel, max_length: int | None = None) -> None:
        """``max_length``: of the texts it is for, which decides by which factors longrope scales positions."""
        model.eval()
        self.engine = TransformersEngine(self._refer(model), max_length)
        self.config, self.facts = self.engine.config, self.engine.facts
        if not families.family(self.config).tested:
            selfcheck.check_against_itself(self.engine, self.start)

    def _refer(self, model: PreTrainedModel) -> Callable[[], PreTrainedModel]:
        """How to get at the model from now on: here it is kept alive."""
        return lambda: model

    @property
    def model(self) -> Any:
        """The transformers model itself."""
        return self.engine.model

    @property
    def generation_config(self) -> Any:
        return self.model.generation_config

    @property
    def embedding(self) -> Tensor:
        return self.engine.embedding

    @property
    def unembedding(self) -> Tensor:
        return self.engine.unembedding

    @property
    def fused(self) -> bool:
        """Whether it runs fused kernels."""
        return self.engine.fused

    @property
    def accepts(self) -> frozenset[str]:
        """Names of the arguments of the model's forward."""
        return self.engine.accepts

    def fuse(self) -> bool:
        """Use fused kernels where the family and the device allow; False if they do not."""
        return self.engine.fuse()

    def find_batch_invariance(self) -> bool:
        """Use products whose rows are independent, if with them bits depend on nothing but a row's own tokens.

        On a GPU with fused kernels; on a CPU for encoder-decoder models whose layers were all packed. False: they do,
        and runs stay as wide as the session's shape says.
        """
        from outrider.models.transformers.fused import set_row_padding

        engine = self.engine
        if self.device.type == "cpu":
            return self.encoder_decoder and self._find_on_cpu()
        if not self.fused or not row_products.supported(self.device, self.dtype):
            return False
        engine.no_split_k, engine.trims_prefill = True, True
        set_row_padding(self.model, quickest=True)
        self.facts = replace(engine.facts, batch_invariant=True, capacity_invariant=True, slots=_SLOTS)
        if batch_invariance.holds(self) and batch_invariance.bits_do_not_depend_on_rows(self, _SLOTS):
            engine.facts = self.facts = replace(self.facts, runs_trees=True)
            return True
        engine.no_split_k, engine.trims_prefill, self.facts = False, False, engine.facts
        set_row_padding(self.model, quickest=False)
        return False

    def _find_on_cpu(self) -> bool:
        engine, found = self.engine, self.engine.facts
        packed, linear = packed_layers(self.model)
        if packed < linear or not two_queries.use(self.model, True):
            return False
        slots = max(8, min(_SLOTS_ON_CPU, _CACHE_ON_CPU // engine.bytes_of_row))
        engine.facts = self.facts = replace(found, batch_invariant=True, width_costs=NOMINAL, slots=slots)
        for granule in (64, None):
            engine.capacity_granule = granule
            if batch_invariance.holds_beside_sources(self, rows=16):
                return True
        engine.facts = self.facts = found
        two_queries.use(self.model, False)
        return False

    def forward(self, **arguments: Any) -> tuple[Any, Tensor | None]:
        """The model's own forward -> its output, and what the output layer read: the last hidden states."""
        with rotary.settled(self.engine.positions.long):
            return forward(self.model, **arguments)
