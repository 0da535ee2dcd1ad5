"""The transformers door: an existing script changes one line.

    model.generate(**inputs, custom_generate=outrider.transformers_generate, draft="copy")

transformers prepares inputs, processors and criteria as always; the decoding loop is Outrider's. An
``assistant_model`` never reaches it (transformers drops it beside ``custom_generate``): pass ``draft=`` instead.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.utils import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

from outrider.decoding.decoder import WIDTH, Decoder, Request
from outrider.decoding.planner import Auto, chosen
from outrider.decoding.stopping import Stopping
from outrider.drafters import ModelDrafter, built_in
from outrider.errors import BadOption, NumericalError, require
from outrider.models.huggingface import HuggingFaceModel
from outrider.noise import row_seeds
from outrider.options import COUPLINGS
from outrider.sampling import Sampling
from outrider.trace import Trace
from outrider.types import Drafter
from outrider.verification.choose import choose

_OTHER_MODES = ("penalty_alpha", "prompt_lookup_num_tokens", "dola_layers", "guidance_scale", "assistant_early_exit")
_REFUSED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def transformers_generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    generation_config: GenerationConfig | None = None,
    draft: Any = "auto",
    gamma: Any = None,
    coupling: str = "maximal",
    seed: int | None = None,
    width: int = WIDTH,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """For ``custom_generate=``. draft: a built-in drafter's name, a transformers model, or a Drafter."""
    config = generation_config if generation_config is not None else model.generation_config
    _check(config, coupling)
    _check_padding(logits_processor, model_kwargs.get("attention_mask"), bool(model.config.is_encoder_decoder))
    was_training = model.training
    target = HuggingFaceModel(model)  # in eval mode until the end of the call
    drafter = _drafter(draft, target)
    sampled = bool(config.do_sample)
    decoder = Decoder(
        target,
        drafter,
        choose(coupling, greedy=not sampled),
        Sampling(temperature=1.0 if sampled else 0.0, processors=tuple(logits_processor or ())),
        # A script's seed gives the same text again: where the text depends on gamma, no clock may decide it.
        chosen(gamma, Auto(clock=not sampled or coupling == "gumbel")),
        width,
    )
    # Without a seed of its own, a script's torch.manual_seed decides, as it does for transformers.
    first_seed = int(torch.randint(2**62, (1,))) if seed is None else seed
    requests = _requests(target, config, input_ids, stopping_criteria, model_kwargs, first_seed)
    if streamer is not None:
        require(len(requests) == 1, f"a streamer takes one prompt at a time, got {len(requests)}")
        streamer.put(input_ids.cpu())
    rows: dict[int, Any] = {}
    for event in decoder.stream(requests, Trace(drafter.name, coupling)):
        rows[event.index] = event.row
        if streamer is not None:
            streamer.put(torch.tensor(event.tokens))
    if streamer is not None:
        streamer.end()
    model.train(was_training)
    failed = [row.error for row in rows.values() if row.error is not None]
    require(not failed, "".join(failed[:1]), NumericalError)  # a tensor has no place to say it row by row
    sequences = _padded(input_ids, [rows[i].tokens for i in range(len(requests))], config)
    if not config.return_dict_in_generate:
        return sequences
    return (GenerateEncoderDecoderOutput if target.encoder_decoder else GenerateDecoderOnlyOutput)(sequences=sequences)


def _check(config: GenerationConfig, coupling: str) -> None:
    require(coupling in COUPLINGS, f"coupling must be one of {', '.join(COUPLINGS)}, got {coupling!r}")
    beams = config.num_beams or 1
    require(
        beams == 1,
        f"num_beams={beams} is not supported with custom_generate; use outrider.load(...).generate(beams=...)",
    )
    asked = [name for name in _REFUSED if getattr(config, name, None)]
    require(not asked, f"{', '.join(asked)} cannot be returned by speculative decoding; leave it out")
    modes = [name for name in _OTHER_MODES if getattr(config, name, None) not in (None, 0, 1)]
    require(not modes, f"{', '.join(modes)} asks for another way of decoding; leave it out with custom_generate")


_COUNTING = ("MinLength", "MinNewTokens", "ForcedBOS", "ForcedEOS", "SuppressTokensAtBegin", "ExponentialDecay")


def _check_padding(processors: Any, mask: Any, encoder_decoder: bool) -> None:
    """Padding is taken off here, but transformers made these processors count it."""
    padded = not encoder_decoder and mask is not None and not bool(mask.all())
    counting = [type(p).__name__ for p in processors or () if type(p).__name__.startswith(_COUNTING)]
    require(
        not (padded and counting), f"{', '.join(counting)} cannot be honoured in a padded batch; pass prompts singly"
    )


def _drafter(draft: Any, target: HuggingFaceModel) -> Drafter:
    known = built_in()
    if draft is None or (isinstance(draft, str) and draft in known):
        return known[draft or "none"]
    if isinstance(draft, PreTrainedModel):
        require(
            not target.encoder_decoder,
            "draft: a model cannot draft for an encoder-decoder here, where only the target's encoder has run; "
            "use outrider.load(target, draft=...)",
        )
        return ModelDrafter(HuggingFaceModel(draft), name=type(draft).__name__)
    if isinstance(draft, Drafter):
        return draft
    raise BadOption(f"draft must be one of {', '.join(known)}, a transformers model or a Drafter; got {draft!r}")


def _requests(
    target: HuggingFaceModel,
    config: GenerationConfig,
    ids: Tensor,
    criteria: Any,
    kwargs: dict[str, Any],
    seed: int,
) -> list[Request]:
    mask = kwargs.get("attention_mask")
    ends = config.eos_token_id
    ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
    requests = []
    for row in range(ids.shape[0]):
        prompt, source = ids[row], None
        if target.encoder_decoder:
            source = kwargs["encoder_outputs"].last_hidden_state[row]
            source = source if mask is None else source[mask[row].bool()]
        elif mask is not None:
            prompt = prompt[mask[row, : len(prompt)].bool()]  # padding on the left goes
        # transformers counts padding into max_length, so every row may add the same number of tokens.
        rules = Stopping(config.max_length - ids.shape[1], frozenset(ends), criteria=tuple(criteria or ()))
        requests.append(Request(tuple(prompt.tolist()), rules, 0, source))
    seeds = row_seeds(seed, [_told_apart(request) for request in requests])
    return [replace(request, seed=own) for request, own in zip(requests, seeds, strict=True)]


def _told_apart(request: Request) -> list[int]:
    """What a row is told apart by: its tokens and, of an encoder's output, where each position is largest. Unlike the
    output itself that does not change with the last bits, which may depend on the other sources of a batch."""
    if not isinstance(request.source, Tensor):
        return list(request.prompt)
    return [*request.source.argmax(-1).tolist(), -1, *request.prompt]


def _padded(ids: Tensor, new: list[list[int]], config: GenerationConfig) -> Tensor:
    pad = config.pad_token_id
    ends = config.eos_token_id
    pad = pad if pad is not None else (ends if isinstance(ends, int) else ends[0] if ends else 0)
    longest = max(len(tokens) for tokens in new)
    rows = [tokens + [pad] * (longest - len(tokens)) for tokens in new]
    return torch.cat([ids, torch.tensor(rows, dtype=ids.dtype, device=ids.device)], 1)
