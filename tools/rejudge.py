"""Judge the comparisons in summaries of an earlier format anew, by the present rules.

    git archive 3c835c2 results/summaries | tar x -C /tmp
    python tools/rejudge.py /tmp/results/summaries results/summaries

Summaries of the earlier format hold comparisons, but not the runs. Each is judged again by ``claims.judging``; where
runs at α = 0.5 diverged, the stored comparison without that learning rate is used. The summaries are marked as
outdated. ``unstale-lab report`` replaces them as soon as their figures have been run again, and this tool can then go.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unstale_lab.analysis.formatting import label
from unstale_lab.analysis.statistics import Comparison
from unstale_lab.claims.contrast import Contrast, Instability
from unstale_lab.claims.judging import at_reduced_scale, better, differs, equivalent, make_verdict, no_better
from unstale_lab.claims.verdict import Answer, Part, Verdict
from unstale_lab.summary import json_text

NOTE = "Judged anew from the comparisons of runs of an earlier version, whose oracle was not renormalised."
CONCLUSIONS: dict[str, Answer] = {"holds": "holds", "does not hold": "does not hold", "is undecided": "undecided"}
SHOWN_CLAIMS = (15, 19)
WITHOUT_LARGEST_ALPHA = "without α"
EXTRA_READINGS = ("α =", "beyond", "against true", "against sampled returns, l")


def read_comparison(own: dict[str, Any]) -> Comparison:
    """Convert relative differences to ratios."""
    numbers = {name: float(own[name]) for name in ("p_welch", "p_paired", "p_holm", "improvement", "iqm_a", "iqm_b")}
    interval = tuple(float(end) + 1 for end in own["interval"])
    kept = {name: value for name, value in own.items() if name != "effect"}
    return Comparison(**kept | numbers | {"ratio": float(own["effect"]) + 1, "interval": interval})


def read_statements(note: str) -> Iterator[tuple[str, str, str]]:
    """Yield what was measured, the statement and the conclusion of each part; the rest of the note comes last."""
    before, *chunks = note.split(": “")
    for chunk in chunks:
        statement, _, after = chunk.partition("” ")
        conclusion = next((text for text in CONCLUSIONS if after.startswith(f"{text}.")), None)
        if conclusion is None:
            before = after
            continue
        yield before.strip(), statement, conclusion
        before = after[len(conclusion) + 1 :].strip()
    yield before, "", ""


def make_contrast(whole: Comparison, milder: Comparison | None) -> Contrast:
    """Return a contrast of the stored comparison, or of the one without the largest learning rate if runs diverged."""
    seeds = 5 if whole.pairs < 10 else 10
    counts = {whole.a: whole.diverged_a, whole.b: whole.diverged_b}
    if max(counts.values()) <= 0.05 * whole.pairs:
        return Contrast(whole.a, whole.b, whole, math.log(whole.ratio), seeds, "")
    if milder is not None and max(milder.diverged_a, milder.diverged_b) <= 0.25 * milder.pairs:
        more = whole.pairs - milder.pairs
        left = {whole.a: counts[whole.a] - milder.diverged_a, whole.b: counts[whole.b] - milder.diverged_b}
        unstable = tuple(Instability(line, "α = 0.5", n, more) for line, n in left.items() if n > 0.25 * more)
        where = "α ≤ 0.1" if unstable else ""
        return Contrast(whole.a, whole.b, milder, math.log(milder.ratio), 10, where, unstable)
    unstable = tuple(Instability(line, "", n, whole.pairs) for line, n in counts.items() if n > 0.25 * whole.pairs)
    return Contrast(whole.a, whole.b, None if unstable else whole, math.log(whole.ratio), seeds, "", unstable)


def judge(statement: str, contrast: Contrast) -> Part:
    """Judge a contrast by the rule that the statement was judged by."""
    a, b = label(contrast.a), label(contrast.b)
    if "does not differ" in statement:
        return equivalent(contrast)
    if "is close to" in statement:
        return equivalent(contrast, 1.25, f"{a} is close to {b}")
    if "differs from" in statement:
        return differs(contrast)
    if "no better" in statement or "no less" in statement:
        return no_better(contrast, statement)
    size = re.search(r" by (\d+) % or more", statement)
    max_ratio = 1 - int(size[1]) / 100 if size else 1.0
    shorter = statement.replace(size[0], "") if size else statement
    return better(contrast, max_ratio, "" if "is better than" in statement else shorter)


def rejudge(own: dict[str, Any], milder: dict[tuple[str, str], Comparison], is_reduced: bool) -> Verdict | None:
    """Return the verdict by the present rules; None for readings that are no longer judged."""
    reading = own["reading"]
    if WITHOUT_LARGEST_ALPHA in reading or reading.startswith("in the paper"):
        return None
    counts = {"runs": own["runs"], "diverged": own["diverged"]}
    if own["claim"] in SHOWN_CLAIMS:
        return Verdict(own["claim"], "shown", "Shown; no conclusion is drawn.", notes=own["note"], **counts)
    compared = {f"{label(c.a)} vs {label(c.b)}:": c for c in map(read_comparison, own["comparisons"])}
    *statements, (rest, _, _) = read_statements(own["note"])
    parts = []
    for measured, statement, conclusion in statements:
        found = next((c for text, c in compared.items() if text in measured), None)
        if found is None:
            parts.append(Part(statement, CONCLUSIONS[conclusion], measured.split(". ")[-1]))
        else:
            parts.append(judge(statement, make_contrast(found, milder.get((found.a, found.b)))))
    parts.sort(key=lambda part: part.statement != "μ̂ differs from μ")
    is_undamped = reading == "undamped"
    is_plain = not reading or reading.startswith("damped") or reading == "against sampled returns"
    is_extra = reading.startswith(EXTRA_READINGS) or (is_undamped and own["claim"] != 2)
    scope = "" if is_plain else reading
    verdict = make_verdict(own["claim"], parts, [], f"{rest} {NOTE}".strip(), scope=scope, is_extra=is_extra)
    return replace(at_reduced_scale(verdict) if is_reduced else verdict, **counts)


def convert(text: str) -> str:
    """Return the text of a summary in the present format."""
    own = json.loads(text)
    milder: dict[tuple[str, str], Comparison] = {}
    for verdict in own["verdicts"]:
        if WITHOUT_LARGEST_ALPHA in verdict["reading"]:
            for c in map(read_comparison, verdict["comparisons"]):
                other = Contrast(c.a, c.b, c, 0.0, 10, "").inverted().comparison
                assert other is not None
                milder |= {(c.a, c.b): c, (c.b, c.a): other}
    found = (rejudge(verdict, milder, own["scale"] != "paper") for verdict in own["verdicts"])
    verdicts = [asdict(verdict) for verdict in found if verdict is not None]
    return json_text(own | {"verdicts": verdicts, "is_outdated": bool(own["claims"])})


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    for path in sorted(source.glob("*.json")):
        (target / path.name).write_text(convert(path.read_text("utf-8")), "utf-8")
