"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..analysis.formatting import MISSING, format_interval, format_number, format_p, format_p_range, label
from ..analysis.panels import Panel
from ..analysis.statistics import Comparison
from ..claims.verdict import Verdict
from ..summary import Summary
from .drawing import LegendEntry, legend, panel_note
from .glossary import GLOSSARY, TITLE
from .overview import OUTCOME_SIGNS, describe_answer, describe_cost, describe_provenance
from .tables import describe_panel


def markdown_report(records: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]) -> str:
    """Return the report, from the records of the claims and the summaries in order."""
    parts = [
        f"# {TITLE}",
        *map(_escaped, describe_answer(summaries)),
        "With interactive plots: `unstale-lab report` writes report.html. As JSON: [claims.json](claims.json).",
        "## Claims",
        _claims(records),
        "## Figures",
        *(part for summary in summaries for part in _figure(summary)),
        "## Glossary",
        "\n".join(f"- **{_escaped(term)}**: {meaning}" for term, meaning in GLOSSARY.items()),
        "\n".join(f"- {heading}: {text}" for heading, text in describe_provenance(summaries).items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _claims(records: Sequence[Mapping[str, Any]]) -> str:
    heading = [
        "#",
        "claim",
        "verdict",
        "effect [95 % CI]",
        "p",
        "p, Welch",
        "p, paired, Holm",
        "runs",
        "diverged",
        "figure",
    ]
    return _table(heading, (row for record in records for row in _claim_rows(record)))


def _claim_rows(record: Mapping[str, Any]) -> Iterable[list[str]]:
    for index, reading in enumerate(record["readings"] or [record]):
        texts = [reading["reading"]] if index else [f"{record['problem']}: {record['statement']}", reading["reading"]]
        yield [
            str(record["claim"]),
            " · ".join(text for text in texts if text),
            f"{OUTCOME_SIGNS[reading['verdict']]} {reading['verdict']}",
            f"{format_number(reading['effect'])} {format_interval(reading['interval'])}",
            format_p(reading["p"]),
            format_p_range(comparison["p_welch"] for comparison in reading["comparisons"]),
            format_p_range(comparison["p_holm"] for comparison in reading["comparisons"]),
            f"{reading['runs']:,}" if reading["runs"] else MISSING,
            f"{reading['diverged']:,}" if reading["runs"] else MISSING,
            f"[{reading['section']}](#{reading['section']})" if reading["section"] else MISSING,
        ]


def _figure(summary: Summary) -> Iterable[str]:
    # The heading is the bare name, so that all renderers make the same anchor.
    yield f"### {summary.name}"
    yield f"**{_escaped(summary.title)}**"
    yield f"![{_escaped(summary.title)}](figures/{summary.name}.png)" if summary.panels else ""
    entries = legend(summary.panels)
    yield "\n".join(f"- {_escaped(_panel(panel, entries))}" for panel in summary.panels)
    yield "\n".join(f"- {_escaped(entry.label)}: {entry.note}" for entry in entries if entry.note)
    yield "\n".join(f"- {_escaped(sentence)}" for sentence in summary.findings)
    for table in summary.tables:
        yield f"**{_escaped(table.title)}**"
        yield _table(table.heading, table.rows)
    for verdict in summary.verdicts:
        yield _verdict(verdict)
        if verdict.comparisons:
            yield _comparisons(verdict.comparisons)
    yield f"Settings: {_escaped(summary.settings)}"
    yield f"Reduced: {_escaped(summary.cut)}" if summary.cut else ""
    yield f"```sh\n{summary.command}\n```"
    yield f"{describe_cost(summary)}."


def _panel(panel: Panel, entries: Sequence[LegendEntry]) -> str:
    note = panel_note(panel, entries)
    return f"{describe_panel(panel)} Diverged: {note}." if note else describe_panel(panel)


def _verdict(verdict: Verdict) -> str:
    reading = f" ({verdict.reading})" if verdict.reading else ""
    sign = f"{OUTCOME_SIGNS[verdict.outcome]} {verdict.outcome}"
    return f"**Claim {verdict.claim}{_escaped(reading)}: {sign}.** {_escaped(verdict.note)}"


def _comparisons(comparisons: Sequence[Comparison]) -> str:
    heading = ["a vs b", "difference [95 % CI]", "P(a better)", "IQM of a", "IQM of b"]
    heading += ["p, Welch", "p, paired", "p, Holm", "pairs", "diverged"]
    return _table(
        heading,
        (
            [
                f"{label(c.a)} vs {label(c.b)}",
                f"{format_number(c.effect)} {format_interval(c.interval)}",
                format_number(c.improvement),
                format_number(c.iqm_a),
                format_number(c.iqm_b),
                format_p(c.p_welch),
                format_p(c.p_paired),
                format_p(c.p_holm),
                f"{c.pairs:,}",
                f"{c.diverged_a} vs {c.diverged_b}",
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
    """Escape emphasis and tags of Markdown, but not links."""
    for mark in "*_<`":
        text = text.replace(mark, f"\\{mark}")
    return text
