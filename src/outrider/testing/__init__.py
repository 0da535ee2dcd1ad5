"""Checks for anyone who writes a drafter, a session or a verifier: each passes silently or says what to fix.

    check_drafter(drafter)        the q reported is the q drawn from, and the text does not change
    check_session(model.start)    rollback, ragged commits, reordering: always the logits of a fresh session
    check_verifier(verifier)      the output follows the target's distribution
    assert_same_distribution(counts, distribution)  a chi-square test that states what it can detect

Plain assertions, no test framework needed.
"""

from outrider.testing.distribution import SameDistribution, assert_same_distribution
from outrider.testing.drafters import check_drafter
from outrider.testing.rollout import counts_of, exact_distribution, sample
from outrider.testing.sessions import check_session
from outrider.testing.verifiers import check_verifier

__all__ = [
    "SameDistribution",
    "assert_same_distribution",
    "check_drafter",
    "check_session",
    "check_verifier",
    "counts_of",
    "exact_distribution",
    "sample",
]
