"""The Python API: ``llm = outrider.load(...)``, then ``llm.generate``, ``llm.stream``, ``llm.chat``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import replace
from functools import cached_property
from typing import Any

from outrider.beam.search import beam_search
from outrider.call import Call, DecoderBuilder
from outrider.checks import (
    check_parallel,
    check_running,
    check_trust,
    check_whole,
    check_width,
    only_known_options,
)
from outrider.core.model_facts import dtype_name
from outrider.core.protocols import Drafter
from outrider.decoding.loop import WIDTH, Decoder, Request
from outrider.decoding.session_pool import SessionPool
from outrider.decoding.stopping import Row
from outrider.drafters import OutputMemory, Standardised
from outrider.drafters.by_name import Beside, check_draft, drafter_named, searches_suffixes
from outrider.errors import BadOption, require
from outrider.models.engine.choice import Kernels
from outrider.models.hub import generation_config, loading
from outrider.models.settings import has_chat_template
from outrider.options import Options
from outrider.output import Chunk, Output
from outrider.planning.policies import Auto, Rehearsal
from outrider.prompts import named, render, several, token_ids
from outrider.runtime.gc_pause import gc_paused
from outrider.trace import Trace

Prompt = str | Sequence[int]


@only_known_options({"generate": Options.__dataclass_fields__})
@gc_paused()
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
    kv_cache_dtype: str = "auto",
    max_length: int | None = None,
    trust_remote_code: bool = False,
    tensor_parallel: int = 1,
    remember: bool = False,
) -> LLM:
    """Load a target and a drafter.

    target: a short name (smollm2-135m, t5-ende), a directory, a .gguf file or a hub id. A directory with a
    target and a draft in it is a pair: its draft is what "auto" means there.
    draft: a name in ``outrider.drafters.BUILT_IN`` ("auto", "copy", "none" ...; None is "none"), "head" (the one that
        comes with the package for the target), "suffix:DIR" (an index by `outrider suffix build`), a model named like
        a target, or a Drafter;
        "copy>small-model" is a cascade: copying drafts for the small model, which drafts for the target.
    width: W, the tokens of every target run; gamma can be up to width - 1.
    slots: rows that run together; None means as many as there are prompts, at most 8, or what suits the model's
        kernels: 64 where they are batch-invariant on a GPU.
    exact: constant shapes, so that speculation on or off gives the same text to the bit.
    graphs: replay whole steps as CUDA graphs; "auto" does so on a GPU. The text is the same.
    dtype: what the model computes in; "auto": what the checkpoint was saved in where the device is fast at it, else
        float32, or float16 by numba on ARM CPUs that compute in it, which is nearer to float32 than bfloat16 is.
    engine: what runs the model: "torch"; on a CPU, for families of Llama's and T5's kind, "numba" (two or four bytes a
        weight, computing in float32 or float16, or packed); or "auto": numba where it can, else torch.
    weights: "full", as they were saved (those of a .gguf file as they are, by numba, unless a dtype is asked for), or
        quantised: "int8" by numba on a CPU and torchao on a GPU, "int4" by numba.
    kv_cache_dtype: what the numba engine stores keys and values in: "float32", "bfloat16" or "float16"; "auto":
        float32 where weights or dtype are; else bfloat16 where the CPU has AMX, and float16 where it has instructions
        for it (on ARM CPUs that compute in float16, where weights are in float16 or packed).
    max_length: tokens of a prompt and its text together, at most; None: what the model is for. Models with longrope
        (Phi-3-128k, Phi-4-mini) are for texts of the length of their first training, 4,096 tokens: with a max_length
        beyond it all positions have the factors of long texts, whatever the length of a text.
    tensor_parallel: processes of torchrun over which the target's layers are sharded. On rank 0 this returns; on every
        other rank it serves rank 0 until that ends, then ends the process.
    remember: with draft "suffix", guess from earlier outputs of this LLM, too: kept in memory, the oldest forgotten
        first. Not searched with couplings "maximal" and "block" above temperature 0.
    """
    require(isinstance(target, str) and target != "", f"target must be a model's name, got {target!r}")
    check_draft(draft)
    check_running(width, slots, exact, graphs)
    check_trust(trust_remote_code)
    check_parallel(tensor_parallel, graphs)
    memory = _memory(remember, draft)
    rows = min(width, 256)  # what matrices are laid out for
    kernels = Kernels(engine, weights, rows, release=True, kv_cache_dtype=kv_cache_dtype, max_length=max_length)
    if tensor_parallel > 1:
        from outrider.models.hub import sharded

        graphs = False  # a graph that is replayed here runs on no other rank
        loaded = sharded.load(target, tensor_parallel, device, dtype, trust_remote_code, kernels)
    else:
        loaded = loading.load(target, device, dtype, trust_remote_code, kernels)
    drafter = drafter_named(draft, Beside(loaded, dtype, trust_remote_code, memory))
    return LLM(loaded, drafter, width=width, slots=slots, exact=exact, graphs=graphs, memory=memory)


def _memory(remember: bool, draft: object) -> OutputMemory | None:
    require(isinstance(remember, bool), f"remember must be True or False, got {remember!r}")
    used = not remember or searches_suffixes(draft)
    require(used, f"remember=True is for draft 'suffix' or 'suffix:DIR', got {draft!r}; name one, or leave it out")
    return OutputMemory() if remember else None


def _graphs(asked: bool | str, device: str) -> bool:
    require(
        asked is not True or device == "cuda",
        f'graphs=True needs a CUDA device, the model is on {device!r}; use graphs="auto" or device="cuda"',
    )
    return device == "cuda" and asked is not False


class LLM:
    """A target with a drafter, ready to generate. ``memory``: where outputs are kept, for drafters that search it."""

    def __init__(
        self,
        target: loading.Loaded,
        drafter: Drafter,
        *,
        width: int = WIDTH,
        slots: int | None = None,
        exact: bool = True,
        graphs: bool | str = "auto",
        memory: OutputMemory | None = None,
    ) -> None:
        check_running(width, slots, exact, graphs)
        check_width(width, target.model.max_length, target.kernels.max_length)
        self.target, self.drafter = target, drafter
        self.tokenizer = target.tokenizer
        self.width, self.slots, self.exact = width, slots, exact
        self.graphs = _graphs(graphs, target.model.device.type)
        self.pool = SessionPool(self.graphs)
        self.memory = memory
        self._auto = Auto()  # kept from call to call: it learns from the steps what they cost
        self._standardised: dict[str, Drafter] = {}

    def with_draft(self, draft: str | Drafter | None, trust_remote_code: bool = False) -> LLM:
        """The same target, loaded once, with another drafter: what ``draft`` of ``load`` may be."""
        check_trust(trust_remote_code)
        dtype = dtype_name(self.target.model.dtype)
        drafter = drafter_named(draft, Beside(self.target, dtype, trust_remote_code, self.memory))
        return LLM(
            self.target, drafter, width=self.width, slots=self.slots, exact=self.exact, graphs=self.graphs,
            memory=self.memory,
        )  # fmt: skip

    def generate(self, prompt: Prompt | Sequence[Prompt], **options: Any) -> Any:
        """Generate from a text, token ids, or a list of either -> Output, or a list of them. Options: Options."""
        prompts, single = self._prompts(prompt)
        call = self.call(Options.parse(options))
        requests = call.requests(prompts)
        if call.options.beams > 1:
            outputs = list(self._search(call, requests, prompts))
        else:
            trace = call.trace()
            rows = {event.index: event.row for event in call.events(requests, trace)}
            outputs = [self._output(rows[i], trace.for_row(i), len(prompt)) for i, prompt in enumerate(prompts)]
        return outputs[0] if single else outputs

    def warm_up(self, rows: int = 1, **options: Any) -> None:
        """Make ready for calls of ``rows`` prompts with these options, so that none of them waits for it.

        On a GPU every number of guesses that "auto" may choose is captured as a CUDA graph, which takes seconds; on a
        CPU what is compiled at its first use is compiled.
        """
        check_whole("rows", rows, 1)
        ours = [name for name in ("gamma", "max_new_tokens", "eos", "beams") if name in options]
        require(not ours, f"warm_up chooses {', '.join(ours)} by itself; leave it out")
        prompts = [[token % self.target.model.vocab_size for token in range(3, 43)]] * rows
        rehearsing = copy(self)
        rehearsing.memory = None  # what is written here is nobody's output
        rehearsing.generate(prompts, **options, gamma=0, max_new_tokens=2)
        most = self.width - 1
        if self.drafter.name == "none" or most == 0:
            return
        runs = Rehearsal.of_graphs(most, self._auto) if self.graphs else Rehearsal((most,) * 4, self._auto)
        rehearsing.generate(prompts, **options, gamma=runs, eos=(), max_new_tokens=runs.tokens)

    def _search(self, call: Call, requests: list[Request], prompts: list[list[int]]) -> Iterator[Output]:
        """Beam search, one prompt after another."""
        for request, prompt in zip(requests, prompts, strict=True):
            trace = call.trace()
            beams = beam_search(call.behind(len(request.prompt)), request, call.options, trace)
            yield Output.of_beams(beams, len(prompt), trace)

    def stream(self, prompt: Prompt | Sequence[Prompt], **options: Any) -> Iterator[Chunk]:
        """Like generate, but yields text as soon as it is accepted and can no longer change.

        Prompts and options are checked by the call itself, not by the first ``next``.
        """
        prompts, _ = self._prompts(prompt)
        call = self.call(Options.parse(options))
        beams = call.options.beams
        require(beams == 1, f"beams={beams} cannot be streamed: no text is final before the end; use generate")
        return self._chunks(call, call.requests(prompts), prompts)

    def _chunks(self, call: Call, requests: list[Request], prompts: list[list[int]]) -> Iterator[Chunk]:
        trace = call.trace()
        shown = [0] * len(prompts)
        with closing(call.events(requests, trace)) as events:  # at once, where the caller leaves early
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
        if not has_chat_template(self.tokenizer):
            raise BadOption(
                f"{self.target.name} has no chat template; give it a prompt as text (on the command line leave --chat "
                "out), or name an instruction-tuned model"
            )
        return render(messages, self.tokenizer, self.target.name)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of one prompt, checked as generate checks them."""
        ids = token_ids(prompt, self.tokenizer)
        self.call(Options()).requests([ids])
        return ids

    def show(self, tokens: Sequence[int]) -> str:
        """The text of tokens with special ones visible, for traces."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=False))

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def decoder(self, options: Options, prompt_length: int = 1) -> Decoder:
        """The decoder that a call with these options runs prompts of this length on."""
        return self.call(options).behind(prompt_length)

    def call(self, options: Options) -> Call:
        """What a call with these options needs, worked out once."""
        builder = DecoderBuilder(self.target.model, self._auto, self.pool, self.width, self.slots, self.exact)
        decoder = builder.decoder(
            self._drafter(options), options.sampling(), options.coupling, options.gamma, options.lenience,
            repeatable=options.seed is not None, tree=options.tree,
        )  # fmt: skip
        model, tokenizer = self.target.model, self.tokenizer
        special: dict[str, int] = {}
        if options.stop_strings or self._defaults.stop:
            special = dict(zip(tokenizer.all_special_tokens, tokenizer.all_special_ids, strict=True))
        engine = {"engine": model.facts.engine, "dtype": model.facts.computes_in}
        call = Call.compiled(options, decoder, self._defaults, self.decode, special, model.encoder_decoder, engine)
        return replace(call, memory=self.memory)

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
