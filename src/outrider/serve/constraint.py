"""Answers that follow a JSON schema: llguidance's grammars as a logits processor that sees every drafted prefix."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.llm import LLM
from outrider.models.hub.plain_settings import PlainTokenizer
from outrider.options import Options
from outrider.serve.refusal import Refused
from outrider.serve.schema import ResponseFormat

ANY_OBJECT: dict[str, Any] = {"type": "object"}

COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""How JSON is written: where any space may stand, a model may write nothing else until its tokens are used up."""

MOST_BYTES = 1 << 16
"""Of a schema: what a client may have compiled for it."""


class Grammars:
    """Compiles response formats for one model's tokenizer. The tokenizer's trie is built once, at the first use."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._tokenizer: Any = None
        self._lock = threading.Lock()

    def processors(self, asked: ResponseFormat | None, prompt_length: int) -> list[GrammarProcessor]:
        """What holds an answer to the format that was asked for, behind a prompt of this length."""
        if asked is None or asked.type == "text":
            return []
        if asked.type == "json_schema" and asked.json_schema is None:
            raise Refused("response_format.json_schema is missing", "response_format")
        schema = ANY_OBJECT if asked.json_schema is None else asked.json_schema.json_schema
        with self._lock:
            matcher = self._matcher(schema)
        return [GrammarProcessor(matcher, prompt_length)]

    def _matcher(self, schema: dict[str, Any]) -> Any:
        import llguidance
        import llguidance.hf

        try:
            if self._tokenizer is None:
                size, ends = self.llm.target.model.vocab_size, sorted(self.llm.call(Options()).stopping.eos)
                self._tokenizer = llguidance.hf.from_tokenizer(_as_transformers(self.llm.tokenizer), size, ends or None)
            text = json.dumps(schema)
            if len(text) > MOST_BYTES:
                raise Refused(f"the schema has {len(text)} bytes, at most {MOST_BYTES} are taken", "response_format")
            grammar = llguidance.LLMatcher.grammar_from_json_schema(text, overrides=COMPACT)
            wrong = llguidance.LLMatcher.validate_grammar(grammar, self._tokenizer)
        except (ValueError, RecursionError, TypeError) as error:
            wrong = str(error)
        if wrong:
            reason = " ".join(str(wrong).split())[:300]
            raise Refused(f"response_format cannot be followed: {reason}", "response_format")
        return llguidance.LLMatcher(self._tokenizer, grammar, log_level=0)


def _as_transformers(tokenizer: Any) -> Any:
    return tokenizer.transformers_tokenizer if isinstance(tokenizer, PlainTokenizer) else tokenizer


class GrammarProcessor:
    """Forbids every token that the grammar does not allow behind the answer so far, guesses included.

    It is asked about prefixes in any order: the matcher is rolled back to what two of them share.
    """

    def __init__(self, matcher: Any, prompt_length: int) -> None:
        self.matcher, self.start = matcher, prompt_length
        self.read: list[int] = []  # tokens that the matcher has consumed

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        if not self._go_to(ids[0, self.start :].tolist()):
            return torch.full_like(scores, -torch.inf)
        bits = np.unpackbits(np.frombuffer(self.matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = torch.from_numpy(bits[: scores.shape[-1]].astype(bool)).to(scores.device)
        if allowed.shape[0] < scores.shape[-1]:
            allowed = torch.nn.functional.pad(allowed, (0, scores.shape[-1] - allowed.shape[0]))
        return scores.masked_fill(~allowed, -torch.inf)

    def forced(self, output: Sequence[int]) -> list[int]:
        """Tokens that the grammar leaves no choice about behind an answer so far: guesses that are free."""
        return list(self.matcher.compute_ff_tokens()) if self._go_to(list(output)) else []

    def _go_to(self, tokens: list[int]) -> bool:
        """Let the matcher stand behind these tokens -> whether the grammar allows them."""
        same = next((k for k, pair in enumerate(zip(tokens, self.read, strict=False)) if pair[0] != pair[1]),
                    min(len(tokens), len(self.read)))  # fmt: skip
        if same < len(self.read):
            self.matcher.rollback(len(self.read) - same)
            del self.read[same:]
        rest = tokens[same:]
        taken = self.matcher.try_consume_tokens(rest) if rest else 0
        self.read.extend(rest[:taken])
        return taken == len(rest) and not self.matcher.is_error()
