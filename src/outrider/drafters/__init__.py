"""Drafters: everything that can guess ahead. A new one is one file and one class; see docs/adding-a-drafter.md."""

from collections.abc import Callable

from outrider.core.protocols import Drafter
from outrider.drafters.cascade import Cascade
from outrider.drafters.copying import Copying
from outrider.drafters.fallback import Fallback
from outrider.drafters.mixture import Mixture
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import Ngram, NgramTable
from outrider.drafters.nothing import Nothing
from outrider.drafters.output_memory import OutputMemory
from outrider.drafters.standardised import Standardised
from outrider.drafters.suffix import Suffix
from outrider.drafters.suffix_index import SuffixIndex
from outrider.drafters.uniform import Uniform

__all__ = [
    "BUILT_IN",
    "Cascade",
    "Copying",
    "Fallback",
    "Mixture",
    "ModelDrafter",
    "Ngram",
    "NgramTable",
    "Nothing",
    "OutputMemory",
    "Standardised",
    "Suffix",
    "SuffixIndex",
    "Uniform",
    "built_in",
]


BUILT_IN: dict[str, Callable[[], Drafter]] = {
    "auto": lambda: Mixture(Copying(), Ngram()),
    "copy": Copying,
    "ngram": Ngram,
    "suffix": Suffix,
    "uniform": Uniform,
    "none": Nothing,
}
"""What makes the drafters that need no model, by the names ``draft=`` takes. A new one is a new entry.

Requests of different users of a server share the one that is made there, so it keeps nothing of a text but its row.
"""


def built_in() -> dict[str, Drafter]:
    """The drafters that need no model, by name, each made anew."""
    return {name: make() for name, make in BUILT_IN.items()}
