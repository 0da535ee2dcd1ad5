"""Drafts that others have published, by target: ``draft="auto"`` names one, and fetches none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from outrider.drafters.made_for import model_name
from outrider.runtime.files import note

PUBLIC: Mapping[str, tuple[str, ...]] = {
    "meta-llama/Llama-3.1-8B-Instruct": (
        "RedHatAI/Llama-3.1-8B-Instruct-speculator.eagle3",
        "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "thoughtworks/Llama-3.1-8B-Instruct-Eagle3",
    ),
    "Qwen/Qwen3-8B": (
        "RedHatAI/Qwen3-8B-speculator.eagle3",
        "RedHatAI/Qwen3-8B-Thinking-speculator.eagle3",
        "RedHatAI/Qwen3-8B-speculator.peagle",
        "RedHatAI/Qwen3-8B-speculator.dflash",
        "thoughtworks/Qwen3-8B-Eagle3",
    ),
    "Qwen/Qwen3-32B": ("RedHatAI/Qwen3-32B-speculator.eagle3",),
    "Qwen/Qwen3-30B-A3B": ("RedHatAI/Qwen3-30B-A3B-speculator.dflash",),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": ("RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.dflash",),
    "Qwen/Qwen3-235B-A22B": ("lmsys/Qwen3-235B-A22B-EAGLE3",),
    "openai/gpt-oss-20b": ("RedHatAI/gpt-oss-20b-speculator.eagle3",),
    "google/gemma-4-31B-it": (
        "RedHatAI/gemma-4-31B-it-speculator.eagle3",
        "RedHatAI/gemma-4-31B-it-speculator.dflash",
        "RedHatAI/gemma-4-31B-it-speculator.dspark",
    ),
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": (
        "RedHatAI/Llama-4-Maverick-17B-128E-Instruct-speculator.eagle3",
        "lmsys/sglang-EAGLE3-Llama-4-Maverick-17B-128E-Instruct-v1",
    ),
}
"""Of a target the first is the one to try first. The same table, with kinds, is in docs/public-drafts.md."""


def public_draft(target: str) -> str | None:
    """A hub id to try first for a target by this name: a hub id, or a directory that is called like the model."""
    found = [drafts[0] for model, drafts in PUBLIC.items() if model_name(model) == model_name(target)]
    return found[0] if found else None


@cache
def tell_of_public_draft(target: str) -> None:
    """One line on stderr, once for a target, where others have published a draft for it."""
    draft = public_draft(target)
    if draft is not None:
        note(f"a public draft for {target}: --draft {draft} (draft={draft!r}) fetches and uses it; 'auto' does not")
