"""Outrider: large autoregressive models generate faster, without changing what they say."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from outrider.runtime.cpu import make_mkl_batch_invariant
from outrider.runtime.gc_pause import gc_paused
from outrider.runtime.threads import wait_considerately

if TYPE_CHECKING:
    from outrider.core.protocols import Draft, Drafter, DraftSession
    from outrider.core.sampling import Sampling
    from outrider.decoding.loop import Decoder
    from outrider.drafters import (
        Cascade,
        Copying,
        Fallback,
        Mixture,
        ModelDrafter,
        Ngram,
        NgramTable,
        Nothing,
        OutputMemory,
        Standardised,
        Suffix,
        SuffixIndex,
        Uniform,
    )
    from outrider.errors import OutriderError
    from outrider.hf import transformers_generate
    from outrider.llm import LLM, load
    from outrider.output import Chunk, Output
    from outrider.planning.policies import Auto, Fixed, Gradient
    from outrider.speculation import Speculated, speculate
    from outrider.trace import Stats, Trace, summarise

__version__ = "0.1.0"

wait_considerately()  # here, because the OpenMP runtime reads it when torch is imported
make_mkl_batch_invariant()  # here, because MKL reads it when it is first used

# Names are imported when first used: `import outrider` loads neither torch nor transformers.
_HOMES = {
    "load": "llm",
    "LLM": "llm",
    "Output": "output",
    "Chunk": "output",
    "transformers_generate": "hf",
    "Decoder": "decoding.loop",
    "Auto": "planning.policies",
    "Fixed": "planning.policies",
    "Gradient": "planning.policies",
    "Sampling": "core.sampling",
    "Speculated": "speculation",
    "speculate": "speculation",
    "Draft": "core.protocols",
    "Drafter": "core.protocols",
    "DraftSession": "core.protocols",
    "Cascade": "drafters",
    "Copying": "drafters",
    "Fallback": "drafters",
    "Mixture": "drafters",
    "ModelDrafter": "drafters",
    "Ngram": "drafters",
    "NgramTable": "drafters",
    "Nothing": "drafters",
    "OutputMemory": "drafters",
    "Standardised": "drafters",
    "Suffix": "drafters",
    "SuffixIndex": "drafters",
    "Uniform": "drafters",
    "Trace": "trace",
    "Stats": "trace",
    "summarise": "trace",
    "OutriderError": "errors",
}

__all__ = [
    "LLM",
    "Auto",
    "Cascade",
    "Chunk",
    "Copying",
    "Decoder",
    "Draft",
    "DraftSession",
    "Drafter",
    "Fallback",
    "Fixed",
    "Gradient",
    "Mixture",
    "ModelDrafter",
    "Ngram",
    "NgramTable",
    "Nothing",
    "Output",
    "OutputMemory",
    "OutriderError",
    "Sampling",
    "Speculated",
    "Standardised",
    "Stats",
    "Suffix",
    "SuffixIndex",
    "Trace",
    "Uniform",
    "__version__",
    "load",
    "speculate",
    "summarise",
    "transformers_generate",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        with gc_paused():
            return getattr(import_module(f"outrider.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'outrider' has no attribute {name!r}")
