"""The shape of an EAGLE-3 or P-EAGLE head: in the speculators format, or of a plain repository."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from outrider.drafters.published.config import PublishedConfig, Purpose
from outrider.drafters.published.decoder_config import DecoderConfig
from outrider.drafters.published.fields import Fields
from outrider.errors import require

PLAIN = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
"""Architectures of plain EAGLE-3 repositories: SpecForge's and the authors' own, vLLM's and AngelSlim's."""

_SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")

_DEFAULT_GUESSES = {"eagle3": 4, "peagle": 8}


@dataclass(frozen=True, kw_only=True)
class Eagle3Config(PublishedConfig):
    """An EAGLE-3 head runs once per guess, a P-EAGLE head once for all of them.

    ``fc`` makes one state of the target's states behind layers ``layers``. The first decoder layer reads that state
    and the embedding of the next token side by side. The next guess of an EAGLE-3 head reads the last layer's own
    output in place of the state; a P-EAGLE head reads ``mask_hidden`` and the embedding of ``mask_token`` there.
    """

    layers_field: ClassVar[str] = "eagle_aux_hidden_state_layer_ids"

    norm_before_residual: bool = False  # the residual stream begins with the normed state
    norm_before_fc: bool = False  # one norm of all states side by side
    fc_norm: bool = False  # a norm of each state
    norm_output: bool = False  # EAGLE-3: the next guess reads the output behind the last norm, not before it
    mask_token: int | None = None  # P-EAGLE: stands for tokens that are not known yet

    def __post_init__(self) -> None:
        require(not (self.norm_before_fc and self.fc_norm), "norm_before_fc and fc_norm exclude each other")
        require(
            self.mask_token is None or self.mask_token < self.vocab_size,
            f"mask_token_id {self.mask_token} is not in a vocabulary of {self.vocab_size}",
        )

    @property
    def parallel(self) -> bool:
        """Whether its layers run once for all guesses."""
        return self.kind == "peagle"

    @property
    def architecture(self) -> str:
        return "PEagleDraftModel" if self.parallel else "Eagle3DraftModel"

    @property
    def weights_read(self) -> int:
        decoder = self.decoder
        layers = decoder.layer_weights(2 * self.hidden_size) + (decoder.depth - 1) * decoder.layer_weights()
        return self.output_weights + (layers // self.gamma if self.parallel else layers)

    def options(self) -> Mapping[str, Any]:
        switches = {name: vars(self)[name] for name in _SWITCHES}
        return switches | ({"mask_token_id": self.mask_token} if self.parallel else {})


def of_speculators(config: Fields, kind: str) -> Eagle3Config:
    layers = config.layers(Eagle3Config.layers_field)
    mask = config.whole("mask_token_id", least=0) if kind == "peagle" else None
    return _made(kind, config, config.part("transformer_layer_config"), layers, Purpose.parse(config), mask)


def of_plain(config: Fields) -> Eagle3Config:
    inner = config.part("eagle_config")
    # Here the output of layer 0 is named 0 by some trainers and 1 by others: three layers that begin with 1 are the
    # former's [1, n/2 - 1, n - 4], since the latter begin with 2. SGLang tells them apart in the same way.
    layers = config.layers(Eagle3Config.layers_field) or inner.layers(Eagle3Config.layers_field)
    if layers is not None and layers[0] == 1:
        layers = tuple(layer + 1 for layer in layers)
    return _made("eagle3", config, config, layers, Purpose(None, (), Fields({})))


def _made(
    kind: str, head: Fields, inner: Fields, layers: tuple[int, ...] | None, purpose: Purpose, mask: int | None = None
) -> Eagle3Config:
    decoder = DecoderConfig.parse(inner)
    switches: dict[str, Any] = {name: head.switch(name) for name in _SWITCHES}
    return Eagle3Config(
        kind=kind,
        decoder=decoder,
        draft_vocab_size=head.whole("draft_vocab_size", decoder.vocab_size),
        target_size=head.whole("target_hidden_size", decoder.hidden_size),
        layers=layers,
        gamma=purpose.guesses(_DEFAULT_GUESSES[kind]),
        **purpose.target,
        **switches,
        mask_token=mask,
    )
