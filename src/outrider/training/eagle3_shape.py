"""An EAGLE-3 head to train: of the target's sizes, or the published one that training goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.made_for import check_target
from outrider.drafters.published import Eagle3Config, Eagle3Head, PublishedDrafter, is_checkpoint
from outrider.drafters.published.decoder_config import ROTATIONS, DecoderConfig
from outrider.errors import require
from outrider.models.hub.loading import Loaded
from outrider.models.settings import setting
from outrider.models.transformers.fingerprint import fingerprint
from outrider.training.distill_plan import DistillPlan


def eagle3_head(target: Loaded, plan: DistillPlan, tokens: Tensor) -> Eagle3Head:
    """As the options say, for this target: its embeddings, its rows of the output layer for these tokens [N].

    ``fc`` begins as the last of the states that it reads, which is what the residual stream then begins with.
    """
    require(
        not target.model.encoder_decoder,
        f"{target.name} has an encoder, and EAGLE-3 heads draft for models without one; use --kind feature",
    )
    if plan.start is not None:
        return started(target, plan)
    head = Eagle3Head(_shape(target, plan, len(tokens)))
    size, reads = head.config.hidden_size, head.config.reads
    with torch.no_grad():
        head.fc.weight[:, (reads - 1) * size :] += torch.eye(size)
        head.lm_head.weight.copy_(target.transformers_model.unembedding[tokens.to(target.model.device)])
    return head


def started(target: Loaded, plan: DistillPlan) -> Eagle3Head:
    """The head of ``--from``, in float32, which must be an EAGLE-3 head for this very target."""
    drafter = started_drafter(target, plan)
    assert isinstance(drafter.head, Eagle3Head)
    head = drafter.head.float()
    if head.own_embedding is not None:
        head.own_embedding = head.own_embedding.to(target.model.device)
    has, wished = head.config, _shape(target, plan, len(drafter.tokens))
    asked = {
        "size": (plan.size is not None, has.decoder.inner_size, wished.decoder.inner_size),
        "reads": (plan.reads is not None, has.layers, wished.layers),
        "blocks": (plan.blocks is not None, has.decoder.depth, wished.decoder.depth),
    }
    for name, (given, its, wants) in asked.items():
        require(
            not given or its == wants,
            f"{name} of the head in {plan.start} is {its}, not {wants}: it goes on with the shape it has; leave the "
            "option out, or --from",
        )
    return head


def started_drafter(target: Loaded, plan: DistillPlan) -> PublishedDrafter:
    """The draft of ``--from`` beside the target."""
    folder = Path(str(plan.start))
    require(
        is_checkpoint(folder),
        f"there is no EAGLE-3 head in {plan.start}, and --kind eagle3 goes on from no other; give another --from, or "
        "--kind feature",
    )
    drafter = PublishedDrafter.load(folder).beside(target.model.facts)
    check_target(str(plan.start), drafter.config, target)
    name = drafter.config.name
    require(
        drafter.config.kind == "eagle3",
        f"the head in {plan.start} is of kind {name}; EAGLE-3 heads are trained here: give another --from",
    )
    require(
        plan.vocab is None,
        f"the head in {plan.start} has an output layer for its own tokens: leave out --vocab {plan.vocab}, or --from",
    )
    return drafter


def named(head: Eagle3Head, target: Loaded) -> None:
    """Write into a head's config whom it is for."""
    kinds = tuple(target.model.config.architectures or ())
    head.config = replace(
        head.config, target_name=target.name, target_architectures=kinds, fingerprint=fingerprint(target.model)
    )


def _shape(target: Loaded, plan: DistillPlan, tokens: int) -> Eagle3Config:
    config, size = target.model.config, int(target.model.hidden_size or 0)
    heads = int(config.num_attention_heads)
    inner = int(setting(config, "intermediate_size") or 4 * size)
    require(plan.size is None or plan.size.isdigit(), f"size of a head is its inner width, got {plan.size!r}")
    base, rotary = _rotary(config)
    return Eagle3Config(
        kind="eagle3",
        decoder=DecoderConfig(
            hidden_size=size,
            inner_size=inner if plan.size is None else int(plan.size),
            heads=(heads, int(setting(config, "num_key_value_heads") or heads)),
            head_size=int(setting(config, "head_dim") or size // heads),
            vocab_size=target.model.vocab_size,
            windows=(None,) * (plan.blocks or 1),
            norm_eps=float(setting(config, "rms_norm_eps", 1e-6)),
            rotary_base=base,
            rotary=rotary,
            max_positions=setting(config, "max_position_embeddings"),
        ),
        draft_vocab_size=tokens,
        target_size=size,
        layers=_reads(int(config.num_hidden_layers), plan),
        gamma=plan.depth,
        norm_before_residual=True,
    )


def _reads(layers: int, plan: DistillPlan) -> tuple[int, ...]:
    """Layers of the target, counted as the format counts them; by default those of vLLM, where there are so many."""
    if plan.reads is None:
        return tuple(sorted({min(2, layers - 1), layers // 2, max(1, layers - 3)}))
    wrong = [layer for layer in plan.reads if not 0 <= layer < layers]
    require(not wrong, f"reads names layers {wrong}: a head reads behind 0 to {layers - 1} layers of this target")
    return plan.reads


def _rotary(config: Any) -> tuple[float, Mapping[str, Any]]:
    """The target's own rotary positions, where the format knows them; else plain ones."""
    given = dict(setting(config, "rope_parameters") or {})
    known = given.get("rope_type") in ROTATIONS and given.get("partial_rotary_factor", 1) == 1
    found = {k: v for k, v in given.items() if k != "rope_theta"} if known else {"rope_type": "default"}
    return float(given.get("rope_theta", 10_000.0)), found
