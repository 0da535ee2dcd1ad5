"""The border to other libraries' configs, modules and tokenizers: what one of them may have, read in one place.

A config has the settings of its family only, and a release of transformers may add one or take it away. Everything in
this package itself is declared by types; nothing of it is read through these functions.
"""

from __future__ import annotations

from typing import Any


def setting(config: Any, name: str, default: Any = None) -> Any:
    """What a config says under this name; the default where its family has no such setting."""
    return getattr(config, name, default)


def saved_dtype(config: Any) -> str:
    """The name of what a checkpoint's weights were saved in, as its config says; float32 where it says nothing."""
    return str(setting(config, "dtype") or "float32").removeprefix("torch.")


def offers(module: Any, name: str) -> bool:
    """Whether a module of another library has an attribute or method of this name."""
    return hasattr(module, name)


def has_chat_template(tokenizer: Any) -> bool:
    """Whether a tokenizer can render a conversation. Not every kind of tokenizer knows of templates."""
    return bool(setting(tokenizer, "chat_template"))
