"""The front door: ``llm = outrider.load(...)``, then ``llm.generate``, ``llm.stream``, ``llm.chat``."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from typing import Any

from outrider.beam.search import beam_search
from outrider.core.model_facts import dtype_name
from outrider.core.protocols import Drafter, Verifier
from outrider.core.verification.choose import choose
from outrider.decoding.loop import WIDTH, Decoder, Event, Request
from outrider.decoding.session_pool import Lanes
from outrider.decoding.stopping import Row, Stopping
from outrider.drafters import Standardised
from outrider.drafters.by_name import Beside, drafter_named
from outrider.errors import BadOption, NumericalError, require
from outrider.models.engine.choice import Kernels
from outrider.models.hub import generation_config, loading
from outrider.options import Options
from outrider.output import Chunk, Output
from outrider.planning.policies import Auto, Policy, chosen
from outrider.prompts import named, render, several, token_ids
from outrider.runtime.gc_pause import uncollected
from outrider.trace import Trace

Prompt = str | Sequence[int]


@uncollected()
def load(
    target: str,
    draft: str | Drafter | None = "auto",
    device: str = "auto",
    dtype: str = "auto",
    *,
    width: int = WIDTH,
    slots: int | None = None,
    exact: bool = True,
    graphs: bool | str = "auto",
    engine: str = "auto",
    weights: str = "full",
    trust_remote_code: bool = False,
) -> LLM:
    """Load a target and a drafter.

    target: a short name (smollm2-135m, t5-ende), a directory, a .gguf file or a hub id. A directory with a
    target and a draft in it is a pair: its draft is what "auto" means there.
    draft: "auto", "copy", "ngram", "uniform", None or "none", a model named like a target, or a Drafter;
        "copy>small-model" is a cascade: copying drafts for the small model, which drafts for the target.
    width: W, the tokens of every target run; gamma can be up to width - 1.
    slots: rows that run together; None means as many as there are prompts, at most 8.
    exact: constant shapes, so that speculation on or off gives the same text to the bit.
    graphs: replay whole steps as CUDA graphs; "auto" does so on a GPU. The text is the same.
    dtype: what the model computes in; "auto": what the checkpoint was saved in where the device is fast at it, else
        float32, or float16 by numba on ARM CPUs that compute in it, which is nearer to float32 than bfloat16 is.
    engine: what runs the model: "torch"; on a CPU, for families of Llama's kind, "numba" (two bytes a weight, float32
        or float16) or "onnxruntime" (float32); or "auto": the first of numba, onnxruntime and torch that can.
    weights: "full", as ``dtype`` says, or "int8": matrices in eight bits, by onnxruntime on a CPU, torchao on a GPU.
    """
    require(isinstance(target, str), f"target must be a model's name, got {target!r}")
    kernels = Kernels(engine, weights, rows=width, release=True)
    loaded = loading.load(target, device, dtype, trust_remote_code, kernels)
    drafter = drafter_named(draft, Beside(loaded, dtype, trust_remote_code))
    return LLM(loaded, drafter, width=width, slots=slots, exact=exact, graphs=graphs)


def _verifier(options: Options) -> Verifier:
    return choose(options.coupling, options.temperature == 0, options.lenience)


def _graphs(asked: bool | str, device: str) -> bool:
    require(asked in (True, False, "auto"), f'graphs must be True, False or "auto", got {asked!r}')
    require(
        asked is not True or device == "cuda",
        f'graphs=True needs a CUDA device, the model is on {device!r}; use graphs="auto" or device="cuda"',
    )
    return device == "cuda" and asked is not False


class LLM:
    """A target with a drafter, ready to generate."""

    def __init__(
        self,
        target: loading.Loaded,
        drafter: Drafter,
        *,
        width: int = WIDTH,
        slots: int | None = None,
        exact: bool = True,
        graphs: bool | str = "auto",
    ) -> None:
        self.target, self.drafter = target, drafter
        self.tokenizer = target.tokenizer
        self.width, self.slots, self.exact = width, slots, exact
        self.graphs = _graphs(graphs, target.model.device.type)
        self.lanes = Lanes(self.graphs)
        require(
            isinstance(width, int) and width >= 1,
            f"width must be a whole number of at least 1, got {width!r}",
        )
        require(slots is None or slots >= 1, f"slots must be at least 1, got {slots!r}")

    def with_draft(self, draft: str | Drafter | None, trust_remote_code: bool = False) -> LLM:
        """The same target, loaded once, with another drafter: what ``draft`` of ``load`` may be."""
        dtype = dtype_name(self.target.model.dtype)
        drafter = drafter_named(draft, Beside(self.target, dtype, trust_remote_code))
        return LLM(self.target, drafter, width=self.width, slots=self.slots, exact=self.exact, graphs=self.graphs)

    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Any) -> Any:
        """Generate from a text, token ids, or a list of either -> Output, or a list of them. Options: Options."""
        prompts, single = self._prompts(prompt)
        parsed = Options.parse(options)
        if parsed.beams > 1:
            outputs = list(self._search(prompts, parsed))
        else:
            trace, rows = self._trace(parsed), {}
            for event in self._events(prompts, parsed, trace):
                rows[event.index] = event.row
            outputs = [self._output(rows[i], trace.for_row(i), len(prompt)) for i, prompt in enumerate(prompts)]
        return outputs[0] if single else outputs

    def _search(self, prompts: list[list[int]], options: Options) -> Iterator[Output]:
        """Beam search, one prompt after another."""
        requests = self._requests(prompts, options)
        for request, prompt in zip(requests, prompts, strict=True):
            trace = Trace(self.drafter.name, "beam", **self._engine)
            beams = beam_search(self.decoder(options, len(request.prompt)), request, options, trace)
            yield Output.of_beams(beams, len(prompt), trace)

    def stream(self, prompt: Prompt | Sequence[Prompt], **options: Any) -> Iterator[Chunk]:
        """Like generate, but yields text as soon as it is accepted and can no longer change."""
        prompts, _ = self._prompts(prompt)
        parsed = Options.parse(options)
        require(
            parsed.beams == 1, f"beams={parsed.beams} cannot be streamed: no text is final before the end; use generate"
        )
        trace = self._trace(parsed)
        shown = [0] * len(prompts)
        with closing(self._events(prompts, parsed, trace)) as events:  # at once, where the caller leaves early
            for event in events:
                new = event.row.printable(self.decode, shown[event.index])
                shown[event.index] += len(new)
                yield Chunk.of_event(event, new, len(prompts[event.index]), trace)

    def chat(self, messages: Sequence[Mapping[str, str]], **options: Any) -> Output:
        """Answer a conversation [{"role": ..., "content": ...}, ...] by the tokenizer's chat template."""
        output: Output = self.generate(self.chat_prompt(messages), **options)
        return output

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The token ids of a conversation, ready to be answered."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise BadOption(f"{self.target.name} has no chat template; use generate(prompt) instead")
        return render(messages, self.tokenizer, self.target.name)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of one prompt, checked as generate checks them."""
        ids = token_ids(prompt, self.tokenizer)
        self._requests([ids], Options())
        return ids

    def show(self, tokens: Sequence[int]) -> str:
        """The text of tokens with special ones visible, for traces."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def decoder(self, options: Options, prompt_length: int = 1) -> Decoder:
        """The decoder a call with these options runs on."""
        defaults, asked = self._defaults, options.repetition_penalty
        penalty = defaults.repetition_penalty if asked is None else asked
        penalty, rules = defaults.rules(penalty, prompt_length, prompt_length + options.max_new_tokens)
        return Decoder(
            self.target.model,
            self._drafter(options),
            _verifier(options),
            replace(options.sampling(constraints=rules), repetition_penalty=penalty),
            self._gamma(options),
            self.width,
            self.slots,
            self.exact,
            self.lanes,
        )

    def _gamma(self, options: Options) -> int | Policy:
        """Where the text depends on gamma and a seed asks for the same text again, no clock may decide."""
        clockless = not _verifier(options).shares_noise and options.seed is not None
        return chosen(options.gamma, Auto(clock=False) if clockless else self._auto)

    @cached_property
    def _auto(self) -> Auto:
        """Kept from call to call, because it is told what steps cost by the steps themselves."""
        return Auto()

    @property
    def decoder_start(self) -> int | None:
        """The token an encoder-decoder model's output begins with."""
        return self._defaults.decoder_start

    @cached_property
    def _defaults(self) -> generation_config.Defaults:
        return generation_config.defaults(self.target.model)

    def _drafter(self, options: Options) -> Drafter:
        """One object for the same options, however often asked for: sessions kept for it are found again."""
        own = options.draft_options
        if not own:
            return self.drafter
        return self._standardised.setdefault(str(own), Standardised(self.drafter, **own))

    @cached_property
    def _standardised(self) -> dict[str, Drafter]:
        return {}

    def _trace(self, options: Options) -> Trace:
        exact = _verifier(options).exact
        return Trace(self._drafter(options).name, options.coupling, exact, lenience=options.lenience, **self._engine)

    @property
    def _engine(self) -> dict[str, Any]:
        """What statistics say of the target's engine."""
        facts = self.target.model.facts
        return {"engine": facts.engine, "dtype": facts.computes_in}

    def _events(self, prompts: list[list[int]], options: Options, trace: Trace) -> Generator[Event]:
        """Requests in groups that share every rule; one group unless the model's own rules count positions."""
        requests = self._requests(prompts, options)
        groups: dict[int, list[int]] = {}
        counts_positions = bool(self._defaults.constraints(1, 2))
        for index, request in enumerate(requests):
            groups.setdefault(len(request.prompt) if counts_positions else 1, []).append(index)
        failed = 0
        for length, members in groups.items():
            try:
                yield from self.decoder(options, length).stream([requests[i] for i in members], trace, members)
            except NumericalError:  # every row of this group
                failed += 1
                if failed == len(groups):
                    raise

    def _requests(self, prompts: list[list[int]], options: Options) -> list[Request]:
        model, start = self.target.model, self._defaults.decoder_start
        seeds = options.seeds(prompts, fresh=secrets.randbits(62))
        requests = []
        for prompt, seed in zip(prompts, seeds, strict=True):
            first = [start] if model.encoder_decoder and start is not None else prompt
            room = options.max_new_tokens if model.max_length is None else max(1, model.max_length - len(first))
            stopping = Stopping(
                max_new_tokens=min(options.max_new_tokens, room),
                eos=self._ends(options) | self._special_stops(options),
                stop=self._stops(options),
                criteria=tuple(options.stopping_criteria),
                decode=self.decode,
            )
            requests.append(Request(tuple(first), stopping, seed, tuple(prompt) if model.encoder_decoder else None))
        self.decoder(options).shapes(requests)  # a bad prompt is named before work is done for the others
        return requests

    def _special_stops(self, options: Options) -> frozenset[int]:
        """Stop strings that are special tokens: decoded text does not show them, so their ids are watched for."""
        stops = self._stops(options)
        if not stops:
            return frozenset()
        special = dict(zip(self.tokenizer.all_special_tokens, self.tokenizer.all_special_ids, strict=True))
        return frozenset(special[stop] for stop in stops if stop in special)

    def _stops(self, options: Options) -> tuple[str, ...]:
        """The call's stop strings, or those of the model's generation config."""
        return options.stop_strings or self._defaults.stop

    def _ends(self, options: Options) -> frozenset[int]:
        if options.eos is None:
            return self._defaults.eos
        return frozenset([options.eos] if isinstance(options.eos, int) else options.eos)

    def _prompts(self, prompt: Any) -> tuple[list[list[int]], bool]:
        """Texts and token ids, one or many -> lists of ids, and whether a single one was meant."""
        given, single = several(prompt)
        ids = []
        for index, one in enumerate(given):
            with named(index, len(given)):
                ids.append(token_ids(one, self.tokenizer))
        return ids, single

    def _output(self, row: Row, trace: Trace, prompt_tokens: int) -> Output:
        if row.error is not None:
            warnings.warn(f"a text ended early: {row.error}", stacklevel=3)
        return Output.of_row(row, row.text(self.decode), prompt_tokens, trace)
