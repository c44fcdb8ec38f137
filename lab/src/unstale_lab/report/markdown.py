"""The report as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..analysis.formatting import MISSING, capitalized, format_briefly, format_number, format_p, label
from ..analysis.panels import Panel
from ..analysis.statistics import Comparison
from ..claims.deviations import DEVIATIONS
from ..claims.verdict import READING_NAMES, Part, Verdict
from ..summary import Summary
from .drawing import LegendEntry, describe_coinciding, describe_undrawn, legend, panel_note, section_title
from .forest import FOREST_CAPTION, forest_rows
from .glossary import GLOSSARY, TITLE
from .headline import HEADLINE_CAPTION, headline_rows
from .overview import (
    ANSWER_SIGNS,
    COST_HEADING,
    COST_NOTE,
    FIGURES_NOTE,
    SYMBOLS_NOTE,
    cost_row,
    describe_answer,
    describe_cost,
    describe_provenance,
    measured_readings,
    tally_table,
)
from .tables import describe_panel
from .tally import answer_rows

INTERACTIVE_NOTE = (
    "With interactive plots: `unstale-lab report` writes report.html beside this file. For the published results: "
    "`unstale-lab report --store results/runs --out results`. As JSON: [claims.json](claims.json)."
)


def markdown_report(records: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]) -> str:
    """Return the report, from the records of the claims and the summaries in order."""
    parts = [
        f"# {TITLE}",
        *map(_escaped, describe_answer(summaries, has_tally=False)),
        *_headline(records),
        *_tally(records),
        _escaped(SYMBOLS_NOTE),
        *_forest(records),
        *_claims(records),
        INTERACTIVE_NOTE,
        "## Figures",
        FIGURES_NOTE,
        *(part for summary in summaries for part in _figure(summary)),
        "## Deviations",
        "Where neither reading does what the authors did.",
        _table(["what", "paper or its code", "here"], ([d.subject, d.theirs, d.ours] for d in DEVIATIONS)),
        "## Cost",
        COST_NOTE,
        _table(COST_HEADING, (cost_row(summary) for summary in summaries)),
        "## Glossary",
        "\n".join(f"- **{_escaped(term)}**: {_escaped(meaning)}" for term, meaning in GLOSSARY.items()),
        "\n".join(f"- {heading}: {_escaped(text)}" for heading, text in describe_provenance(summaries).items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _headline(records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    rows = headline_rows(records)
    if rows:
        yield HEADLINE_CAPTION
        heading = ["problem", "claim", *(f"{name} [95 % CI]" for name in READING_NAMES.values())]
        yield _table(heading, ([row.problem, str(row.claim), row.found["text"], row.found["code"]] for row in rows))


def _tally(records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if any(record["verdicts"] for record in records):
        heading = [f"{len(records)} claims", *(READING_NAMES[reading] for reading in measured_readings(records))]
        rows = ([f"{ANSWER_SIGNS[answer]} {answer}", *map(str, counts)] for answer, counts in tally_table(records))
        yield _table(heading, rows)


def _claims(records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    if any(record["verdicts"] for record in records):
        yield f"## The {len(records)} claims"
        heading = ["#", "claim", "in the paper", READING_NAMES["text"], READING_NAMES["code"], "why", "figures"]
        yield _table(heading, map(_claim_row, records))


def _claim_row(record: Mapping[str, Any]) -> list[str]:
    rows = answer_rows(record)
    answers = [f"{ANSWER_SIGNS[row.answer]} {row.answer}" for row in rows]
    if len(rows) == 1:
        code = record["answers"]["code"]["answer"]
        answers.append("the same" if code == rows[0].answer != "not run" else f"{ANSWER_SIGNS[code]} {code}")
    sections = dict.fromkeys(verdict["section"] for verdict in record["verdicts"])
    return [
        str(record["number"]),
        f"{record['subject']}: {record['statement']}",
        record["where"],
        *answers,
        " ".join(f"{capitalized(READING_NAMES[r.reading])}: {r.why}" if r.reading else r.why for r in rows),
        ", ".join(f"[{section}](#{section})" for section in sections) or MISSING,
    ]


def _forest(records: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    rows = forest_rows(records)
    if rows:
        yield "## Main effects"
        yield "![Main ratio of each claim with its interval](figures/forest.png)"
        yield f"{FOREST_CAPTION} Filled circles: {READING_NAMES['text']}. Hollow diamonds: {READING_NAMES['code']}."


def _figure(summary: Summary) -> Iterable[str]:
    # The heading is the bare name, so that all renderers make the same anchor.
    yield f"### {summary.name}"
    yield f"**{section_title(summary.name)}. {_escaped(summary.title)}**"
    yield f"![{_escaped(summary.title)}](figures/{summary.name}.png)" if summary.panels else ""
    entries = legend(summary.panels)
    yield "\n".join(f"- {_escaped(_panel(panel, entries))}" for panel in summary.panels)
    yield "\n".join(f"- {_escaped(sentence)}" for sentence in summary.findings)
    for table in summary.tables:
        yield f"**{_escaped(table.title)}**"
        yield _table(table.heading, table.rows)
    for verdict in summary.verdicts if summary.is_judged else ():
        yield from _verdict(verdict)
    yield f"Reduced: {_escaped(summary.cut)}" if summary.cut else ""
    yield f"{'Settings at full scale' if summary.cut else 'Settings'}: {_escaped(summary.settings)}"
    yield f"```sh\n{' '.join(summary.command.split())}\n```"
    yield f"{_escaped(describe_cost(summary))}."


def _panel(panel: Panel, entries: Sequence[LegendEntry]) -> str:
    note = panel_note(panel)
    diverged = f"Diverged: {note}." if note else ""
    texts = (describe_panel(panel), describe_undrawn(panel), describe_coinciding(panel, entries), diverged)
    return " ".join(text for text in texts if text)


def _verdict(verdict: Verdict) -> Iterable[str]:
    about = [verdict.scope, READING_NAMES["code"] if verdict.reading == "code" else ""]
    scope = _escaped("; ".join(text for text in about if text))
    subject = f"Related to claim {verdict.claim}" if verdict.is_extra else f"Claim {verdict.claim}"
    title = f"{subject} ({scope})" if scope else subject
    yield f"**{title}: {ANSWER_SIGNS[verdict.answer]} {verdict.answer}.** {_escaped(verdict.why)}"
    yield "\n".join(f"- {_escaped(_part(part))}" for part in verdict.parts)
    compared = list(dict.fromkeys(part.comparison for part in verdict.parts if part.comparison))
    yield _comparisons(compared) if compared else ""
    yield _escaped(verdict.notes)


def _part(part: Part) -> str:
    return f"{ANSWER_SIGNS[part.answer]} {part.text}"


def _comparisons(comparisons: Sequence[Comparison]) -> str:
    heading = ["a / b", "ratio a / b [95 % CI]", "P(a < b)", "IQM of a", "IQM of b"]
    heading += ["p, paired", "p, Holm", "p, Welch", "pairs", "diverged"]
    return _table(
        heading,
        (
            [
                f"{label(c.a)} / {label(c.b)}",
                format_briefly(c.ratio, c.interval, is_ratio=True),
                format_number(c.improvement),
                format_number(c.iqm_a),
                format_number(c.iqm_b),
                format_p(c.p_paired),
                format_p(c.p_holm),
                format_p(c.p_welch),
                f"{c.pairs:,}",
                f"{c.diverged_a} / {c.diverged_b}",
            ]
            for c in comparisons
        ),
    )


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    first, *others = ([_cell(text) for text in row] for row in (heading, *rows))
    lines = [first, ["---"] * len(heading), *others]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return _escaped(text).replace("|", r"\|").replace("\n", " ").strip()


def _escaped(text: str) -> str:
    """Escape emphasis and tags of Markdown, but not links."""
    for mark in "\\*_<`":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
