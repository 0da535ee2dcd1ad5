"""Every error Outrider raises on purpose, so that one ``except OutriderError`` catches them all.

    OutriderError
    ├── BadOption            an option has a value it cannot have, or cannot be honoured
    │   ├── PromptError      the prompt itself: empty, too long, not text
    │   ├── ProcessorError   a logits processor that raises, or returns no scores of the shape it was given
    │   └── CriterionError   a stopping criterion that raises, or does not return whether the text ends
    ├── ModelError           a model cannot be found, read or fetched
    │   ├── ModelNotFound
    │   ├── ModelCorrupt
    │   └── PullFailed
    ├── DeviceError          a GPU that is missing or does not answer, or memory that is full
    ├── TokenizerMismatch    the tokens of target and draft cannot be compared, or next to none are common
    └── NumericalError       a model returned logits that are not numbers

A message is one line: the parameter, the rule, the value received, the remedy.
"""


class OutriderError(Exception):
    """Base class; the command line prints its message and exits with code 2."""


class BadOption(OutriderError, ValueError):
    """An option outside its range, unknown, or impossible to honour here."""


class NotForkable(BadOption):
    """A drafter whose sessions cannot be forked, which beam search and trees of guesses need."""


class PromptError(BadOption):
    """A prompt that cannot be continued."""


class ProcessorError(BadOption):
    """A logits processor that does not take one row of scores and return one."""


class CriterionError(BadOption):
    """A stopping criterion that does not say whether a text ends."""


class ModelError(OutriderError):
    """A model that cannot be used."""


class ModelNotFound(ModelError, FileNotFoundError):
    """No model under that name, path or hub id."""

    # FileNotFoundError would render the message as an errno pair.
    __str__ = Exception.__str__


class ModelCorrupt(ModelError):
    """Model files that are truncated, damaged or not safetensors."""


class PullFailed(ModelError):
    """A download or conversion that did not finish; nothing half-made is left behind."""


class DeviceError(OutriderError, RuntimeError):
    """A GPU that is missing or does not answer, or memory, the GPU's or the host's, that is full."""


class TokenizerMismatch(OutriderError):
    """Target and draft have different tokenizers that cannot be compared, or share next to nothing."""


class NumericalError(OutriderError):
    """Logits with NaN or infinity where a probability was needed."""


def require(condition: bool, message: str, kind: type[OutriderError] = BadOption) -> None:
    """Raise ``kind(message)`` unless ``condition`` holds: for checking what users pass in."""
    if not condition:
        raise kind(message)


def require_unicode(name: str, text: str) -> None:
    """Refuse text with a lone surrogate: no encoding has one, and tokenizers fail on it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"{name} has a lone surrogate, {ascii(text[error.start])}, at character {error.start}; decode the bytes it "
            "came from with their own encoding, or replace it with text.encode('utf-8', 'replace').decode()"
        ) from None


NOT_UTF8 = "convert it first, for example with `iconv -f latin1 -t utf-8`"


def decode_utf8(name: str, data: bytes) -> str:
    """Text from outside, which may be in any encoding: UTF-8 with or without its mark, or an error with a remedy."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadOption(f"{name} is not UTF-8 (byte 0x{data[error.start]:02x} at {error.start}); {NOT_UTF8}") from None
