"""The shape of a DFlash or DSpark head, as the speculators format describes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from outrider.drafters.published.config import PublishedConfig, Purpose
from outrider.drafters.published.decoder_config import DecoderConfig
from outrider.drafters.published.fields import Fields
from outrider.errors import BadOption, require

MARKOV_KINDS = ("vanilla", "gated", "rnn")

_DSPARK_RANK = 256
"""What ``markov_rank`` of a DSpark head is where its config does not say."""


@dataclass(frozen=True, kw_only=True)
class DFlashConfig(PublishedConfig):
    """A block of ``block_size`` places is run at once: the newest token, and ``mask_token`` for those behind it.

    Keys of the text come from the target's states, made one by ``fc`` and ``hidden_norm``, for every layer. With
    ``sample_from_anchor`` the newest token's own place makes the first guess, else the first mask's does. A DSpark
    head adds to the logits of a guess what the token before it says, in a factorised matrix of ``markov_rank``.
    """

    layers_field: ClassVar[str] = "aux_hidden_state_layer_ids"

    block_size: int
    mask_token: int
    sample_from_anchor: bool = False
    sliding_window_non_causal: bool = False  # places of a block see all others in layers with a window, too
    markov_rank: int = 0  # DSpark; 0: no such matrix
    markov_kind: str = "vanilla"
    confidence: bool = False  # DSpark: says how likely a guess is kept
    confidence_with_markov: bool = True  # and reads the token before it, too

    def __post_init__(self) -> None:
        require(self.block_size > 1 or self.sample_from_anchor, f"block_size {self.block_size} leaves no guess")
        require(
            self.mask_token < self.vocab_size,
            f"mask_token_id {self.mask_token} is not in a vocabulary of {self.vocab_size}",
        )
        require(
            self.hidden_size == self.target_size,
            f"target_hidden_size is {self.target_size} and hidden_size {self.hidden_size}; they must be the same",
        )
        require(
            self.markov_kind in MARKOV_KINDS,
            f"markov_head_type is {self.markov_kind!r}; known are {', '.join(MARKOV_KINDS)}",
        )
        require(
            self.markov_rank > 0 or not (self.confidence and self.confidence_with_markov),
            f"confidence_head_with_markov needs a markov_rank above 0, got {self.markov_rank}",
        )

    @property
    def architecture(self) -> str:
        return "DSparkDraftModel" if self.kind == "dspark" else "DFlashDraftModel"

    @property
    def guesses(self) -> int:
        """That one run of the layers makes."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1

    @property
    def shares_output(self) -> bool:
        """Whether its output layer is the target's: a checkpoint of the whole vocabulary has none."""
        return self.draft_vocab_size == self.vocab_size

    @property
    def weights_read(self) -> int:
        layers, rank = self.decoder.depth * self.decoder.layer_weights(), self.markov_rank
        inward = {"vanilla": 0, "gated": (self.hidden_size + rank) * rank}
        chain = inward.get(self.markov_kind, 3 * (self.hidden_size + 2 * rank) * rank) + rank * self.draft_vocab_size
        return self.output_weights + layers // self.gamma + (chain if rank else 0)

    def options(self) -> Mapping[str, Any]:
        found: dict[str, Any] = {
            "block_size": self.block_size, "mask_token_id": self.mask_token,
            "sample_from_anchor": self.sample_from_anchor, "sliding_window_non_causal": self.sliding_window_non_causal,
        }  # fmt: skip
        if self.kind == "dspark":
            found |= {
                "markov_rank": self.markov_rank, "markov_head_type": self.markov_kind,
                "enable_confidence_head": self.confidence, "confidence_head_with_markov": self.confidence_with_markov,
            }  # fmt: skip
        return found


def of_speculators(config: Fields, kind: str) -> DFlashConfig:
    decoder = DecoderConfig.parse(config.part("transformer_layer_config"))
    decoder = replace(decoder, family="qwen3", mlp_bias=False)  # layers are a Qwen3's, whatever ``model_type`` says
    layers = config.layers(DFlashConfig.layers_field)
    if layers is None:
        raise BadOption(f"{DFlashConfig.layers_field} must be a list of layers, got None")
    dspark = kind == "dspark"
    size, anchor = config.whole("block_size", 8), config.switch("sample_from_anchor", default=dspark)
    purpose, most = Purpose.parse(config), size if anchor else size - 1
    markov: dict[str, Any] = {
        "markov_rank": config.whole("markov_rank", _DSPARK_RANK, least=0),
        "markov_kind": str(config.settings.get("markov_head_type") or "vanilla"),
        "confidence": config.switch("enable_confidence_head", default=True),
        "confidence_with_markov": config.switch("confidence_head_with_markov", default=True),
    }
    return DFlashConfig(
        kind=kind,
        decoder=decoder,
        draft_vocab_size=config.whole("draft_vocab_size", decoder.vocab_size),
        target_size=config.whole("target_hidden_size", decoder.hidden_size),
        layers=layers,
        gamma=max(1, min(most, purpose.guesses(max(1, most)))),
        **purpose.target,
        block_size=size,
        mask_token=config.whole("mask_token_id", least=0),
        sample_from_anchor=anchor,
        sliding_window_non_causal=config.switch("sliding_window_non_causal"),
        **(markov if dspark else {}),
    )
