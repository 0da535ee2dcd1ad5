"""How experience is counted while a text is written: old runs fade, and little evidence leans on a prior."""

from __future__ import annotations

FADE = 0.97
"""Weight of a run when the next one is counted: about thirty runs are remembered."""

PRIOR_WEIGHT = 4.0
"""What was believed before anything was seen counts as this many guesses."""
