"""``outrider suffix``: an index of your own texts, for guesses from what followed in them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from outrider.cli.common import DEFAULT_TARGET, Json, Target, Trust, answers, notes
from outrider.errors import BadOption, decode_utf8, require

app = typer.Typer(no_args_is_help=True, help="Index texts of your own, for drafts from what followed in them.")

_PIECE = 1 << 20
"""Characters that are tokenized at once, and lines are not cut: more take memory, and show no progress."""


@app.command()
def build(
    files: Annotated[list[Path], typer.Argument(help="Text files (UTF-8): code, documents, earlier answers.")],
    out: Annotated[Path, typer.Option(help="Directory of the index: a new one, or one to replace.")],
    target: Target = DEFAULT_TARGET,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Index FILES with the tokens of TARGET; then `outrider generate --draft suffix:DIR` guesses from them."""
    from outrider.drafters.suffix_index import CONFIG, SuffixIndex
    from outrider.models.hub import loading, names

    new = not out.exists() or (out / CONFIG).is_file()
    require(new, f"out {out} is there already and is no suffix index; name a new directory")
    require(out.resolve().parent.is_dir(), f"out {out}: the directory {out.resolve().parent} does not exist; make it")
    texts = [_read(file) for file in files]  # all of them are looked at before work is done for any
    place = names.directory(target, code=trust_remote_code)
    _, tokenizer = loading.description(place, trust_remote_code=trust_remote_code)
    documents: list[list[int]] = []
    with Progress(console=notes, transient=True) as progress:
        task = progress.add_task("tokenizing", total=sum(map(len, texts)))
        for text in texts:
            documents.append([])
            for piece in _pieces(text):
                documents[-1] += tokenizer.encode(piece, add_special_tokens=False)
                progress.advance(task, len(piece))
        progress.update(progress.add_task("sorting", total=None))
        index = SuffixIndex.of(documents)
    index.save(out, tokenizer, len(documents))
    size = sum(file.stat().st_size for file in out.iterdir())
    result = {"out": str(out), "files": len(files), "tokens": sum(map(len, documents)), "bytes": size}
    shown = f"{out}: {result['tokens']:,} tokens of {len(files)} files, {size / 1e6:.1f} MB; use --draft suffix:{out}"
    answers.out(json.dumps(result) if as_json else shown, highlight=False)


def _read(file: Path) -> str:
    """The text of a file, refused where it is none."""
    require(not file.is_dir(), f"file {file} is a directory; name the files in it, as {file}/*.txt")
    require(file.is_file(), f"file {file} does not exist; name files of text")
    data = file.read_bytes()
    if b"\0" in data[:65536]:
        raise BadOption(f"file {file} is binary (it has NUL bytes); name files of text")
    text = decode_utf8(f"file {file}", data)
    require(text.strip() != "", f"file {file} is empty; leave it out")
    return text


def _pieces(text: str) -> Iterator[str]:
    """The text in parts that end with a line."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE)
        end = len(text) if end < 0 else end + 1
        yield text[start:end]
        start = end
