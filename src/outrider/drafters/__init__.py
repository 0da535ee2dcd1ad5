"""Drafters: everything that can guess ahead. A new one is one file and one class; see docs/adding-a-drafter.md."""

from outrider.core.protocols import Drafter
from outrider.drafters.cascade import Cascade
from outrider.drafters.copying import Copying
from outrider.drafters.fallback import Fallback
from outrider.drafters.mixture import Mixture
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import Ngram, NgramTable
from outrider.drafters.nothing import Nothing
from outrider.drafters.standardised import Standardised
from outrider.drafters.uniform import Uniform

__all__ = [
    "Cascade",
    "Copying",
    "Fallback",
    "Mixture",
    "ModelDrafter",
    "Ngram",
    "NgramTable",
    "Nothing",
    "Standardised",
    "Uniform",
    "built_in",
]


def built_in() -> dict[str, Drafter]:
    """The drafters that need no model, by the names ``draft=`` takes."""
    return {
        "copy": Copying(),
        "ngram": Ngram(),
        "uniform": Uniform(),
        "none": Nothing(),
        "auto": Mixture(Copying(), Ngram()),
    }
