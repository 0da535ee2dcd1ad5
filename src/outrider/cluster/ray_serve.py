"""The server on a Ray cluster: the same app in every replica, behind the proxy of Ray Serve."""

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from outrider.cluster.answers import Loading
from outrider.cluster.ray_cluster import connected
from outrider.errors import BadOption, OutriderError, require
from outrider.serve.app import STALL, make_app
from outrider.serve.run import ListenAt, WantedSize, load_drafters, make_engine
from outrider.serve.settings import ServerSettings

NAME = "outrider"
"""Of the application and its one deployment on the cluster."""

REFUSING = 64
"""Requests beyond slots and queue that a replica is handed, so that it answers them with 429 itself."""

SLOTS = 8
"""Ongoing requests per replica that autoscaling aims at where the number of slots is left to the model."""


@dataclass(frozen=True)
class Replicas:
    """How many there are, and what each is given."""

    least: int = 1
    most: int | None = None  # None: as many as at least; else so many while requests queue up
    cpus: float = 1.0

    def __post_init__(self) -> None:
        most = self.least if self.most is None else self.most
        require(self.least >= 1, f"replicas must be at least 1, got {self.least}")
        require(most >= self.least, f"max_replicas must be at least replicas, {self.least}, got {most}")
        require(self.cpus > 0, f"replica_cpus must be above 0, got {self.cpus}")


@dataclass(frozen=True)
class ServedModel:
    """What every replica serves."""

    loading: Loading
    drafts: Sequence[str]  # beside the first, which requests may name
    size: WantedSize
    settings: ServerSettings


class Replica:
    """A model and its engine in a process of the cluster. Ray Serve gives it the requests of its app."""

    def __init__(self, served: ServedModel) -> None:
        llm, options = served.loading.load(None), served.loading.options
        drafters = load_drafters(llm, served.drafts, bool(options.get("trust_remote_code")))
        self.engine, self.settings = make_engine(llm, served.size, drafters), served.settings
        llm.warm_up(coupling="gumbel")

    def __serve_build_asgi_app__(self) -> Any:
        return make_app(self.engine, self.settings)

    def check_health(self) -> None:
        """Called by Ray, which starts another replica where this raises."""
        if self.engine.failure is not None:
            raise OutriderError(self.engine.failure)
        if self.engine.stalled(STALL):
            raise OutriderError(f"no step has ended for {STALL:.0f} s while requests run")


@dataclass(frozen=True)
class RayServer:
    """A model to be served by replicas."""

    served: ServedModel
    replicas: Replicas

    def run(self, place: ListenAt, say: Callable[[str], object]) -> None:
        """Serve until SIGTERM or Ctrl-C; then answers under way may end."""
        ray, serve = connected(), _ray_serve()
        _refuse_another(ray)
        port = place.port or _free_port(place.host)
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        with _terminated_as_interrupted():
            try:
                serve.start("HeadOnly", {"host": place.host, "port": port})
                application = self.deployment(ray, serve, place).bind(self.served)
                serve.run(application, name=NAME)
                shown = f"[{place.host}]" if ":" in place.host else place.host
                say(f"http://{shown}:{port} (Ctrl-C stops)")
                threading.Event().wait()
            except KeyboardInterrupt:
                say("stopping when answers under way have ended")
            except RuntimeError as error:  # of serve.run
                raise BadOption(f"no replica could be started: {_reason(serve) or error}") from None
            finally:
                _stop(ray, serve)
        say("stopped")

    def deployment(self, ray: Any, serve: Any, place: ListenAt) -> Any:
        """What Ray Serve is told of the replicas. Each refuses what its own queue has no room for, as without Ray."""
        replicas, slots = self.replicas, self.served.size.slots or SLOTS
        gpu = ray.cluster_resources().get("GPU", 0.0) >= 1 and self.served.loading.options.get("device") != "cpu"
        several = {"min_replicas": replicas.least, "max_replicas": replicas.most, "target_ongoing_requests": slots}
        count = {"num_replicas": replicas.least} if replicas.most is None else {"autoscaling_config": several}
        return serve.deployment(
            serve.ingress()(Replica), name=NAME, ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": int(gpu)},
            max_ongoing_requests=slots + self.served.size.waiting + REFUSING, max_constructor_retry_count=1,
            graceful_shutdown_timeout_s=place.drain, graceful_shutdown_wait_loop_s=0.1,
            logging_config={"enable_access_log": place.access_log}, **count,
        )  # fmt: skip


def _ray_serve() -> Any:
    try:
        from ray import serve
    except ImportError as error:
        reason = f"Ray Serve is not installed ({error.name or error})"
        raise BadOption(f"{reason}; pip install '.[serve,ray]', or leave out --ray") from None
    return serve


def _reason(serve: Any) -> str:
    """Why replicas do not start: the last line of what Ray tells of them, behind the traceback of one."""
    application = serve.status().applications.get(NAME)
    told = [] if application is None else [one.message.strip() for one in application.deployments.values()]
    return " ".join(message.rpartition("\n")[2] for message in told)


def _refuse_another(ray: Any) -> None:
    """Ray Serve keeps the address it was first started with: a server's own would be dropped silently."""
    try:
        ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
    except ValueError:
        return
    raise BadOption("Ray Serve runs on this cluster already; stop it with `serve shutdown`, or use another cluster")


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.bind((host, 0))
        return int(trial.getsockname()[1])


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM is as Ctrl-C in here."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(ray: Any, serve: Any) -> None:
    """Replicas take no more requests and end when theirs have, or when their time for that is over."""
    while NAME in serve.status().applications:
        with suppress(TimeoutError):  # it waits for a minute
            serve.delete(NAME)
    serve.shutdown()
    ray.shutdown()
