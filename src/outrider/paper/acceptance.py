"""Alphas of Leviathan et al. 2023: Table 3, Table 5 (lenience), and the ways of sampling of section 2.2."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from outrider.core.sampling import Sampling
from outrider.paper import published
from outrider.paper.distributions import Means, ScoredToken, changed, places
from outrider.paper.lab import CHATTER, CONTINUER, TRANSLATOR, Lab
from outrider.paper.table import Experiment, Found, PaperRow, Unit

LIKE = {  # what stands for what: their target and our target, their draft and our draft
    TRANSLATOR: ("T5-XXL (EnDe)", {"unigram": "unigram", "bigram": "bigram", "draft": "T5-small"}),
    CONTINUER: ("GPT-like (97M)", {"unigram": "unigram", "bigram": "bigram", "draft": "GPT-like (6M)"}),
}
LENIENCES = (1.0, 0.8, 0.5, 0.3, 0.1)
VARIANTS = {
    "temperature 1": Sampling(1.0), "temperature 0.7": Sampling(0.7), "temperature 0.5": Sampling(0.5),
    "top-k 40": Sampling(1.0, top_k=40), "top-k 5": Sampling(1.0, top_k=5), "nucleus 0.95": Sampling(1.0, top_p=0.95),
    "nucleus 0.8": Sampling(1.0, top_p=0.8), "min-p 0.1": Sampling(1.0, min_p=0.1), "temperature 0": Sampling(0.0),
}  # fmt: skip
_TEXTS = "Alpha is the mean of sum min(p, q) over tokens that the target wrote by itself with the same options"


def table_3(target: str, temperature: int) -> Unit:
    """Corollary 3.6 on the target's own text."""

    def run(lab: Lab) -> Found:
        drafts, means = lab.drafts(target), Means()
        sampling = Sampling(float(temperature))
        for place in _places(lab, target, sampling):
            seen = place.under(changed(sampling))
            for name in drafts:
                means.add(name, seen.overlap(name))
        theirs, same = LIKE.get(target, ("", {}))
        rows = []
        for name in drafts:
            mean = means.of(name)
            known = published.ALPHAS.get((theirs, same.get(name, "")))
            rows.append(
                PaperRow(
                    {"our target": target, "our draft": name, "their target": theirs or None,
                     "their draft": same.get(name), "temperature": temperature},
                    {"alpha": None if known is None else known[temperature]},
                    {"alpha": round(mean.value, 3), "standard error": round(mean.error, 3), "tokens": mean.count},
                    "" if known else "the paper has no such pair",
                )
            )  # fmt: skip
        return Found(rows)

    return Unit(f"{target}, temperature {temperature}", run)


def not_here(lab: Lab) -> Found:
    """Rows of Table 3 that nothing here stands for."""
    stood_for = {(theirs, draft) for theirs, same in LIKE.values() for draft in same.values()}
    reasons = {
        "T5-XXL (EnDe)": "no second size of draft comes with the package",
        "T5-XXL (CNNDM)": "no summarising pair comes with the package",
        "LaMDA (137B)": "the models are not public",
    }
    return Found([
        PaperRow({"their target": target, "their draft": draft, "temperature": t}, {"alpha": alphas[t]},
                 {"alpha": None}, reasons[target])
        for (target, draft), alphas in published.ALPHAS.items() if (target, draft) not in stood_for
        for t in (0, 1)
    ])  # fmt: skip


def table_5(lab: Lab) -> Found:
    """Lenience, at temperature 1 and in the greedy form of A.5: x is kept where p(x) >= l max(p)."""
    drafts, means = lab.drafts(TRANSLATOR), Means()
    for place in _places(lab, TRANSLATOR, Sampling(1.0)):
        for name in drafts:
            for lenience in LENIENCES:
                means.add(f"{name} {lenience}", place.overlap(name, lenience))
    for place in _places(lab, TRANSLATOR, Sampling(0.0)):
        q = place.q["draft"]
        for lenience in LENIENCES:
            kept = q is not None and float(place.p[int(q.argmax())]) >= lenience * float(place.p.max())
            means.add(f"greedy {lenience}", float(kept))
    theirs = {name: published.LENIENT_ALPHAS[LIKE[TRANSLATOR][1][name]] for name in drafts}
    rows = [_lenient(name, 1, theirs[name], {x: means.of(f"{name} {x}").value for x in LENIENCES}) for name in drafts]
    greedy = {x: means.of(f"greedy {x}").value for x in LENIENCES}
    return Found([*rows, _lenient("draft", 0, published.LENIENT_GREEDY, greedy)])


def _lenient(draft: str, temperature: int, theirs: tuple[float, ...], ours: Mapping[float, float]) -> PaperRow:
    known = dict(zip(published.LENIENCES, theirs, strict=True))
    return PaperRow(
        {"our draft": draft, "their draft": LIKE[TRANSLATOR][1][draft], "temperature": temperature},
        {f"l = {x:g}": known.get(x) for x in LENIENCES},
        {f"l = {x:g}": round(ours[x], 3) for x in LENIENCES},
        "the paper has no l = 0.8",
    )


def sampling_variants(target: str) -> Unit:
    """Section 2.2: every way of sampling is a change of both distributions. Texts are written at temperature 1."""

    def run(lab: Lab) -> Found:
        drafts, means = lab.drafts(target), Means()
        for place in _places(lab, target, Sampling(1.0)):
            for variant, sampling in VARIANTS.items():
                seen = place.under(changed(sampling))
                for name in drafts:
                    means.add(f"{name} {variant}", seen.overlap(name))
        return Found([
            PaperRow({"our target": target, "our draft": name}, {},
                {variant: round(means.of(f"{name} {variant}").value, 3) for variant in VARIANTS},
                "the paper says that sharper distributions have higher alphas, and prints none of these")
            for name in drafts
        ])  # fmt: skip

    return Unit(target, run)


def _places(lab: Lab, target: str, sampling: Sampling) -> Iterator[ScoredToken]:
    amount = lab.amount
    return places(lab.engine(target), lab.drafts(target), lab.prompts(target), sampling, amount.tokens, amount.seed)


_SMALLER = (
    "Our pairs are a target of 4M or 9M parameters with a draft of a fifth of that; theirs are a T5 of 11B with drafts "
    f"of a 140th to a fourteenth, and a GPT of 97M with one of a sixteenth. {_TEXTS}."
)
EXPERIMENTS = (
    Experiment(
        "table3", published.LEVIATHAN, "Table 3: acceptance by draft and temperature",
        [*(table_3(target, t) for target in (TRANSLATOR, CONTINUER, CHATTER) for t in (0, 1)),
         Unit("rows nothing stands for", not_here)], _SMALLER,
    ),
    Experiment("table5", published.LEVIATHAN, "Table 5: acceptance with lenience (A.5)", [Unit(TRANSLATOR, table_5)],
               _SMALLER),
    Experiment(
        "sampling", published.LEVIATHAN, "Section 2.2: acceptance under every way of sampling",
        [sampling_variants(target) for target in (TRANSLATOR, CONTINUER)], _SMALLER,
    ),
)  # fmt: skip
