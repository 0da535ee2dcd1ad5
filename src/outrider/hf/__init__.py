"""Speculative decoding inside transformers' ``generate``: an existing script changes one line.

    model.generate(**inputs, custom_generate=outrider.transformers_generate, draft="copy")

transformers prepares inputs, processors and criteria as always; the decoding loop is Outrider's. Whatever cannot be
honoured is refused by name: docs/transformers.md lists both.
"""

from outrider.hf.generate import transformers_generate

__all__ = ["transformers_generate"]
