"""The report as one page that needs nothing but itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from plotly.offline import get_plotlyjs

from ..drawing import Entry, legend, method_label, panel_note
from ..summary import Summary
from . import words
from .explanations import EXPLANATIONS, TITLE
from .interactive import chart
from .tables import panel_table, panel_words

HERE = Path(__file__).parent


def html_report(records: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]) -> str:
    """The page, from the claims' records and the summaries in their order."""
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": words.number,
        "interval": words.interval,
        "probability": words.probability,
        "probabilities": words.probabilities,
        "effort": words.effort,
        "method": method_label,
    }
    legends = {summary.name: legend(summary.panels) for summary in summaries}
    return environment.get_template("template.html.j2").render(
        answer=words.answer(records),
        charts={s.name: [chart(panel, legends[s.name]) for panel in s.panels] for s in summaries},
        explanations=EXPLANATIONS,
        figures=[_section(summary, legends[summary.name]) for summary in summaries],
        plotly_js=get_plotlyjs(),
        provenance=words.provenance(summaries),
        records=records,
        script=(HERE / "page.js").read_text("utf-8"),
        signs=words.SIGNS,
        style=(HERE / "page.css").read_text("utf-8"),
        tally=words.tally(records),
        title=TITLE,
    )


def _section(summary: Summary, entries: Sequence[Entry]) -> dict[str, Any]:
    return {
        "summary": summary,
        "legend": entries,
        "panels": [
            {
                "title": panel.title,
                "note": panel_note(panel, entries),
                "words": panel_words(panel),
                "table": panel_table(panel),
                "log_x": panel.log_x,
                "log_y": panel.log_y,
            }
            for panel in summary.panels
        ],
    }
