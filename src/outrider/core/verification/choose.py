"""Chooses the rule of acceptance for a call."""

from __future__ import annotations

from outrider.core.protocols import Verifier
from outrider.core.verification.block import block_coupling
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.lenient import lenient, lenient_greedy
from outrider.core.verification.maximal import maximal_coupling

VERIFIERS = {"maximal": maximal_coupling, "gumbel": gumbel_coupling, "block": block_coupling}
"""The exact rules by the names ``coupling=`` takes."""


def choose(coupling: str, greedy: bool, lenience: float = 1.0) -> Verifier:
    """At temperature 0 every coupling keeps exactly the target's choices; matching needs no residual."""
    if lenience < 1:
        return lenient_greedy(lenience) if greedy else lenient(lenience)
    return gumbel_coupling if greedy else VERIFIERS[coupling]
