"""What a guess of a draft model costs above temperature 0: measured once for a pair of models, and kept."""

from __future__ import annotations

import torch

from outrider.core.algorithm import speculative_step
from outrider.core.noise import Noise
from outrider.core.protocols import LanguageModel, Shape
from outrider.core.sampling import Sampling
from outrider.core.verification.maximal import maximal_coupling
from outrider.drafters.model import ModelDrafter
from outrider.models.engine.model import EngineModel
from outrider.models.hub.loading import Loaded
from outrider.models.width_costs import turns
from outrider.runtime import timer

NOMINAL = 0.6
"""Where nothing can be kept."""

_GUESSES, _STEPS = 2, 4
"""Of a step, and steps that are timed of each text."""

_STEP = 0.05
"""Costs are rounded to this: less would be noise."""


def kept_sampled_cost(draft: Loaded, target: Loaded) -> float | None:
    """Of small encoder-decoders, whose runs take less than what is around them; None: not measured."""
    model = draft.model
    if not isinstance(model, EngineModel) or not (model.encoder_decoder and model.facts.batch_invariant):
        return None
    return model.kept_guess_cost(target.model, lambda: sampled_cost(model, target.model), NOMINAL)


@torch.no_grad()
def sampled_cost(draft: LanguageModel, target: LanguageModel) -> float:
    """Time of a guess, drawing and judging it included, over that of a plain step: of many steps the quickest count."""
    quickest = dict.fromkeys((0, _GUESSES), float("inf"))
    for _ in turns():
        for guesses in quickest:
            quickest[guesses] = min(quickest[guesses], *_steps(draft, target, guesses))
    cost = (quickest[_GUESSES] - quickest[0]) / _GUESSES / quickest[0]
    return max(_STEP, round(round(cost / _STEP) * _STEP, 2))


def _steps(draft: LanguageModel, target: LanguageModel, guesses: int) -> list[float]:
    """Seconds of steps at temperature 1; those of the first, which encodes the source, are left out."""
    source, shape, taken = tuple(range(3, 19)), Shape(256, 9, 64), []
    session = target.start(1, shape)
    drafting = ModelDrafter(draft).start(1, shape, session)
    for one in (session, drafting):
        one.admit(0, [0], source)
    for _ in range(1 + _STEPS):
        began = timer.now()
        speculative_step(session, drafting, maximal_coupling, Sampling(1.0), Noise(torch.tensor([0])), guesses)
        taken.append(timer.now() - began)
    return taken[1:]
