"""Shared by all tests: one thread, quiet transformers, no test that depends on another's random state."""

from __future__ import annotations

import logging

import pytest
import torch

logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture(autouse=True)
def fresh_random_state() -> None:
    """Nothing in the package may use torch's global generator; a test that does gets a known state."""
    torch.manual_seed(0)
