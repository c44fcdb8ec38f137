"""The report of an evaluation: one HTML page without JavaScript or other files."""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from .interval import Interval
from .spaces import Array
from .svg import Chart, span
from .training import MONITORED_BATCHES, MONITORED_EVERY

if TYPE_CHECKING:
    from .result import Evaluation

BLUE, ORANGE, GREEN, GREY = "var(--blue)", "var(--orange)", "var(--green)", "var(--grey)"
MAX_DOTS, BINS, GRID = 400, 10, 36

STYLE = """
:root { --ink: #1c2330; --muted: #5c6675; --paper: #fff; --card: #f5f7fa; --line: #dfe4ea;
  --blue: #1f6fb4; --orange: #c7591a; --green: #21804f; --grey: #8b95a3; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --muted: #9aa5b4; --paper: #12161c; --card: #1b212a;
  --line: #313a46; --blue: #6cb2ee; --orange: #f09a5e; --green: #63c793; --grey: #7e8998; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 24px 16px 48px; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 0 0 4px; }
p { margin: 4px 0; } .muted, figcaption { color: var(--muted); font-size: 0.9rem; }
.value { font-size: 2.2rem; font-weight: 650; line-height: 1.2; margin: 16px 0 0; }
.value small { font-size: 1.05rem; font-weight: 400; color: var(--muted); white-space: nowrap; }
.belief { display: inline-block; border-radius: 4px; padding: 1px 8px; color: var(--paper); font-weight: 600; }
.high { background: var(--green); } .medium { background: var(--orange); } .low { background: #b3261e; color: #fff; }
ul { margin: 6px 0 0; padding-left: 20px; }
table { border-collapse: collapse; margin: 16px 0; width: 100%; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 500; color: var(--muted); width: 42%; }
td { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.charts { display: grid; gap: 16px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
figure { margin: 0; padding: 14px; background: var(--card); border-radius: 8px; }
svg { width: 100%; height: auto; display: block; font: 12px system-ui, sans-serif; }
@media (max-width: 560px) { svg { font-size: 15px; } }
svg text { fill: var(--muted); } svg .label { fill: var(--ink); } .grid { stroke: var(--line); }
.key { white-space: nowrap; margin-right: 10px; }
.key i { display: inline-block; width: 18px; height: 3px; vertical-align: middle; margin: 0 5px 0 0; }
"""


def page(found: Evaluation) -> str:
    """The whole page."""
    verdict, estimate = found.verdict, found.estimates.estimate
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in verdict.reasons)
    charts = [_learning(found), _drift(found), _calibration(found), _map(found)]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(found.policy)} in {escape(found.source)}</title><style>{STYLE}</style></head><body>
<h1>How good is {escape(found.policy)} in {escape(found.source)}?</h1>
<p class="value">{_number(estimate.value)} <small>{_range(estimate)}</small></p>
<p class="muted">Discounted value of the start states, γ = {found.gamma:g}, with a {found.level:.0%}
confidence interval. Time limits bootstrap, terminations do not.</p>
<p>Believe it: <span class="belief {verdict.belief}">{verdict.belief}</span></p>
{f"<ul>{reasons}</ul>" if reasons else ""}
{_table(found)}
<div class="charts">{"".join(chart for chart in charts if chart)}</div>
</body></html>
"""


def _table(found: Evaluation) -> str:
    estimates, verdict, settings = found.estimates, found.verdict, found.settings
    networks = estimates.networks
    rows = [
        ("Monte Carlo", _interval(found.monte_carlo) if _is_known(found.monte_carlo) else "not known: not run"),
        ("networks alone", f"{_number(np.mean(networks))}, from {_number(min(networks))} to {_number(max(networks))}"),
        (
            "networks minus Monte Carlo",
            _number(0.0 if abs(verdict.bias) < 1e-6 * abs(estimates.estimate.value) else verdict.bias),
        ),
        ("converged", f"{'yes' if verdict.converged else 'no'}; {verdict.evidence}"),
        ("variance of held-out returns explained", _percent(verdict.explained)),
        ("variance relative to Monte Carlo", _percent(estimates.variance_ratio)),
        ("effective sample size", _count(estimates.effective_samples)),
        ("bias that TD errors allow", _number(estimates.bellman_bias)),
        ("probability of logged actions", _percent(estimates.overlap)),
        ("data", f"{found.episodes:,} episodes, {found.transitions:,} transitions"),
        (
            "training",
            f"{'fitted-Q evaluation' if found.kind == 'Q' else 'TD'}, {settings.mode}, {settings.n_step}-step, "
            f"{found.history.steps[-1]:,} steps of {settings.batch}, lr {settings.lr:g} annealed, "
            f"{settings.networks} networks of width {settings.width}, correction {settings.correction}, "
            f"seed {settings.seed}",
        ),
    ]
    cells = "".join(f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows if text)
    return f"<table>{cells}</table>"


def _learning(found: Evaluation) -> str:
    steps, estimates = found.history.steps, np.array(found.history.estimates)
    target = found.monte_carlo if _is_known(found.monte_carlo) else found.estimates.estimate
    low, high = np.percentile(estimates, [2, 98])
    bounds = span([float(low), float(high), *(x for x in (target.low, target.high) if math.isfinite(x))])
    chart = Chart("training steps", "value of the start states", "Learning curves", (0, steps[-1]), bounds)
    if math.isfinite(target.low):
        chart.band(target.low, target.high, GREEN)
    for network in estimates.T:
        chart.line([(s, _clip(v, bounds)) for s, v in zip(steps, network, strict=True)], BLUE, 1.2, 0.45)
    chart.line([(s, _clip(v, bounds)) for s, v in zip(steps, estimates.mean(1), strict=True)], BLUE, 2.4)
    name = "Monte Carlo" if _is_known(found.monte_carlo) else "the estimate"
    caption = f"{_key(BLUE, 'networks and their mean')} {_key(GREEN, f'interval of {name}')}"
    return _figure("Learning curves", chart, caption)


def _drift(found: Evaluation) -> str:
    history = found.history
    shown = [value for value in (*history.agreement, *history.stale_agreement) if math.isfinite(value)]
    if not shown:
        return ""
    bounds = (min([0.0, *shown]), 1.02)
    chart = Chart("training steps", "agreement (cosine)", "Agreement of past gradients", (0, history.steps[-1]), bounds)
    chart.line(list(zip(history.drift_steps, history.stale_agreement, strict=True)), ORANGE, dashed=True)
    chart.line(list(zip(history.drift_steps, history.agreement, strict=True)), BLUE)
    caption = (
        f"Do gradients of up to {MONITORED_BATCHES * MONITORED_EVERY} steps ago still point where they should? "
        f"Targets drift by {history.drift[0]:.3g} (RMS) at the start of training and by {history.drift[-1]:.3g} at the "
        f"end. {_key(BLUE, 'corrected')} {_key(ORANGE, 'as they were')}"
    )
    return _figure("Drift and agreement", chart, caption)


def _calibration(found: Evaluation) -> str:
    predicted, realised = found.estimates.predicted, found.estimates.realised
    if len(predicted) < BINS:
        return ""
    rows = np.linspace(0, len(predicted) - 1, min(MAX_DOTS, len(predicted))).astype(int)
    bounds = span([*map(float, predicted[rows]), *map(float, realised[rows])])
    chart = Chart("predicted value", "realised return", "Calibration", bounds, bounds)
    chart.dots(list(zip(predicted[rows], realised[rows], strict=True)), GREY, opacity=0.45)
    chart.line([(bounds[0], bounds[0]), (bounds[1], bounds[1])], GREEN, 1.4, dashed=True)
    means = [(float(p.mean()), float(r.mean())) for p, r in _bins(predicted, realised)]
    chart.line(means, BLUE)
    chart.dots(means, BLUE, 3.5, 1.0)
    keys = f"{_key(BLUE, 'mean of each tenth')} {_key(GREEN, 'ideal')}"
    caption = f"Returns of states in episodes that the network has not seen. {keys}"
    return _figure("Predicted and realised returns", chart, caption)


def _bins(predicted: Array, realised: Array) -> list[tuple[Array, Array]]:
    order = np.array_split(np.argsort(predicted, kind="stable"), BINS)
    return [(predicted[rows], realised[rows]) for rows in order if len(rows)]


def _map(found: Evaluation) -> str:
    """A picture of V over two coordinates, within what was visited."""
    states = found.states
    if len(states) == 0 or found.kind != "V":
        return ""
    (x_low, y_low), (x_high, y_high) = states.min(0).tolist(), states.max(0).tolist()
    chart = Chart("first coordinate", "second coordinate", "Values", (x_low, x_high), (y_low, y_high))
    x_edges, y_edges = (np.linspace(*bounds, GRID + 1) for bounds in (chart.x_range, chart.y_range))
    centres = np.stack(np.meshgrid((x_edges[1:] + x_edges[:-1]) / 2, (y_edges[1:] + y_edges[:-1]) / 2), -1)
    values = found.values(torch.as_tensor(centres.reshape(-1, 2), dtype=torch.float32)).numpy().reshape(GRID, GRID)
    low, high = float(values.min()), float(values.max())
    for j in range(GRID):
        for i in range(GRID):
            share = (values[j, i] - low) / (high - low) if high > low else 0.5
            chart.cell((x_edges[i], x_edges[i + 1]), (y_edges[j], y_edges[j + 1]), _colour(share))
    rows = np.linspace(0, len(states) - 1, min(MAX_DOTS, len(states))).astype(int)
    chart.dots([(float(x), float(y)) for x, y in states[rows]], "#fff", 1.2, 0.55)
    bounds = f"{_number(low)} (dark) to {_number(high)} (bright)"
    caption = f"V from {bounds}, and visited states (dots). Do not trust it away from them."
    return _figure("Values of states", chart, caption)


def _colour(share: float) -> str:
    """From dark blue through green to yellow."""
    stops = [(38, 24, 84), (43, 90, 140), (36, 150, 134), (122, 200, 86), (250, 230, 60)]
    place = min(max(share, 0.0), 1.0) * (len(stops) - 1)
    i = min(int(place), len(stops) - 2)
    mixed = [round(a + (b - a) * (place - i)) for a, b in zip(stops[i], stops[i + 1], strict=True)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _figure(title: str, chart: Chart, caption: str) -> str:
    return f"<figure><h2>{title}</h2>{chart.svg()}<figcaption>{caption}</figcaption></figure>"


def _key(colour: str, text: str) -> str:
    return f'<span class="key"><i style="background:{colour}"></i>{text}</span>'


def _clip(value: float, bounds: tuple[float, float]) -> float:
    return min(max(float(value), bounds[0]), bounds[1])


def _is_known(interval: Interval) -> bool:
    return math.isfinite(interval.value)


def _interval(interval: Interval) -> str:
    return f"{_number(interval.value)}, {_range(interval)}"


def _range(interval: Interval) -> str:
    return f"{_number(interval.low)} to {_number(interval.high)}"


def _number(value: float | np.floating[Any]) -> str:
    return "" if math.isnan(value) else f"{value:.4g}".replace("-", "−")


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.0%}".replace("-", "−")


def _count(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}"
