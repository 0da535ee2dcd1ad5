"""The connection to Ray, an optional package, and ``speculate`` on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from outrider.errors import BadOption


def connected() -> Any:
    """The package ``ray``, joined to a cluster: the one that RAY_ADDRESS names, or one of this machine's own."""
    try:
        import ray
        import ray.data
    except ImportError as error:
        reason = f"Ray is not installed ({error.name or error})"
        raise BadOption(f"{reason}; pip install '.[ray]', or leave out --ray") from None
    if not ray.is_initialized():
        ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
    return ray


@dataclass(frozen=True)
class RayTask:
    """A function under way on the cluster."""

    reference: Any

    def result(self) -> Any:
        """Wait for the value, or raise what the function raised."""
        import ray

        return ray.get(self.reference)

    def cancel(self) -> None:
        """Leave it to run to its end: nobody asks for its value.

        ``ray.cancel`` is not safe: it aborts the process that calls it where the task is just on its way to a worker
        (a failed check of Ray 2.60, "Tried to complete task that was not pending"; ray-project/ray#54785).
        """


class RayExecutor:
    """For ``outrider.speculate(f, f_approx, g, RayExecutor())``: f and g run as Ray tasks, anywhere on the cluster."""

    def __init__(self, **options: Any) -> None:
        """options: of ``ray.remote``, for every task: num_cpus, num_gpus, resources."""
        self.options = options
        connected()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> RayTask:
        import ray

        remote = ray.remote(**self.options)(function) if self.options else ray.remote(function)
        return RayTask(remote.remote(*arguments))
