"""``transformers_generate``: what ``custom_generate=`` calls in place of transformers' own decoding loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from outrider.call import DecoderBuilder
from outrider.checks import check_64_bits, check_gamma, check_running, check_width
from outrider.core.protocols import Drafter, Shape
from outrider.decoding.loop import WIDTH, Decoder, Event, Request
from outrider.decoding.session_pool import SessionPool
from outrider.errors import BadOption, require
from outrider.hf.advice import advise_loading
from outrider.hf.keywords import hand_on
from outrider.hf.lent import LentModel, lent
from outrider.hf.processors import sampling_of
from outrider.hf.refusals import check_config, check_inputs
from outrider.hf.rows import Batch, asked_length, joined, requests
from outrider.options import COUPLINGS
from outrider.trace import Trace


def transformers_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: GenerationConfig | None = None,
    draft: Any = "auto",
    gamma: Any = None,
    coupling: str = "gumbel",
    seed: int | None = None,
    width: int = WIDTH,
    exact: bool = False,
    graphs: bool | str = "auto",
    streamer: Any = None,
    assistant_model: PreTrainedModel | None = None,
    assistant_tokenizer: Any = None,
    tokenizer: Any = None,
    synced_gpus: bool | None = None,
    inputs_tensor: Tensor | None = None,
    **model_kwargs: Any,
) -> Any:
    """For ``custom_generate=``. draft: a built-in drafter's name, a transformers model, or a Drafter.

    exact: runs of constant shape, so that the text is the same to the bit with and without guesses; slower.
    graphs: on a GPU replay steps as CUDA graphs; "auto" does, where they can be captured. The text is the same.
    ``streamer``, ``assistant_model`` and what follows are what ``generate`` was given under these names.
    """
    config = generation_config if generation_config is not None else model.generation_config
    with ExitStack() as stack:
        if streamer is not None:  # whoever reads from it must not wait for ever, whatever happens here
            stack.callback(streamer.end)
        _check_call(synced_gpus, assistant_tokenizer, coupling)
        check_running(width, None, exact, graphs)
        check_64_bits("seed", seed)
        check_gamma(gamma)
        check_config(config)
        check_inputs(model, input_ids, model_kwargs)
        require(streamer is None or len(input_ids) == 1, f"a streamer takes one prompt at a time, got {len(input_ids)}")
        advise_loading(model)
        length = asked_length(input_ids, stopping_criteria or ())
        target = stack.enter_context(lent(model, length))
        check_width(width, target.max_length)
        drafter = _drafter(_draft(draft, assistant_model), target, length, stack)
        batch = _batch(input_ids, model_kwargs, inputs_tensor)
        sampled = bool(config.do_sample)
        rows = [batch.given(row) for row in range(len(input_ids))]
        sampling = sampling_of(logits_processor or (), sampled, input_ids, rows, target.vocab_size)
        pool = target.pool if graphs else SessionPool()
        builder = DecoderBuilder(target, target.auto, pool, width, len(input_ids), exact)
        decoder = builder.decoder(drafter, sampling, coupling, gamma, repeatable=True)
        # Without a seed of its own, a script's torch.manual_seed decides, as it does for transformers.
        first_seed = int(torch.randint(2**62, (1,))) if seed is None else seed
        made = requests(batch, stopping_criteria or (), first_seed)
        decoder = replace(decoder, common=_common(decoder, made))
        texts = _texts(decoder.stream(made, Trace(drafter.name, coupling)), len(input_ids), streamer)
    sequences = joined(input_ids, texts, config)
    if not config.return_dict_in_generate:
        return sequences
    kind = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    return kind(sequences=sequences)


_SEEN = hand_on(transformers_generate)
"""Whether what ``generate`` is given for its own loop arrives here."""


def _check_call(synced_gpus: bool | None, assistant_tokenizer: Any, coupling: str) -> None:
    require(coupling in COUPLINGS, f"coupling must be one of {', '.join(COUPLINGS)}, got {coupling!r}")
    require(
        not synced_gpus,
        "synced_gpus: a model that is sharded over processes (FSDP, DeepSpeed ZeRO-3) is not supported with "
        "custom_generate=transformers_generate; gather it first",
    )
    require(
        assistant_tokenizer is None,
        "assistant_tokenizer: a draft must have the target's own tokenizer; leave it out, or use another draft",
    )
    if not _SEEN:
        warnings.warn(
            "this version of transformers does not tell custom_generate of streamer=, tokenizer=, assistant_model= and "
            "synced_gpus=: they have no effect",
            stacklevel=4,
        )


def _batch(ids: Tensor, given: dict[str, Any], inputs: Tensor | None) -> Batch:
    states = None if given.get("encoder_outputs") is None else given["encoder_outputs"][0]
    return Batch(ids, given.get("attention_mask"), states, inputs)


def _common(decoder: Decoder, made: list[Request]) -> Shape:
    """A shape that has room for every request: they run side by side, row by row of the caller's batch."""
    shapes = [decoder.shape(request) for request in made]
    most = max(shape.capacity for shape in shapes)
    return replace(shapes[0], capacity=most, source_capacity=max(shape.source_capacity for shape in shapes))


def _draft(draft: Any, assistant: PreTrainedModel | None) -> Any:
    require(
        assistant is None or isinstance(draft, str) and draft == "auto",
        f"assistant_model and draft={draft!r} both name a draft; leave one out",
    )
    return draft if assistant is None else assistant


def _drafter(draft: Any, target: LentModel, length: int, stack: ExitStack) -> Drafter:
    known = target.drafters
    if draft is None or (isinstance(draft, str) and draft in known):
        return known[draft or "none"]
    if isinstance(draft, PreTrainedModel):
        require(
            not target.encoder_decoder,
            "draft: a model cannot draft for an encoder-decoder here, where only the target's encoder has run; "
            "use outrider.load(target, draft=...)",
        )
        return stack.enter_context(lent(draft, length)).drafter
    if isinstance(draft, Drafter):
        return draft
    raise BadOption(f"draft must be one of {', '.join(known)}, a transformers model or a Drafter; got {draft!r}")


def _texts(events: Iterator[Event], size: int, streamer: Any) -> list[list[int]]:
    """Every row's tokens, handed to the streamer one by one as they are accepted."""
    rows: dict[int, Any] = {}
    for event in events:
        rows[event.index] = event.row
        if streamer is not None:
            for token in event.tokens:
                streamer.put(torch.tensor([token]))
    for row in rows.values():
        if row.error is not None:  # a tensor has no place to say it row by row
            raise row.exception
    return [rows[index].tokens for index in range(size)]
