"""From the body of a request to jobs for the engine. Whatever cannot be honoured is refused here, with the reason."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import require_unicode
from outrider.llm import LLM
from outrider.models.settings import has_chat_template
from outrider.options import Options
from outrider.prompts import token_ids
from outrider.serve.chat import chat_prompt
from outrider.serve.constraint import Grammars
from outrider.serve.job import Job
from outrider.serve.refusal import Refused
from outrider.serve.schema import ChatBody, CompletionBody, Prediction, ResponseFormat, SpeculationOptions

DEFAULT_TOKENS = 16
"""``max_tokens`` of a completion that does not say it: OpenAI's own default."""


@dataclass
class RequestParser:
    """Makes jobs for one loaded model."""

    llm: LLM
    name: str  # of the model, as requests may give it
    context: int  # tokens of a prompt and its answer
    most_tokens: int  # of an answer
    drafts: Sequence[str]  # names that ``speculation.draft`` may have beside "auto" and "none"
    gamma: int | None = None  # of requests that do not say it and use the server's own drafter; None: "auto"
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self.grammars = Grammars(self.llm)

    def completion(self, body: CompletionBody) -> list[Job]:
        """A job for each prompt and choice, in the order of the answer's choices."""
        count = body.n or 1
        if body.best_of not in (None, count):
            raise Refused(f"best_of must equal n, which is {count}; got {body.best_of}", "best_of")
        given = body.prompt if isinstance(body.prompt, list) and not isinstance(body.prompt[0], int) else [body.prompt]
        with self._lock:
            prompts = [token_ids(prompt, self.llm.tokenizer) for prompt in given]
        most = body.max_tokens or DEFAULT_TOKENS
        return self._jobs(body, prompts, count, most, body.logprobs)

    def chat(self, body: ChatBody) -> list[Job]:
        if not has_chat_template(self.llm.tokenizer):
            raise Refused(f"{self.name} has no chat template; use /v1/completions", "messages")
        if body.top_logprobs is not None and not body.logprobs:
            raise Refused("top_logprobs needs logprobs: true", "top_logprobs")
        if body.max_tokens is not None and body.max_completion_tokens not in (None, body.max_tokens):
            raise Refused("max_tokens and max_completion_tokens differ; give one of them", "max_completion_tokens")
        with self._lock:
            prompt = chat_prompt(body, self.llm.tokenizer, self.name)
        room = self.context - len(prompt)
        most = body.max_completion_tokens or body.max_tokens or max(1, min(room, self.most_tokens))
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        return self._jobs(body, [prompt], body.n or 1, most, logprobs, body.response_format)

    def _jobs(
        self, body: CompletionBody | ChatBody, prompts: list[list[int]], count: int, most: int, logprobs: int | None,
        form: ResponseFormat | None = None,
    ) -> list[Job]:  # fmt: skip
        if body.model not in (None, self.name):
            raise Refused(f"the model {body.model!r} is not served here; use {self.name!r}", "model", 404,
                          "model_not_found")  # fmt: skip
        for prompt in prompts:
            self._check_room(len(prompt), most)
        speculation = body.speculation or SpeculationOptions()
        self._check_speculation(speculation, body.seed)
        each = [prompt for prompt in prompts for _ in range(count)]
        grammars = [self.grammars.processors(form, len(prompt)) for prompt in each]
        options = [self._options(body, most, speculation.coupling, grammar) for grammar in grammars]
        seeds = options[0].seeds(each, fresh=secrets.randbits(62))
        gamma = self._gamma(speculation)
        prediction = () if gamma == 0 else self._predicted(body.prediction)
        drafter = None if speculation.draft in (None, "auto") else speculation.draft
        return [
            Job(prompt, own, seed, gamma, logprobs, prediction, grammar[0].forced if grammar and gamma != 0 else None,
                "none" if gamma == 0 else drafter)
            for prompt, own, seed, grammar in zip(each, options, seeds, grammars, strict=True)
        ]  # fmt: skip

    def _options(
        self, body: CompletionBody | ChatBody, most: int, coupling: str, processors: Sequence[Any]
    ) -> Options:  # fmt: skip
        given: dict[str, Any] = {
            "top_p": body.top_p, "min_p": body.min_p, "frequency_penalty": body.frequency_penalty,
            "presence_penalty": body.presence_penalty, "repetition_penalty": body.repetition_penalty,
            "seed": body.seed, "stop": body.stop, "logit_bias": body.logit_bias,
        }  # fmt: skip
        top_k = None if body.top_k in (None, 0, -1) else body.top_k
        temperature = 1.0 if body.temperature is None else body.temperature
        return Options(
            max_new_tokens=most, temperature=temperature, top_k=top_k, coupling=coupling,
            eos=() if body.ignore_eos else None, logits_processor=processors,
            **{name: value for name, value in given.items() if value is not None},
        )  # fmt: skip

    def _check_room(self, length: int, most: int) -> None:
        if most > self.most_tokens:
            raise Refused(f"max_tokens must be at most {self.most_tokens} on this server, got {most}", "max_tokens")
        if length + most > self.context:
            raise Refused(
                f"the prompt has {length} tokens and max_tokens is {most}: together more than this server's context of "
                f"{self.context} tokens; shorten one of them", "messages", code="context_length_exceeded",
            )  # fmt: skip

    def _check_speculation(self, asked: SpeculationOptions, seed: int | None) -> None:
        drafts = dict.fromkeys(("auto", "none", *self.drafts))
        if asked.draft is not None and asked.draft not in drafts:
            raise Refused(
                f"speculation.draft must be one of {', '.join(drafts)}, got {asked.draft!r}; for others start the "
                "server with --draft" + (" and --no-graphs" if self.llm.graphs else ""), "speculation.draft",
            )  # fmt: skip
        widest = self.llm.width - 1
        if isinstance(asked.gamma, int) and asked.gamma > widest:
            raise Refused(
                f"speculation.gamma must be a whole number from 0 to {widest}, or 'auto', got {asked.gamma}; for more "
                "the server must be started with a larger --width", "speculation.gamma",
            )  # fmt: skip
        if seed is not None and asked.coupling != "gumbel":
            raise Refused(
                f"speculation.coupling {asked.coupling!r} with a seed would give a text that depends on how guesses "
                "were made; use 'gumbel', or leave the seed out", "speculation.coupling",
            )  # fmt: skip

    def _gamma(self, asked: SpeculationOptions) -> int | None:
        if not asked.enabled or asked.draft == "none":
            return 0
        if asked.gamma is None:  # a gamma that was chosen for one drafter says nothing of another
            return self.gamma if asked.draft in (None, "auto") else None
        return asked.gamma if isinstance(asked.gamma, int) else None

    def _predicted(self, prediction: Prediction | None) -> tuple[int, ...]:
        """The expected answer as tokens."""
        if prediction is None:
            return ()
        content = prediction.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        require_unicode("prediction.content", text)
        with self._lock:
            return tuple(self.llm.tokenizer.encode(text, add_special_tokens=False))
