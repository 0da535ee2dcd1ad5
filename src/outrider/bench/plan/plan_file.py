"""The plan file: figures, a recommendation, and what they hold for. Read without a model, and never half believed."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from outrider.errors import BadOption

VERSION = 1

KEYS = (
    "plan", "outrider", "target", "fingerprint", "encoder_decoder", "device", "loading", "width", "options", "drafters",
    "conditions", "command", "costs", "acceptance", "prices", "cells", "recommended", "checks", "sentence",
    "prompts_done", "prompts_wanted", "interrupted", "others_cores",
)  # fmt: skip
"""All of a plan file's. ``plan`` is the version of the format."""

CHOICE_KEYS = {"batch": int, "draft": str, "gamma": int, "speedup": float, "interval": list}
"""Those of a recommendation, and what they are."""

LOADING_KEYS = ("device", "dtype", "engine", "weights")
"""Options of loading that the speed depends on."""


@dataclass(frozen=True)
class PlannedChoice:
    """What a plan recommends for batches of one size."""

    batch: int
    draft: str
    gamma: int
    speedup: float


@dataclass(frozen=True)
class PlanFile:
    """A plan that was read from a file."""

    path: Path
    content: Mapping[str, Any]

    @staticmethod
    def read(path: Path) -> PlanFile:
        """Refuses, with file, line and key, whatever ``outrider plan --out`` of this release has not written."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise BadOption(f"plan {path}: cannot be read ({reason}); name a file of `outrider plan --out`") from None
        try:
            content = json.loads(text)
        except ValueError as error:
            where = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "line 1"
            raise BadOption(
                f"plan {path}, {where}: not whole JSON; it was cut off or edited: run `outrider plan --out` again"
            ) from None
        _Reader(path, text).check(content)
        return PlanFile(path, content)

    @property
    def target(self) -> str:
        return str(self.content["target"])

    def choice(self, batch: int) -> PlannedChoice:
        """For batches of this size: what was found for the largest one that is not larger, or else the smallest."""
        found = [PlannedChoice(c["batch"], c["draft"], c["gamma"], c["speedup"]) for c in self.content["recommended"]]
        if not found:
            raise BadOption(
                f"plan {self.path}: key 'recommended' is empty, no prompt was finished; run `outrider plan` to its end"
            )
        fitting = [one for one in found if one.batch <= batch]
        return max(fitting, key=_batch) if fitting else min(found, key=_batch)

    def check_target(self, target: str, fingerprint: str | None) -> None:
        """Refuse a plan for another model: its drafter may not even speak the same tokens."""
        known = self.content["fingerprint"]
        same = target == self.target if None in (known, fingerprint) else known == fingerprint
        if not same:
            raise BadOption(
                f"plan {self.path}: key 'target' is {self.target!r}, not {target!r}, or its weights have changed; "
                f"make a plan for this one with `outrider plan {target} --out FILE`"
            )

    def differences(self, loading: Mapping[str, Any], device: str, temperature: float | None) -> list[str]:
        """What is not as it was measured, each as "it is this, the plan has that": texts stay right, speeds may not."""
        found = [
            f"{name} is {loading[name]}, the plan has {self.content['loading'][name]}"
            for name in LOADING_KEYS
            if name in loading and loading[name] != self.content["loading"].get(name)
        ]
        if device != self.content["device"]:
            found.append(f"this machine is {device}, the plan is of {self.content['device']}")
        planned = self.content["options"].get("temperature")
        if temperature is not None and temperature != planned:
            found.append(f"temperature is {temperature:g}, the plan has {planned:g}")
        return found


@dataclass(frozen=True)
class _Reader:
    """Checks a file's content; errors name the line that a key is in."""

    path: Path
    text: str

    def check(self, content: Any) -> None:
        if not isinstance(content, dict) or "plan" not in content:
            self.refuse("plan", "is missing: this is no plan; name a file of `outrider plan --out`")
        if content["plan"] != VERSION:
            found = content["plan"]
            self.refuse("plan", f"is version {found!r}, this release reads {VERSION}; run `outrider plan --out` again")
        for key in content:
            if key not in KEYS:
                near = difflib.get_close_matches(key, KEYS, n=1)
                self.refuse(key, "is unknown; " + (f"did you mean {near[0]!r}?" if near else "take it out"))
        for key in KEYS:
            if key not in content:
                self.refuse(key, "is missing; run `outrider plan --out` again")
        kinds = {"target": str, "device": str, "loading": dict, "options": dict, "recommended": list, "width": int,
                 "drafters": dict, "cells": list, "checks": list, "acceptance": list, "costs": list, "prices": list,
                 "sentence": str, "conditions": dict}  # fmt: skip
        for key, kind in kinds.items():
            self._check_kind(key, content[key], kind)
        for key in ("cells", "checks", "acceptance", "costs", "prices"):
            for entry in content[key]:
                self._check_kind(key, entry, dict)
        if "temperature" not in content["options"]:
            self.refuse("options", "has no 'temperature'; run `outrider plan --out` again")
        self._check_kind("options", content["options"]["temperature"], float)
        for choice in content["recommended"]:
            self._check_kind("recommended", choice, dict)
            for key, kind in CHOICE_KEYS.items():
                if key not in choice:
                    self.refuse("recommended", f"has an entry without {key!r}; run `outrider plan --out` again")
                self._check_kind(key, choice[key], kind)
            if not 0 <= choice["gamma"] < max(1, content["width"]):
                width = content["width"]
                self.refuse("gamma", f"must be from 0 to {width - 1}, width less 1, got {choice['gamma']}; mend it")

    def _check_kind(self, key: str, value: Any, kind: type) -> None:
        number = kind is float and isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            self.refuse(key, f"must be {_NAMES[kind]}, got {value!r}; run `outrider plan --out` again")

    def refuse(self, key: str, what: str) -> NoReturn:
        lines = self.text.splitlines()
        line = next((number for number, line in enumerate(lines, 1) if f'"{key}"' in line), 1)
        raise BadOption(f"plan {self.path}, line {line}: key {key!r} {what}")


_NAMES = {int: "a whole number", float: "a number", str: "a text", list: "a list", dict: "an object"}


def _batch(choice: PlannedChoice) -> int:
    return choice.batch
