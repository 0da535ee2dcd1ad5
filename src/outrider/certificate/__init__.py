"""A certificate a user runs on their own models and machine: is speculation exact here, and how do we know?"""

from outrider.certificate.plan import Plan
from outrider.certificate.run import Certificate, certify

__all__ = ["Certificate", "Plan", "certify"]
