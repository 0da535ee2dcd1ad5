"""Engines of a comparison, behind one protocol: Outrider, and others with which it is compared.

``worker.py`` runs one of them. Nothing is imported here but the standard library and, when it is loaded, the engine
itself: an engine need not live in the environment that Outrider lives in.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Protocol

Request = dict[str, Any]


class Times(Protocol):
    """Where an engine tells how far it is with a text."""

    def heard(self, count: int) -> None:
        """The first ``count`` tokens are there now."""

    def said(self, prefill_seconds: float, decode_seconds: float) -> None:
        """By the engine's own clock: until the first token, and from there to the last."""


class ComparedEngine(Protocol):
    """An engine, loaded."""

    version: str
    dtype: str  # of the weights that a run reads
    notes: dict[str, str]  # by way of decoding

    def generate(self, request: Request, times: Times) -> list[int]:
        """New tokens. Calls ``times.heard`` as soon as the first are there, or ``times.said`` at the end."""


class Outrider:
    """Ours: ``plain`` is the same engine without a draft. The dtypes int8 and int4 mean weights of so many bits."""

    def __init__(self, wanted: Request) -> None:
        import outrider

        drafts = {"plain": "none", "speculative": wanted["draft"] or "auto"}
        first, *others = wanted["ways"]
        quantised = wanted["dtype"] in ("int8", "int4")
        kind, weights = ("auto", wanted["dtype"]) if quantised else (wanted["dtype"], "full")
        llm = outrider.load(wanted["target"], drafts[first], "cpu", kind, slots=1, weights=weights)
        self.ways = {first: llm, **{way: llm.with_draft(drafts[way]) for way in others}}
        model = llm.target.model
        # What a run reads from memory: an engine may keep its weights in fewer bytes than it computes with.
        self.version, self.dtype = outrider.__version__, model.facts.weights_in
        self.notes = {way: f"{model.facts.engine}, draft {engine.drafter.name}" for way, engine in self.ways.items()}

    def generate(self, request: Request, times: Times) -> list[int]:
        options = {"max_new_tokens": request["tokens"], "temperature": request["temperature"], "seed": request["seed"]}
        tokens: list[int] = []
        for chunk in self.ways[request["way"]].stream(request["prompt"], eos=(), **options):
            tokens += chunk.tokens
            times.heard(len(tokens))
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

    def generate(self, request: Request, times: Times) -> list[int]:
        prompt = self.torch.tensor([request["prompt"]])
        given = 1 if self.source else len(request["prompt"])
        count = -given  # what is put first is the prompt

        class Streamer:
            def put(self, value: Any) -> None:
                nonlocal count
                count += value.numel()
                if count > 0:
                    times.heard(count)

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

    def generate(self, request: Request, times: Times) -> list[int]:
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
                    times.heard(len(tokens))
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

    def generate(self, request: Request, times: Times) -> list[int]:
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
                times.heard(count)
                return genai.StreamingStatus.RUNNING

            def end(self) -> None: ...

        tensor = self.openvino.Tensor
        inputs = self.genai.TokenizedInputs(tensor(ids), tensor(self.numpy.ones_like(ids)))
        return list(map(int, self.pipeline.generate(inputs, config, Streamer()).tokens[0]))


class LlamaCpp:
    """llama.cpp by the package xllamacpp, which has its server inside. Reads a GGUF file; one way a process.

    The server keeps nothing of earlier prompts. Its own clock tells prefill and decoding apart, so that nothing has to
    be streamed while its threads work. ``lookup`` and ``ngram-...`` copy from the text, ``assisted`` has a draft model.
    """

    WAYS = {
        "plain": "NONE",
        "lookup": "NGRAM_SIMPLE",
        "ngram-map": "NGRAM_MAP_K",
        "ngram-cache": "NGRAM_CACHE",
        "assisted": "DRAFT_SIMPLE",
    }

    def __init__(self, wanted: Request) -> None:
        import xllamacpp

        (way,) = wanted["ways"]
        params = xllamacpp.CommonParams()
        params.model.path, params.n_ctx, params.n_parallel = wanted["target"], wanted["length"], 1
        params.cache_prompt, params.cache_ram_mib, params.verbosity = False, 0, 0
        settings = [params.cpuparams, params.cpuparams_batch]
        if way != "plain":
            kinds = xllamacpp.common_speculative_type
            params.speculative.types = [getattr(kinds, f"COMMON_SPECULATIVE_TYPE_{self.WAYS[way]}")]
        if way == "assisted":
            params.speculative.draft.mparams.path = wanted["draft"]
            settings += [params.speculative.draft.cpuparams, params.speculative.draft.cpuparams_batch]
        for setting in settings:
            setting.n_threads = wanted["threads"]
        self.server = xllamacpp.Server(params)
        self.version, self.dtype = f"xllamacpp {version('xllamacpp')}", wanted["dtype"]
        sets = [part.split(" = ")[0].strip() for part in xllamacpp.get_system_info().partition(":")[2].split("|")]
        self.notes = {way: f"{os.path.basename(wanted['target'])}, built for {' '.join(filter(None, sets))}"}

    def generate(self, request: Request, times: Times) -> list[int]:
        asked = {
            "prompt": request["prompt"], "n_predict": request["tokens"], "temperature": request["temperature"],
            "seed": request["seed"], "samplers": ["temperature"], "ignore_eos": True, "cache_prompt": False,
            "return_tokens": True,
        }  # fmt: skip
        message = urllib.request.Request(
            f"{self.server.listening_address}/completion",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(message) as reply:
            answer = json.load(reply)
        timings, read = answer["timings"], len(request["prompt"])
        if timings["prompt_n"] != read:
            raise ValueError(f"read {timings['prompt_n']} tokens of a prompt of {read}")
        times.said(timings["prompt_ms"] / 1e3, timings["predicted_ms"] / 1e3)
        return list(map(int, answer["tokens"]))


ENGINES: dict[str, Callable[[Request], ComparedEngine]] = {
    "outrider": Outrider,
    "transformers": Transformers,
    "vllm": Vllm,
    "openvino": OpenVino,
    "llamacpp": LlamaCpp,
}
