"""Shared by all tests: one thread, quiet transformers, no test that depends on another's random state."""

from __future__ import annotations

import logging

import pytest
import torch

logging.getLogger("transformers").setLevel(logging.ERROR)

try:
    from hypothesis import settings
except ImportError:  # a rented GPU has torch and pytest, and tests/gpu needs no more
    pass
else:
    # A loaded machine is not a failure; examples are new in every run, and a failing one prints how to repeat it.
    settings.register_profile("outrider", deadline=None, database=None, print_blob=True)
    settings.load_profile("outrider")


@pytest.fixture(autouse=True)
def fresh_random_state() -> None:
    """Nothing in the package may use torch's global generator; a test that does gets a known state."""
    torch.manual_seed(0)
