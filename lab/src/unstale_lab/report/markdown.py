"""The report for a terminal or a forge."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..drawing import Entry, legend, method_label, panel_note
from ..figures.base import Comparison, Panel, Verdict
from ..summary import Summary
from . import words
from .explanations import EXPLANATIONS, TITLE
from .tables import panel_words


def markdown_report(records: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]) -> str:
    parts = [
        f"# {TITLE}",
        words.answer(records),
        "The same with curves to look into: [report.html](report.html). As data: [claims.json](claims.json).",
        "## The claims",
        _claims(records),
        "## The figures",
        *(part for summary in summaries for part in _figure(summary)),
        "## How to read this",
        "\n".join(f"- **{_escaped(term)}**: {meaning}" for term, meaning in EXPLANATIONS.items()),
        "\n".join(f"- {heading}: {text}" for heading, text in words.provenance(summaries).items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claims(records: Sequence[Mapping[str, Any]]) -> str:
    heading = ["#", "claim", "verdict", "effect", "p", "p, Welch", "p, paired, Holm", "runs", "diverged", "figure"]
    return _table(heading, (row for record in records for row in _claim_rows(record)))


def _claim_rows(record: Mapping[str, Any]) -> Iterable[list[str]]:
    for place, reading in enumerate(record["readings"] or [record]):
        about = [reading["reading"]] if place else [f"{record['problem']}: {record['statement']}", reading["reading"]]
        yield [
            str(record["claim"]),
            " · ".join(text for text in about if text),
            f"{words.SIGNS[reading['verdict']]} {reading['verdict']}",
            f"{words.number(reading['effect'])} {words.interval(reading['interval'])}",
            words.probability(reading["p"]),
            words.probabilities(comparison["p_welch"] for comparison in reading["comparisons"]),
            words.probabilities(comparison["p_holm"] for comparison in reading["comparisons"]),
            f"{reading['runs']:,}" if reading["runs"] else words.NOTHING,
            f"{reading['diverged']:,}" if reading["runs"] else words.NOTHING,
            f"[{reading['section']}](#{reading['section']})" if reading["section"] else words.NOTHING,
        ]


def _figure(summary: Summary) -> Iterable[str]:
    # The heading is the bare name, so that every forge makes the same anchor of it.
    yield f"### {summary.name}"
    yield f"**{_escaped(summary.title)}**"
    yield f"![{_escaped(summary.title)}](figures/{summary.name}.png)" if summary.panels else ""
    entries = legend(summary.panels)
    yield "\n".join(f"- {_escaped(_panel(panel, entries))}" for panel in summary.panels)
    yield "\n".join(f"- {_escaped(entry.label)}: {entry.note}" for entry in entries if entry.note)
    for verdict in summary.verdicts:
        yield _verdict(verdict)
        if verdict.comparisons:
            yield _comparisons(verdict.comparisons)
    yield f"Settings: {_escaped(summary.settings)}"
    yield f"What was cut: {_escaped(summary.cut)}" if summary.cut else ""
    yield f"```sh\n{summary.command}\n```"
    yield f"{words.effort(summary)}."


def _panel(panel: Panel, entries: Sequence[Entry]) -> str:
    note = panel_note(panel, entries)
    return f"{panel_words(panel)} Diverged here: {note}." if note else panel_words(panel)


def _verdict(verdict: Verdict) -> str:
    reading = f" ({verdict.reading})" if verdict.reading else ""
    sign = f"{words.SIGNS[verdict.outcome]} {verdict.outcome}"
    return f"**Claim {verdict.claim}{_escaped(reading)}: {sign}.** {_escaped(verdict.note)}"


def _comparisons(comparisons: Sequence[Comparison]) -> str:
    heading = ["a against b", "difference", "a better", "IQM of a", "IQM of b"]
    heading += ["p, Welch", "p, paired", "p, Holm", "pairs", "diverged"]
    return _table(
        heading,
        (
            [
                f"{method_label(c.a)} against {method_label(c.b)}",
                f"{words.number(c.effect)} {words.interval(c.interval)}",
                words.number(c.improvement),
                words.number(c.iqm_a),
                words.number(c.iqm_b),
                words.probability(c.p_welch),
                words.probability(c.p_paired),
                words.probability(c.p_holm),
                f"{c.pairs:,}",
                f"{c.diverged_a} and {c.diverged_b}",
            ]
            for c in comparisons
        ),
    )


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *([_cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", r"\|").replace("\n", " ").strip()


def _escaped(text: str) -> str:
    """What Markdown would take for emphasis or a tag; links are left."""
    for mark in "*_<`":
        text = text.replace(mark, f"\\{mark}")
    return text
