"""One engine in a process of its own, told what to do by JSON lines: run as a script, with any engine's own Python.

Reads a request a line and answers with a line. ``load`` comes first: engine, model, dtype, threads, ways of decoding,
draft. Then ``generate``: way, prompt ids, how many tokens, temperature, seed. The end of the input is the end.

It imports nothing but the standard library and the engine it is asked for, so that an engine need not live in the
environment that Outrider lives in.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

Heard = Callable[[int], None]
Request = dict[str, Any]


class ComparedEngine(Protocol):
    """An engine, loaded."""

    version: str
    dtype: str  # of the weights that a run reads
    notes: dict[str, str]  # by way of decoding

    def generate(self, request: Request, heard: Heard) -> list[int]:
        """New tokens. Calls ``heard(n)`` as soon as the first n of them are there."""


class Outrider:
    """Ours: ``plain`` is the same engine without a draft. The dtype int8 means weights of eight bits."""

    def __init__(self, wanted: Request) -> None:
        import outrider

        drafts = {"plain": "none", "speculative": wanted["draft"] or "auto"}
        first, *others = wanted["ways"]
        packed = wanted["dtype"] == "int8"
        kind, weights = ("auto", "int8") if packed else (wanted["dtype"], "full")
        llm = outrider.load(wanted["target"], drafts[first], "cpu", kind, slots=1, weights=weights)
        self.ways = {first: llm, **{way: llm.with_draft(drafts[way]) for way in others}}
        model = llm.target.model
        # What a run reads from memory: an engine may keep its weights in fewer bytes than it computes with.
        self.version, self.dtype = outrider.__version__, model.facts.weights_in
        self.notes = {way: f"{model.facts.engine}, draft {engine.drafter.name}" for way, engine in self.ways.items()}

    def generate(self, request: Request, heard: Heard) -> list[int]:
        options = {"max_new_tokens": request["tokens"], "temperature": request["temperature"], "seed": request["seed"]}
        tokens: list[int] = []
        for chunk in self.ways[request["way"]].stream(request["prompt"], eos=(), **options):
            tokens += chunk.tokens
            heard(len(tokens))
        return tokens


class Transformers:
    """``lookup`` copies from the prompt, ``assisted`` has a draft model; settings otherwise as they come."""

    LOOKUP = 10  # tokens, as in transformers' own example

    def __init__(self, wanted: Request) -> None:
        import torch
        import transformers

        self.torch, self.version = torch, transformers.__version__
        self.notes: dict[str, str] = {}
        torch.set_num_threads(wanted["threads"])
        config = transformers.AutoConfig.from_pretrained(wanted["target"])
        self.source = bool(config.is_encoder_decoder)
        kind = transformers.AutoModelForSeq2SeqLM if self.source else transformers.AutoModelForCausalLM
        dtype = getattr(torch, wanted["dtype"])

        def load(place: str) -> Any:
            model = kind.from_pretrained(place, dtype=dtype).requires_grad_(False).eval()
            model.generation_config.eos_token_id = None  # texts of one length, whatever they say
            model.generation_config.pad_token_id = 0
            return model

        self.model, self.dtype = load(wanted["target"]), wanted["dtype"]
        self.extra: dict[str, dict[str, Any]] = {
            "plain": {},
            "lookup": {"prompt_lookup_num_tokens": self.LOOKUP},
            "assisted": {"assistant_model": load(wanted["draft"])} if "assisted" in wanted["ways"] else {},
        }

    def generate(self, request: Request, heard: Heard) -> list[int]:
        prompt = self.torch.tensor([request["prompt"]])
        given = 1 if self.source else len(request["prompt"])
        count = -given  # what is put first is the prompt

        class Streamer:
            def put(self, value: Any) -> None:
                nonlocal count
                count += value.numel()
                if count > 0:
                    heard(count)

            def end(self) -> None: ...

        options: dict[str, Any] = {"do_sample": False}
        if request["temperature"] > 0:
            options = {"do_sample": True, "temperature": request["temperature"], "top_k": 0, "top_p": 1.0}
            self.torch.manual_seed(request["seed"])
        ids = self.model.generate(
            prompt, attention_mask=self.torch.ones_like(prompt), max_new_tokens=request["tokens"], streamer=Streamer(),
            **options, **self.extra[request["way"]],
        )  # fmt: skip
        return list(map(int, ids[0, given:]))


class Vllm:
    """One way a process, since the way belongs to the engine. Keeps no prefixes: a prompt is read every time."""

    def __init__(self, wanted: Request) -> None:
        cores = sorted(os.sched_getaffinity(0))[: wanted["threads"]]
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1",
        }  # fmt: skip
        import vllm

        self.vllm, self.version, self.dtype, self.count = vllm, vllm.__version__, wanted["dtype"], 0
        self.notes: dict[str, str] = {}
        (way,) = wanted["ways"]
        ngram = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
        draft = {"method": "draft_model", "model": wanted["draft"], "num_speculative_tokens": 3}
        self.engine = vllm.LLM(
            wanted["target"], dtype=wanted["dtype"], max_model_len=wanted["length"], enable_prefix_caching=False,
            max_num_seqs=1, speculative_config={"plain": None, "lookup": ngram, "assisted": draft}[way],
        ).llm_engine  # fmt: skip

    def generate(self, request: Request, heard: Heard) -> list[int]:
        self.count += 1
        options = self.vllm.SamplingParams(
            temperature=request["temperature"], seed=request["seed"], max_tokens=request["tokens"], ignore_eos=True,
            detokenize=False,
        )  # fmt: skip
        self.engine.add_request(str(self.count), {"prompt_token_ids": request["prompt"]}, options)
        tokens: list[int] = []
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                tokens = list(output.outputs[0].token_ids)
                if tokens:
                    heard(len(tokens))
        return tokens


class OpenVino:
    """Reads its own format or a GGUF file; ``lookup`` copies from the prompt. One way a process."""

    PRECISIONS = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}

    def __init__(self, wanted: Request) -> None:
        import numpy
        import openvino
        import openvino_genai

        self.numpy, self.openvino, self.genai = numpy, openvino, openvino_genai
        (self.way,) = wanted["ways"]
        lookup = {"prompt_lookup": True} if self.way == "lookup" else {}
        self.pipeline = openvino_genai.LLMPipeline(
            wanted["target"], "CPU", INFERENCE_NUM_THREADS=wanted["threads"],
            INFERENCE_PRECISION_HINT=self.PRECISIONS[wanted["dtype"]], **lookup,
        )  # fmt: skip
        self.version, self.dtype = version("openvino-genai"), wanted["dtype"]
        self.notes = {self.way: f"computes in {wanted['dtype']}; weights as in {os.path.basename(wanted['target'])}"}

    def generate(self, request: Request, heard: Heard) -> list[int]:
        ids = self.numpy.array([request["prompt"]], dtype=self.numpy.int64)
        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = request["tokens"], True
        config.do_sample = request["temperature"] > 0
        if config.do_sample:
            config.temperature, config.rng_seed, config.top_k = request["temperature"], request["seed"], 0
        if self.way == "lookup":
            config.num_assistant_tokens, config.max_ngram_size = 5, 3
        count, genai = 0, self.genai

        class Streamer(genai.StreamerBase):  # type: ignore[misc, name-defined]
            def write(self, token: Any) -> Any:
                nonlocal count
                count += len(token) if isinstance(token, list) else 1
                heard(count)
                return genai.StreamingStatus.RUNNING

            def end(self) -> None: ...

        tensor = self.openvino.Tensor
        inputs = self.genai.TokenizedInputs(tensor(ids), tensor(self.numpy.ones_like(ids)))
        return list(map(int, self.pipeline.generate(inputs, config, Streamer()).tokens[0]))


ENGINES: dict[str, Callable[[Request], ComparedEngine]] = {
    "outrider": Outrider,
    "transformers": Transformers,
    "vllm": Vllm,
    "openvino": OpenVino,
}


def loaded(request: Request) -> tuple[ComparedEngine, Request]:
    began = time.perf_counter()
    engine = ENGINES[request["engine"]](request)
    about = {"version": engine.version, "dtype": engine.dtype, "notes": engine.notes}
    return engine, about | {"seconds": time.perf_counter() - began}


def generated(engine: ComparedEngine, request: Request) -> Request:
    """Tokens; the seconds they took; how many came first, and when."""
    first: list[tuple[int, float]] = []
    began = time.perf_counter()

    def heard(count: int) -> None:
        if not first:
            first.append((count, time.perf_counter() - began))

    tokens = engine.generate(request, heard)
    seconds = time.perf_counter() - began
    count, when = first[0]
    return {"tokens": tokens, "seconds": seconds, "first_tokens": count, "first_seconds": when}


def serve(requests: Any, answers: Any) -> None:
    engine: Any = None
    for line in requests:
        request = json.loads(line)
        try:
            if request["do"] == "load":
                engine, answer = loaded(request)
            else:
                answer = generated(engine, request)
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def leave_with(parent: int) -> None:
    """End when the process that asks has ended, even in the middle of a text."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    sys.path.pop(0)  # the folder of this script, whose other files are nobody's modules here
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # engines print what they like; answers go where nothing else does
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
