"""The output directory of a run: nothing of anybody else's is touched, and what appears there is whole."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from outrider.errors import BadOption, require


def say(line: str) -> None:
    """A line of progress, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def open_run(out: Path, settings: Mapping[str, Any], resume: bool) -> Path:
    """The working directory inside ``out``; refuses to touch anything that is not this very run, resumed."""
    work = out / "training"
    known = work / "settings.json"
    wanted = json.loads(json.dumps(settings))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not known.is_file():
            raise BadOption(f"output directory {out} exists and is not empty; choose another --out or empty it")
        require(resume, f"output directory {out} holds an earlier run; go on with it by --resume, or choose another")
        before = json.loads(known.read_text(encoding="utf-8"))
        differing = sorted(k for k in before.keys() | wanted.keys() if before.get(k) != wanted.get(k))
        require(not differing, f"{out} holds a run with other settings ({', '.join(differing)}); choose another --out")
        return work
    work.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")
    return work


def save_model(model: Any, tokenizer: Any, folder: Path) -> None:
    """Weights in bfloat16, config, generation config and tokenizer; the folder appears whole or not at all."""
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    model.to(device="cpu", dtype=torch.bfloat16).save_pretrained(temporary)
    tokenizer.save_pretrained(temporary)
    packed = temporary / "tokenizer.json"  # written with a line per number; a third of the size does
    content = json.loads(packed.read_text(encoding="utf-8"))
    packed.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    os.replace(temporary, folder)


def pack(out: Path, names: Sequence[str], part: int = 15 << 20) -> list[Path]:
    """``pair.tar`` of what is there of ``names``; beyond ``part`` bytes also in numbered parts to be put together."""
    whole = out / "pair.tar"
    with tarfile.open(whole, "w") as tar:
        for name in names:
            if (out / name).exists():
                tar.add(out / name, name, filter=_readable)
    parts: list[Path] = []
    if whole.stat().st_size > part:
        with whole.open("rb") as file:
            while block := file.read(part):
                parts.append(out / f"pair.tar.{len(parts)}")
                parts[-1].write_bytes(block)
    return parts or [whole]


def _readable(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode = 0o755 if member.isdir() else 0o644
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
