"""From figure names to summaries: the runs of figures, and the summaries of those that are complete in a store."""

from __future__ import annotations

from collections.abc import Sequence

from .analysis.divergence import mark_explosion
from .claims.judging import at_reduced_scale
from .errors import UserError
from .experiment import SCALES, Run, Scale, unique
from .figures import FIGURES, find
from .figures.figure import Figure
from .store import Store
from .summary import Summary


def figures_named(names: Sequence[str]) -> list[Figure]:
    """Figures by name. The name ``all`` stands for all of them."""
    chosen = [find(name) for name in dict.fromkeys(names) if name != "all"]
    return list(FIGURES.values()) if "all" in names else chosen


def runs_of(figures: Sequence[Figure], scale: Scale) -> list[Run]:
    """The runs of the figures, without duplicates: many figures share runs."""
    return unique(run for figure in figures for run in figure.runs(scale))


def largest_scale(figure: Figure, have: set[str]) -> Scale | None:
    """The largest scale at which all runs of the figure are among these ids."""
    complete = [scale for scale in SCALES if all(run.id in have for run in figure.runs(scale))]
    return complete[-1] if complete else None


def summarise(figure: Figure, scale: Scale, store: Store) -> Summary:
    """The summary of a figure all of whose runs are in the store."""
    wanted = figure.runs(scale)
    records = [mark_explosion(record) for record in store.load(wanted).values()]
    origin = store.provenance(wanted)
    if len(origin.values["data"]) > 1:
        several = "; ".join(origin.values["data"])
        raise UserError(
            f"runs of {figure.name} in {store.path} were made from different data ({several}). "
            "Use one store for each data set."
        )
    is_reduced = scale != "paper" and figure.runs(scale) != figure.runs("paper")
    versions = {name.removesuffix("_version"): ", ".join(v) for name, v in origin.values.items() if "_version" in name}
    return Summary(
        name=figure.name,
        title=figure.title,
        claims=figure.claims,
        settings=figure.settings,
        scale=scale,
        command=f"unstale-lab reproduce {figure.name} --scale {scale}"
        + (" --device cuda" if _gpus(origin.values) else ""),
        panels=figure.panels(records),
        verdicts=[at_reduced_scale(v) if is_reduced else v for v in figure.judge(records)],
        findings=figure.findings(records),
        tables=figure.tables(records),
        measured=figure.measured(records),
        runs=len(records),
        diverged=sum(record.diverged_at is not None for record in records),
        seconds=origin.seconds,
        cut=_cut(figure, scale),
        machines=_machines(origin.values),
        versions=versions,
        commit=", ".join(origin.values["commit"]),
        date=max(origin.values["finished"])[:10],
    )


def _cut(figure: Figure, scale: Scale) -> str:
    if scale == "paper":
        return ""
    full = "the paper's" if figure.claims else "the full one"
    smaller = f"Run at the scale “{scale}”, which is smaller than {full}."
    cut = {"quick": figure.cut, "large": figure.large_cut}.get(scale, "")
    return f"{smaller} {cut}" if cut else smaller


def fresh_summaries(store: Store, before: Sequence[Summary]) -> list[Summary]:
    """Summaries of all figures that are complete in the store, and those of ``before`` that have a larger scale or
    whose figure is not complete."""
    kept = {summary.name: summary for summary in before}
    store.check()
    have = store.ids()
    for figure in FIGURES.values():
        scale = largest_scale(figure, have)
        old = kept.get(figure.name)
        if scale is not None and (old is None or SCALES.index(scale) >= SCALES.index(old.scale)):
            kept[figure.name] = summarise(figure, scale, store)
    return list(kept.values())


def _machines(origin: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    return (*_gpus(origin), *origin["machine"])


def _gpus(origin: dict[str, tuple[str, ...]]) -> list[str]:
    return [device for device in origin["device"] if device != "cpu"]
