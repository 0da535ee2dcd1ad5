"""Alphas of Leviathan et al. 2023: Table 3, A.2 (rejection sampling) and the ways of sampling of section 2.2."""

from __future__ import annotations

from collections.abc import Iterator

from outrider import theory
from outrider.core.sampling import Sampling
from outrider.paper import published
from outrider.paper.distributions import Means, ScoredToken, places
from outrider.paper.lab import CHATTER, CONTINUER, SUMMARISER, TRANSLATOR, Lab
from outrider.paper.speed import NO_SECOND_SIZE, NO_THIRD_DRAFT
from outrider.paper.table import Experiment, Found, PaperRow, Unit

LIKE = {  # what stands for what: their target and our target, their draft and our draft
    TRANSLATOR: ("T5-XXL (EnDe)", {"unigram": "unigram", "bigram": "bigram", "draft": "T5-small"}),
    CONTINUER: ("GPT-like (97M)", {"unigram": "unigram", "bigram": "bigram", "draft": "GPT-like (6M)"}),
    SUMMARISER: (
        "T5-XXL (CNNDM)", {"unigram": "unigram", "bigram": "bigram", "head": "T5-small", "auto": "T5-base"},
    ),
}  # fmt: skip
VARIANTS = {
    "temperature 1": Sampling(1.0), "temperature 0.7": Sampling(0.7), "temperature 0.5": Sampling(0.5),
    "top-k 40": Sampling(1.0, top_k=40), "top-k 5": Sampling(1.0, top_k=5), "nucleus 0.95": Sampling(1.0, top_p=0.95),
    "nucleus 0.8": Sampling(1.0, top_p=0.8), "min-p 0.1": Sampling(1.0, min_p=0.1), "temperature 0": Sampling(0.0),
}  # fmt: skip

PROVED = "the paper proves that it is at most alpha, and prints no numbers"
BY_HAND = (((0.5, 0.3, 0.2), (0.5, 0.3, 0.2)), ((0.5, 0.3, 0.2), (0.4, 0.4, 0.2)), ((0.5, 0.3, 0.2), (0.9, 0.05, 0.05)))


def table_3(target: str, temperature: int) -> Unit:
    """Corollary 3.6 on the target's own text."""

    def run(lab: Lab) -> Found:
        means = lab.overlaps(target, float(temperature))
        theirs, same = LIKE.get(target, (None, {}))
        rows = []
        for name in lab.every_draft(target):
            mean = means.of(name)
            known = published.ALPHAS.get((theirs or "", same.get(name, "")))
            rows.append(
                PaperRow(
                    {"our target": target, "our draft": name, "their target": theirs,
                     "their draft": same.get(name), "temperature": temperature},
                    {} if known is None else {"alpha": known[temperature]},
                    {"alpha": round(mean.value, 3), "standard error": round(mean.error, 3), "tokens": mean.count,
                     "texts": len(lab.prompts(target))},
                    "" if known else "the paper has no such pair",
                )
            )  # fmt: skip
        counted = [f"Our tables of {SUMMARISER} were counted on {lab.counted_tokens:,} tokens of texts that are not "
                   "asked."] if target == SUMMARISER else []  # fmt: skip
        return Found(rows, notes=counted)

    return Unit(f"{target}, temperature {temperature}", run)


def not_here(lab: Lab) -> Found:
    """Rows of Table 3 that nothing here stands for."""
    stood_for = {(theirs, draft) for theirs, same in LIKE.values() for draft in same.values()}
    reasons = {
        "T5-XXL (EnDe)": NO_SECOND_SIZE,
        "T5-XXL (CNNDM)": NO_THIRD_DRAFT,
        "LaMDA (137B)": "the models are not public",
    }
    return Found([
        PaperRow({"their target": target, "their draft": draft, "temperature": t}, {"alpha": alphas[t]}, {},
                 reasons[target])
        for (target, draft), alphas in published.ALPHAS.items() if (target, draft) not in stood_for
        for t in (0, 1)
    ])  # fmt: skip


def sampling_variants(target: str) -> Unit:
    """Section 2.2: every way of sampling is a change of both distributions. Texts are written at temperature 1."""

    def run(lab: Lab) -> Found:
        drafts, means = lab.drafts(target), Means()
        for place in written_at_1(lab, target):
            for variant, sampling in VARIANTS.items():
                seen = place.under(sampling)
                for name in drafts:
                    means.add(f"{name} {variant}", seen.overlap(name))
        return Found([_variants(lab, target, name, means) for name in drafts])

    return Unit(target, run)


def _variants(lab: Lab, target: str, name: str, means: Means) -> PaperRow:
    found = {variant: round(means.of(f"{name} {variant}").value, 3) for variant in VARIANTS}
    sharper = found["temperature 0"] - found["temperature 1"]
    return PaperRow(
        {"our target": target, "our draft": name}, {},
        {**found, "0 less 1": round(sharper, 3), "texts": len(lab.prompts(target))},
        "the paper says that sharper distributions have higher alphas, and prints none of these",
    )  # fmt: skip


def rejection(target: str) -> Unit:
    """A.2: one round of rejection sampling, and else an unmodified p, keeps the least of q / p where Algorithm 1 keeps
    the sum of min(p, q)."""

    def run(lab: Lab) -> Found:
        drafts, means = lab.drafts(target), Means()
        for place in written_at_1(lab, target):
            for name in drafts:
                means.add(f"{name} kept", place.rejection(name))
                means.add(f"{name} alpha", place.overlap(name))
        return Found([
            PaperRow({"our target": target, "our draft": name, "temperature": 1}, {},
                {"rejection sampling": round(means.of(f"{name} kept").value, 4),
                 "alpha": round(means.of(f"{name} alpha").value, 3), "tokens": means.of(f"{name} alpha").count},
                PROVED)
            for name in drafts
        ])  # fmt: skip

    return Unit(target, run)


def rejection_by_hand(lab: Lab) -> Found:
    """Small distributions: both formulas."""
    return Found([
        PaperRow({"p": " ".join(f"{x:g}" for x in p), "q": " ".join(f"{x:g}" for x in q)}, {},
            {"rejection sampling": round(theory.rejection_overlap(p, q), 3), "alpha": round(theory.overlap(p, q), 3)},
            PROVED)
        for p, q in BY_HAND
    ])  # fmt: skip


def written_at_1(lab: Lab, target: str) -> Iterator[ScoredToken]:
    """Every token of the target's own texts at temperature 1."""
    amount = lab.amount
    return places(
        lab.engine(target), lab.drafts(target), lab.prompts(target), Sampling(1.0), amount.tokens, amount.seed
    )


SMALLER = (
    "Our pairs are a target of 4M or 9M parameters with a draft of a fifth of that; theirs are a T5 of 11B with drafts "
    "of a 140th to a fourteenth, and a GPT of 97M with one of a sixteenth. Summaries are SmolLM2-135M's, whose drafts "
    "are copying, a head and both (auto), and no models of their own. "
)
EXPERIMENTS = (
    Experiment(
        "table3", published.LEVIATHAN, "Table 3: acceptance by draft and temperature",
        [*(table_3(target, t) for target in (TRANSLATOR, CONTINUER, CHATTER, SUMMARISER) for t in (0, 1)),
         Unit("rows nothing stands for", not_here)],
        SMALLER + "Alpha is the mean of sum min(p, q) over tokens that the target wrote by itself at that temperature; "
        "where a draft has no guess it counts 0. Theirs is over 10,000 tokens, ours over as many as stand there.",
    ),
    Experiment(
        "sampling", published.LEVIATHAN, "Section 2.2: acceptance under every way of sampling",
        [sampling_variants(target) for target in (TRANSLATOR, CONTINUER)],
        SMALLER + "Texts are written at temperature 1 throughout, and both distributions of every token are then "
        "changed: at temperature 0 that is not the alpha of Table 3, whose texts are greedy. The paper finds that "
        "sharper distributions have higher alphas; where the difference of temperature 0 and temperature 1 is below 0, "
        "ours does not.",
    ),
    Experiment(
        "rejection", published.LEVIATHAN, "A.2: rejection sampling in one round",
        [Unit("formulas", rejection_by_hand), *(rejection(target) for target in (TRANSLATOR, CONTINUER))],
        SMALLER + "Kept by rejection sampling: the mean of min q(x) / p(x) over all x that p may take, beside alpha at "
        "the same tokens. A draft that leaves out one token that the target may write keeps nothing.",
    ),
)  # fmt: skip
