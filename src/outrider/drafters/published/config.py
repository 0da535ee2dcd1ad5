"""What the config.json of every published head tells: sizes, layers of the target, guesses, and whom it is for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from outrider.drafters.published.decoder_config import DecoderConfig
from outrider.drafters.published.fields import Fields

SPECULATORS = "speculators_model_type"
"""The field that every config.json of the speculators format has."""

FINGERPRINT = "outrider_target"
"""A field of our own: the fingerprint of the target that a head was trained for here."""


@dataclass(frozen=True, kw_only=True)
class PublishedConfig(ABC):
    """Sizes and options of a head that others have trained. A kind of head is a subclass."""

    layers_field: ClassVar[str]  # that ``layers`` stand in

    kind: str  # as the speculators format names it
    decoder: DecoderConfig
    draft_vocab_size: int  # tokens that the head can draft
    target_size: int  # hidden size of the target
    layers: tuple[int, ...] | None  # so many layers of the target have run; None: see ``resolved``
    gamma: int  # guesses it is best asked for
    target_name: str | None = None
    target_architectures: tuple[str, ...] = ()
    fingerprint: str = ""  # of the target, where the head was trained here

    @property
    def hidden_size(self) -> int:
        return self.decoder.hidden_size

    @property
    def vocab_size(self) -> int:
        """Of the target."""
        return self.decoder.vocab_size

    @property
    def reads(self) -> int:
        """Layers of the target it reads: three where nothing is said."""
        return 3 if self.layers is None else len(self.layers)

    @property
    def output_weights(self) -> int:
        return self.draft_vocab_size * self.hidden_size

    @property
    @abstractmethod
    def architecture(self) -> str:
        """The class of the speculators package that loads it."""

    @property
    @abstractmethod
    def weights_read(self) -> int:
        """Numbers a guess multiplies with. What is made once for a token of the target is no part of a guess."""

    @property
    def name(self) -> str:
        """The kind, as people write it."""
        return {"eagle3": "EAGLE-3", "peagle": "P-EAGLE", "dflash": "DFlash", "dspark": "DSpark"}[self.kind]

    def resolved(self, layers: int) -> Self:
        """For a target of so many layers. Where the checkpoint names none, vLLM and SGLang read these three."""
        if self.layers is not None:
            return self
        return replace(self, layers=(2, layers // 2, layers - 3))

    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """The fields of its config.json that heads of this kind alone have."""

    def for_speculators(self) -> dict[str, Any]:
        """The config.json of the speculators format."""
        return {
            "architectures": [self.architecture],
            SPECULATORS: self.kind,
            "draft_vocab_size": self.draft_vocab_size,
            "target_hidden_size": self.target_size,
            self.layers_field: None if self.layers is None else list(self.layers),
            **self.options(),
            **({FINGERPRINT: self.fingerprint} if self.fingerprint else {}),
            "transformer_layer_config": self.decoder.for_speculators(),
            "speculators_config": {
                "algorithm": self.kind,
                "default_proposal_method": "greedy",
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": self.gamma}],
                "verifier": {"name_or_path": self.target_name, "architectures": list(self.target_architectures)},
            },
        }


@dataclass(frozen=True)
class Purpose:
    """Whom a head is for and how many guesses it makes, as ``speculators_config`` tells."""

    target_name: str | None
    target_architectures: tuple[str, ...]
    proposal: Fields
    fingerprint: str = ""

    @staticmethod
    def parse(config: Fields) -> Purpose:
        made = config.part("speculators_config")
        methods = made.settings.get("proposal_methods")
        first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
        target = made.part("verifier").settings
        name, kinds = target.get("name_or_path"), target.get("architectures")
        return Purpose(
            name if isinstance(name, str) else None,
            tuple(map(str, kinds)) if isinstance(kinds, Sequence) else (),
            Fields(first),
            str(config.settings.get(FINGERPRINT) or ""),
        )

    @property
    def target(self) -> dict[str, Any]:
        """Fields of ``PublishedConfig``."""
        return {name: vars(self)[name] for name in ("target_name", "target_architectures", "fingerprint")}

    def guesses(self, default: int) -> int:
        return self.proposal.whole("speculative_tokens", default)
