"""The report as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from ..analysis.formatting import format_interval, format_number, format_p, format_p_range, label
from ..summary import Summary
from .drawing import LegendEntry, legend, panel_note
from .glossary import GLOSSARY, TITLE
from .overview import (
    OUTCOME_SIGNS,
    claims_by_outcome,
    describe_answer,
    describe_cost,
    describe_provenance,
)
from .plotly_charts import chart
from .tables import describe_panel, panel_table

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
        "interval": format_interval,
        "p": format_p,
        "p_range": format_p_range,
        "cost": describe_cost,
        "method": label,
    }
    legends = {summary.name: legend(summary.panels) for summary in summaries}
    return environment.get_template("template.html.j2").render(
        answer=describe_answer(summaries),
        charts={s.name: [chart(panel, legends[s.name]) for panel in s.panels] for s in summaries},
        glossary=GLOSSARY,
        figures=[_section(summary, legends[summary.name]) for summary in summaries],
        plotly_js=get_plotlyjs(),
        provenance=describe_provenance(summaries),
        records=records,
        script=(HERE / "page.js").read_text("utf-8"),
        signs=OUTCOME_SIGNS,
        style=(HERE / "page.css").read_text("utf-8"),
        tally=claims_by_outcome(records),
        title=TITLE,
    )


def _section(summary: Summary, entries: Sequence[LegendEntry]) -> dict[str, Any]:
    return {
        "summary": summary,
        "legend": entries,
        "panels": [
            {
                "title": panel.title,
                "note": panel_note(panel, entries),
                "description": describe_panel(panel),
                "table": panel_table(panel),
                "log_x": panel.log_x,
                "log_y": panel.log_y,
            }
            for panel in summary.panels
        ],
    }
