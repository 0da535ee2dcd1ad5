"""One call's options, compiled once into what decoding needs: sampling, when texts end, requests and a decoder."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch

from outrider.core.model_facts import facts_of
from outrider.core.protocols import Drafter, LanguageModel
from outrider.core.sampling import Sampling
from outrider.core.verification.choose import choose
from outrider.decoding.loop import WIDTH, Decoder, Event, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.stopping import Row, Stopping
from outrider.drafters import Nothing, OutputMemory
from outrider.errors import CriterionError, NumericalError, require
from outrider.models.hub.generation_config import Defaults
from outrider.options import Options
from outrider.planning.policies import Auto, chosen
from outrider.trace import Trace

CALLER = ""
"""Whose outputs those of a process are that serves nobody else."""


@dataclass(frozen=True)
class DecoderBuilder:
    """Makes the decoder of a call, for ``LLM`` and for ``transformers_generate`` alike. Its fields outlive a call."""

    target: LanguageModel
    auto: Auto  # knows what steps cost, from the steps of earlier calls
    pool: SessionPool
    width: int = WIDTH
    slots: int | None = None
    exact: bool = True

    def decoder(
        self, drafter: Drafter, sampling: Sampling, coupling: str, gamma: Any, lenience: float = 1.0, *,
        repeatable: bool, tree: int | None = None,
    ) -> Decoder:  # fmt: skip
        """gamma, tree: as the options say it. repeatable: the same call must give the same text again."""
        verifier = choose(coupling, sampling.temperature == 0, lenience)
        clock = not repeatable or (verifier.shares_noise and self._width_leaves_bits())
        policy = chosen(gamma, self.auto if clock else Auto(clock=False))
        if isinstance(drafter, Nothing) and not isinstance(policy, int):
            policy = 0  # nothing to find out
        return Decoder(
            self.target, drafter, verifier, sampling, policy, self.width, self.slots, self.exact, self.pool,
            fresh_seeds=not repeatable, tree=tree,
        )  # fmt: skip

    def _width_leaves_bits(self) -> bool:
        """Whether the text is the same for every gamma, as far as the widths of runs go: gamma is the width of a run
        where that is not constant, and then decides the last bits of logits, which in half precision are many ties."""
        return self.exact or facts_of(self.target).dtype in (torch.float32, torch.float64)


@dataclass(frozen=True)
class Call:
    """Made by ``LLM.call``. The decoder has everything but the model's own rules that count positions."""

    options: Options
    decoder: Decoder
    defaults: Defaults  # of the model's generation config
    encoder_decoder: bool
    stopping: Stopping  # the same rules for every text
    engine: dict[str, Any]  # what statistics say of the target's engine
    memory: OutputMemory | None = None  # where outputs are kept, for drafters that search it

    @staticmethod
    def compiled(
        options: Options, decoder: Decoder, defaults: Defaults, decode: Callable[[Sequence[int]], str],
        special: dict[str, int], encoder_decoder: bool, engine: dict[str, Any],
    ) -> Call:  # fmt: skip
        """special: the tokenizer's special tokens, by their text: decoded text does not show them."""
        ends = defaults.eos if options.eos is None else options.end_tokens
        size = decoder.target.vocab_size
        outside = [token for token in ends if not 0 <= token < size] if options.eos is not None else []
        require(not outside, f"eos names token {outside}, the vocabulary has {size} tokens")
        stop = options.stop_strings or defaults.stop
        stopping = Stopping(
            max_new_tokens=options.max_new_tokens,
            eos=ends | {special[text] for text in stop if text in special},
            stop=stop,
            criteria=tuple(options.stopping_criteria),
            decode=decode,
        )
        return Call(options, decoder, defaults, encoder_decoder, stopping, engine)

    def trace(self) -> Trace:
        decoder, options = self.decoder, self.options
        if options.beams > 1:
            return Trace(decoder.drafter.name, "beam", **self.engine)
        exact = decoder.verifier.exact
        return Trace(decoder.drafter.name, options.coupling, exact, lenience=options.lenience, **self.engine)

    def requests(self, prompts: list[list[int]]) -> list[Request]:
        """One per prompt; a bad prompt is named before work is done for the others."""
        start = self.defaults.decoder_start
        requests = []
        for prompt in prompts:
            first = [start] if self.encoder_decoder and start is not None else prompt
            source = tuple(prompt) if self.encoder_decoder else None
            requests.append(Request(tuple(first), self.stopping, source=source))
        self.decoder.shapes(requests)
        seeds = self.options.seeds(prompts, fresh=secrets.randbits(62))  # of tokens that are some
        owner = None if self.memory is None else CALLER
        return [replace(request, seed=seed, owner=owner) for request, seed in zip(requests, seeds, strict=True)]

    def events(self, requests: Sequence[Request], trace: Trace) -> Generator[Event]:
        """What every target run adds, in groups of requests that share every rule: one, unless the rules differ."""
        groups = self._groups(requests)
        failed = 0
        for length, members in groups.items():
            try:
                with closing(self.behind(length).stream([requests[i] for i in members], trace, members)) as events:
                    for event in events:
                        self._remember(requests[event.index], event.row)
                        yield event
            except (NumericalError, CriterionError):  # every row of this group
                failed += 1
                if failed == len(groups):
                    raise

    def _remember(self, request: Request, row: Row) -> None:
        """Keep an output that has ended, where there is a memory for it."""
        if self.memory is not None and request.owner is not None and row.finish_reason not in (None, "error"):
            self.memory.add(request.owner, row.prompt, row.tokens)

    def _groups(self, requests: Sequence[Request]) -> dict[int, list[int]]:
        """Requests by the prompt length that the model's own rules count from; all are one where none do."""
        counts_positions = bool(self.defaults.constraints(1, 2))
        groups: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            groups.setdefault(len(request.prompt) if counts_positions else 1, []).append(index)
        return groups

    def behind(self, prompt_length: int) -> Decoder:
        """The decoder for prompts of this length, with the rules of the model's generation config."""
        asked = self.options.repetition_penalty
        penalty = self.defaults.repetition_penalty if asked is None else asked
        total = prompt_length + self.options.max_new_tokens
        penalty, rules = self.defaults.rules(penalty, prompt_length, total)
        return replace(
            self.decoder, sampling=replace(self.options.sampling(constraints=rules), repetition_penalty=penalty)
        )
