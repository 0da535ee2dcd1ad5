"""A plan's choice in the words of other programs: what they call it, and what they have no equivalent of."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from outrider.bench.plan.plan_file import PlanFile
from outrider.errors import BadOption, require


@dataclass(frozen=True)
class Exported:
    """What is to be written down."""

    target: str
    gamma: int
    draft: Mapping[str, Any]  # as a plan file describes it

    @property
    def copies(self) -> bool:
        return bool(self.draft["kind"] == "copy")

    @property
    def model(self) -> str:
        return str(self.draft["model"])


def export(plan: PlanFile, program: str, batch: int) -> str:
    """The configuration of another program for what the plan recommends. BadOption where it has no such thing."""
    if program not in WRITERS:
        raise BadOption(f"export must be one of {', '.join(WRITERS)}, got {program!r}")
    choice = plan.choice(batch)
    head = f"# {plan.target}, {choice.batch} at a time: {{}}, from a plan of Outrider {plan.content['outrider']}\n"
    if choice.draft == "none":
        return head.format("do not speculate") + "# Leave all options of speculative decoding out.\n"
    told = plan.content["drafters"].get(choice.draft, {"kind": "other", "name": choice.draft})
    if told["kind"] == "other":
        raise BadOption(
            f"export: {program} has nothing like draft {choice.draft!r} ({told['name']}); {_exportable(plan, batch)}"
        )
    others = program != "transformers" and plan.content["encoder_decoder"]
    require(
        not others,
        f"export: {program} does not speculate with encoder-decoder models such as {plan.target!r}; use transformers",
    )
    what = f"draft {choice.draft}, gamma {choice.gamma}, predicted {choice.speedup:.2f}x by Outrider's own costs"
    return head.format(what) + WRITERS[program](Exported(plan.target, choice.gamma, told)) + IDENTITY


def _exportable(plan: PlanFile, batch: int) -> str:
    """What can be exported instead: the fastest of the plan's cells whose draft others have."""
    known = [name for name, told in plan.content["drafters"].items() if told["kind"] != "other"]
    nearest = plan.choice(batch).batch
    cells = [cell for cell in plan.content["cells"] if cell["draft"] in known and cell["batch"] == nearest]
    if not cells:
        return "only copying and draft models can be exported; plan with --drafts copy, or with a draft model"
    best = max(cells, key=lambda cell: float(cell["speedup"]))
    return (
        f"{best['draft']} with gamma {best['gamma']} (predicted {best['speedup']:.2f}x) can be exported: plan with "
        f"--drafts {','.join(known)}"
    )


IDENTITY = (
    "# No equivalent: a text that is the same to the bit with and without speculation, and a gamma that follows what "
    "is accepted (gamma auto).\n"
)


def _vllm(asked: Exported) -> str:
    config: dict[str, Any] = {"num_speculative_tokens": asked.gamma}
    if asked.copies:
        lengths = {"prompt_lookup_min": asked.draft["shortest"], "prompt_lookup_max": asked.draft["longest"]}
        config = {"method": "ngram", **config, **lengths}
    else:
        config = {"method": "draft_model", "model": asked.model, **config}
    return f"vllm serve {shlex.quote(asked.target)} --speculative-config {shlex.quote(json.dumps(config))}\n"


def _sglang(asked: Exported) -> str:
    """Tokens of a verification include the one that is already known: gamma and one."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", asked.target, "--speculative-algorithm"]
    tokens = ["--speculative-num-draft-tokens", str(asked.gamma + 1)]
    if asked.copies:
        note = "# NGRAM needs a CUDA device. No equivalent: the least and greatest length of a match.\n"
        return shlex.join([*words, "NGRAM", *tokens]) + "\n" + note
    words += ["STANDALONE", "--speculative-draft-model-path", asked.model]
    return (
        shlex.join([*words, "--speculative-num-steps", str(asked.gamma), "--speculative-eagle-topk", "1", *tokens])
        + "\n"
    )


def _llama_cpp(asked: Exported) -> str:
    words = ["llama-server", "--model", "TARGET.gguf", "--spec-type"]
    files = f"# TARGET.gguf: {asked.target} as a GGUF file"
    if asked.copies:
        sizes = ["--spec-ngram-simple-size-n", str(asked.draft["shortest"])]
        words += ["ngram-simple", *sizes, "--spec-ngram-simple-size-m", str(asked.gamma)]
        note = (
            "# Releases of early 2026 call these --spec-ngram-size-n and --spec-ngram-size-m.\n"
            f"# No equivalent: preferring longer matches, up to {asked.draft['longest']} tokens.\n"
        )
        return shlex.join(words) + f"\n{files}.\n" + note
    words += ["draft-simple", "--model-draft", "DRAFT.gguf", "--spec-draft-n-max", str(asked.gamma)]
    older = "# Older releases: --draft-max for --spec-draft-n-max, and no --spec-type.\n"
    confident = (
        "# A draft also ends where the draft model is not sure enough; --spec-draft-p-min 0 switches that off.\n"
    )
    return shlex.join(words) + f"\n{files}; DRAFT.gguf: {asked.model} as one.\n" + older + confident


def _transformers(asked: Exported) -> str:
    if asked.copies:
        longest = asked.draft["longest"]
        call = f"options = {{'prompt_lookup_num_tokens': {asked.gamma}, 'max_matching_ngram_size': {longest}}}\n"
        return (
            call + "# output = model.generate(**inputs, **options)\n# Rows: one at a time. No equivalent: the least "
            "length of a match.\n"
        )
    return (
        "from transformers import AutoModelForCausalLM  # AutoModelForSeq2SeqLM for encoder-decoder models\n\n"
        f"assistant = AutoModelForCausalLM.from_pretrained({asked.model!r})\n"
        f"assistant.generation_config.num_assistant_tokens = {asked.gamma}\n"
        "assistant.generation_config.num_assistant_tokens_schedule = 'constant'\n"
        "assistant.generation_config.assistant_confidence_threshold = 0.0\n"
        "options = {'assistant_model': assistant}\n# output = model.generate(**inputs, **options)\n"
        "# Rows: one at a time.\n"
    )


WRITERS: dict[str, Callable[[Exported], str]] = {
    "vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp, "transformers": _transformers,
}  # fmt: skip
