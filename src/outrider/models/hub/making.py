"""Making a directory of the cache: by one process at a time, whole or not at all, with errors that say what to do."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outrider.errors import ModelError, PullFailed
from outrider.models.hub.gguf import MB, brief, says_no_space
from outrider.runtime.files import locked, refused, writable
from outrider.runtime.memory import available_bytes


class CacheRefused(PullFailed):
    """The cache cannot be written."""


def require_memory(name: str, needed: float) -> None:
    """ModelError where less memory is available than a model needs."""
    free = available_bytes()
    if free < needed:
        raise ModelError(
            f"{name} needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are available; end other "
            "programs, or use a smaller model or one quantised to fewer bits"
        )


class Space:
    """Free space that making something takes, in bytes; what is needed may become known on the way."""

    def __init__(self, name: str, folder: Path, needed: int) -> None:
        self.name, self.folder, self.needed = name, folder, needed

    def require(self, needed: int) -> None:
        """PullFailed where there is less than ``needed``."""
        self.needed = max(self.needed, needed)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise self.missing(f"{free // MB} MB are free")

    def missing(self, found: str) -> PullFailed:
        wanted = f"{self.name} needs {-(-self.needed // MB)} MB in {self.folder} while it is made"
        return PullFailed(f"{wanted}, and {found}; free some, or name another place: OUTRIDER_CACHE=/some/where")


@contextlib.contextmanager
def making(name: str, final: Path, needed: int) -> Iterator[tuple[Path, Space]]:
    """A directory to make ``final`` in, while no other process does; whatever goes wrong says what to do.

    The caller looks first whether ``final`` is there by now: another process may have been faster.
    """
    space = Space(name, final.parent, needed)
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        with locked_name(final), _stage(final) as stage:
            yield stage, space
    except ModelError:
        raise
    except Exception as error:
        raise _explained(error, space) from error


def locked_name(final: Path) -> contextlib.AbstractContextManager[None]:
    """The lock of whoever makes or removes this directory of the cache."""
    return locked(final.parent / f".{final.name}.lock", f"Waiting for another process that is making {final.name}")


@contextlib.contextmanager
def _stage(final: Path) -> Iterator[Path]:
    """A temporary directory beside ``final``; the lock is held, so any other one is a dead process's."""
    prefix = f".{final.name}.partial-"
    for stale in final.parent.glob(prefix + "*"):
        shutil.rmtree(stale, ignore_errors=True)
    stage = Path(tempfile.mkdtemp(prefix=prefix, dir=final.parent))
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _explained(error: Exception, space: Space) -> ModelError:
    """Whatever stopped the making, as an error that says what to do."""
    # safetensors raises its own class with the system's words in it.
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    if full or says_no_space(str(error)):
        return space.missing("the disk is full")
    if isinstance(error, OSError) and not (space.folder.is_dir() and writable(space.folder)):
        return CacheRefused(refused(space.folder, f"{space.name} cannot be kept there ({error.strerror or error})"))
    if isinstance(error, OSError):
        return PullFailed(f"{space.name}: {error}; another place for models: OUTRIDER_CACHE=/some/where")
    return PullFailed(f"{space.name} cannot be converted: {brief(error)}")
