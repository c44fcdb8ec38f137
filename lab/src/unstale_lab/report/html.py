"""The report as one self-contained HTML page."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..analysis.formatting import format_number, format_p, format_times, label
from ..claims.deviations import DEVIATIONS
from ..claims.verdict import ANSWERS, READING_NAMES
from ..summary import Summary
from . import forest, headline
from .drawing import LegendEntry, describe_note, legend, panel_note, panel_title, section_title
from .glossary import GLOSSARY, TITLE
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
from .svg_charts import MARKERS, chart, colour_rules, dash_array, marker_id, style_class
from .tables import distinct_comparisons, panel_table
from .tally import answer_rows

HERE = Path(__file__).parent


def html_report(records: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]) -> str:
    """Return the page, from the records of the claims and the summaries in order."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": format_number,
        "p": format_p,
        "cost": describe_cost,
        "method": label,
        "section": section_title,
        "times": format_times,
        "dashes": dash_array,
        "comparisons": distinct_comparisons,
        "marker": marker_id,
        "colour": style_class,
    }
    environment.globals |= {"effect": forest.format_effect, "signs": ANSWER_SIGNS, "reading_names": READING_NAMES}
    rows = forest.forest_rows(records)
    legends = {summary.name: legend(summary.panels) for summary in summaries}
    page = environment.get_template("template.html.j2").render(
        answer=describe_answer(summaries, has_tally=False),
        description=" ".join(describe_answer(summaries)),
        claims=[dict(record, rows=answer_rows(record)) for record in records],
        colours=colour_rules(entry for entries in legends.values() for entry in entries),
        answers=_answers(records),
        cost_heading=COST_HEADING,
        cost_note=COST_NOTE,
        costs=[cost_row(summary) for summary in summaries],
        deviations=DEVIATIONS,
        figures=[_section(summary, legends[summary.name]) for summary in summaries],
        figures_note=FIGURES_NOTE,
        forest=forest,
        forest_groups=forest.forest_groups(rows),
        forest_rows=rows,
        glossary=GLOSSARY,
        has_answers=any(record["verdicts"] for record in records),
        headline=headline,
        headline_rows=headline.headline_rows(records),
        markers=list(MARKERS.values()),
        symbols_note=SYMBOLS_NOTE,
        provenance=describe_provenance(summaries),
        script=(HERE / "page.js").read_text("utf-8"),
        style=(HERE / "page.css").read_text("utf-8"),
        tally=tally_table(records),
        tally_readings=measured_readings(records),
        title=TITLE,
    )
    return re.sub(r"\n\s+", "\n", page)  # the templates' indentation would be a thirtieth of the page


def _answers(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the answers that occur, for one reading or the other."""
    found = {row.answer for record in records for row in answer_rows(record)}
    return [answer for answer in ANSWERS if answer in found]


def _section(summary: Summary, entries: Sequence[LegendEntry]) -> dict[str, Any]:
    return {
        "summary": summary,
        "legend": entries,
        "panels": [
            {
                "title": panel_title(panel),
                "chart": chart(panel, entries),
                "note": describe_note(panel, entries),
                "diverged": panel_note(panel),
                "table": panel_table(panel),
            }
            for panel in summary.panels
        ],
    }
