"""Sentences about a study of tuned optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...analysis.formatting import format_number, format_p_value, format_ratio
from ...analysis.statistics import holm
from ...claims.contrast import SIGNIFICANCE_LEVEL
from ...claims.judging import MIN_SEEDS
from .contest import Entry, Setup, SetupResult, Study, holm_p
from .contest_panels import drawn
from .tuned import Cell, Ratio, mean_interval

LOWER = "the error is significantly lower"
HIGHER = "the error is significantly higher"
UNDECIDED = "the difference is not significant"
PValues = Mapping[tuple[str, str], float]  # by setup and name of the contestant


def findings(study: Study, found: Sequence[SetupResult]) -> list[str]:
    """Return the answer, then a sentence per setup, then the comparison at equal α and β, and notes."""
    judged = [result for result in found if study.headline in result.entries]
    ps = holm_p(found)
    sentences = [
        _answer(judged, study.headline, ps) if judged else "",
        *(_setup_sentence(result, study.headline, ps) for result in judged),
        _headline_cells_sentence(found, study.headline),
        _cells_sentence(found),
        _divergence_sentence(found, study.headline),
        _range_sentence(found),
    ]
    return [sentence for sentence in sentences if sentence]


def measured(study: Study, found: Sequence[SetupResult]) -> list[str]:
    """Return a sentence per setup without tests: the final errors of the headline and of the drawn references."""
    return [_measured_sentence(result, study.headline) for result in found if study.headline in result.entries]


def _measured_sentence(result: SetupResult, headline: str) -> str:
    ours, best = result.entries[headline], result.reference
    others = [entry for entry in drawn(result) if entry.contestant.role == "reference"]
    errors = ", ".join(f"“{entry.contestant.label}” at {format_number(entry.mean_error)}" for entry in others)
    wins = int((ours.tuned.final < best.tuned.final).sum())
    return (
        f"{describe_setup(result)}: “{ours.contestant.label}” ended at an error of {format_number(ours.mean_error)}, "
        f"{errors}; lower than “{best.contestant.label}” in {wins} of {len(ours.tuned.final)} seeds."
    )


def _answer(judged: Sequence[SetupResult], headline: str, ps: PValues) -> str:
    conclusions = [_conclusion(result, headline, ps) for result in judged]
    lower, higher, undecided = (conclusions.count(conclusion) for conclusion in (LOWER, HIGHER, UNDECIDED))
    ratios = [result.ratio(result.entries[headline]).value for result in judged]
    return (
        f"“{judged[0].entries[headline].contestant.label}” against the best tuned reference with the same samples: the "
        f"ratio of final errors is {format_number(min(ratios))} to {format_number(max(ratios))} on {len(judged)} "
        f"problems. The error is significantly lower on {lower}, significantly higher on {higher}, and undecided on "
        f"{undecided} (paired t-tests over seeds, Holm's correction)."
    )


def _conclusion(result: SetupResult, name: str, ps: PValues) -> str:
    compared = result.ratio(result.entries[name])
    if ps[result.setup.label, name] >= SIGNIFICANCE_LEVEL or compared.seeds < MIN_SEEDS:
        return UNDECIDED
    return LOWER if compared.value < 1 else HIGHER


def _setup_sentence(result: SetupResult, headline: str, ps: PValues) -> str:
    ours, reference = result.entries[headline], result.reference
    compared = result.ratio(ours)
    few = f", too few to decide (at least {MIN_SEEDS})" if compared.seeds < MIN_SEEDS else ""
    texts = [
        f"{describe_setup(result)}: {_describe_entry(ours)} has a final MSE of {_describe_error(ours)}; the best "
        f"reference, {_describe_entry(reference)}, has {_describe_error(reference)}.",
        f"Ratio {_describe_ratio(compared)}, paired {format_p_value(compared.p)}, after Holm "
        f"{format_p_value(ps[result.setup.label, headline])}, {compared.seeds} seeds{few}: "
        f"{_conclusion(result, headline, ps)}.",
        _describe_kinds(result, ours),
        _describe_best_peer(result, ours),
    ]
    return " ".join(filter(None, texts))


def _describe_kinds(result: SetupResult, ours: Entry) -> str:
    """Compare with the best reference of each kind."""
    ratios = [
        f"{kind} {_describe_ratio(compared, f', {format_p_value(compared.p)}')}"
        for kind, best in result.best_by_kind().items()
        for compared in [result.ratio_to(best, ours)]
    ]
    return f"Ratio to the best reference of each kind: {', '.join(ratios)}." if ratios else ""


def _describe_best_peer(result: SetupResult, ours: Entry) -> str:
    peers = [entry for entry in result.entries.values() if entry.contestant.role == "peer"]
    if not peers:
        return ""
    best = min(peers, key=lambda entry: entry.mean_error)
    compared, samples = result.ratio_to(best, ours), sample_count(result.setup, best)
    return (
        f"The best other peer, {_describe_entry(best)}, has {_describe_error(best)} with {samples:,} samples; ratio to "
        f"it {_describe_ratio(compared)}, paired {format_p_value(compared.p)}."
    )


def _headline_cells_sentence(found: Sequence[SetupResult], headline: str) -> str:
    """List the learning rates at which the contestant is worse than the uncorrected optimizer."""
    cells = [(result.setup, *each) for result in found for each in result.cells if each[0].name == headline]
    if not cells:
        return ""
    worse = [
        f"{setup.label}, α {format_number(cell.alpha)}: {describe_difference(cell)}, {format_p_value(cell.ratio.p)}"
        for setup, _, cell in cells
        if cell.is_worse
    ]
    listed = f" ({'; '.join(worse)})" if worse else ""
    _, contestant, _ = cells[0]
    uncorrected = "uncorrected Adam" + (" (β 0.9)" if contestant.beta_grows else "")
    return (
        f"“{contestant.label}” against {uncorrected} at equal α, where the latter never diverges ({len(cells)} cells): "
        f"the error is significantly lower in {sum(cell.is_better for _, _, cell in cells)} and significantly higher "
        f"in {len(worse)}{listed}."
    )


def _cells_sentence(found: Sequence[SetupResult]) -> str:
    cells = [(contestant, cell) for result in found for contestant, cell in result.cells]
    if not cells:
        return ""
    ps = holm([cell.ratio.p for _, cell in cells])
    worse = sum(cell.is_worse for _, cell in cells)
    after_holm = sum(p < SIGNIFICANCE_LEVEL and cell.is_worse for p, (_, cell) in zip(ps, cells, strict=True))
    return (
        f"All corrected optimizers at equal α and β ({len(cells)} cells): the error is significantly lower in "
        f"{sum(cell.is_better for _, cell in cells)} and significantly higher in {worse} (p < {SIGNIFICANCE_LEVEL} "
        f"each; {after_holm} after Holm's correction). A table lists the latter."
    )


def _divergence_sentence(found: Sequence[SetupResult], headline: str) -> str:
    entries = [entry for result in found for entry in result.entries.values()]
    own = [entry for entry in entries if entry.contestant.name == headline]
    roles = {"ours": "all corrected optimizers", "reference": "references", "peer": "other peers"}
    groups = {f"“{own[0].contestant.label}”": own} if own else {}
    groups |= {name: [entry for entry in entries if entry.contestant.role == role] for role, name in roles.items()}
    counts = [f"{name} {_count_diverged(group)}" for name, group in groups.items() if group]
    return f"Diverged runs, over all settings that were tried: {', '.join(counts)}."


def _count_diverged(entries: Sequence[Entry]) -> str:
    return f"{sum(e.tuned.grid_diverged for e in entries):,} of {sum(e.tuned.grid_runs for e in entries):,}"


def _range_sentence(found: Sequence[SetupResult]) -> str:
    parts = []
    for result in found:
        labels = [f"“{e.contestant.label}”" for e in result.entries.values() if e.tuned.is_at_range_end]
        if labels:
            parts.append(f"{result.setup.label}: {', '.join(labels)}")
    if not parts:
        return ""
    return f"The selected α is at an end of the range tried, and a better one may lie outside. {'; '.join(parts)}."


def describe_setup(result: SetupResult) -> str:
    """Describe the problem, and how many samples the best reference sees."""
    setup = result.setup
    batch = "one transition" if setup.is_stream else f"{setup.batch} transitions"
    return f"{setup.label} ({batch} per step, {sample_count(setup, result.reference):,} samples)"


def _describe_entry(entry: Entry) -> str:
    tuned = entry.tuned
    beta = "β grows" if entry.contestant.beta_grows else f"β {format_number(tuned.beta)}"
    return f"“{entry.contestant.label}” (α {format_number(tuned.alpha)}, {beta})"


def _describe_error(entry: Entry) -> str:
    low, high = mean_interval(entry.tuned.final)
    diverged = f", {entry.tuned.diverged} of {len(entry.tuned.final)} diverged" if entry.tuned.diverged else ""
    interval = f"95 % CI {format_number(low)} to {format_number(high)}"
    return f"{format_number(entry.mean_error)} ({interval}, median {format_number(entry.median_error)}{diverged})"


def _describe_ratio(compared: Ratio, more: str = "") -> str:
    low, high = compared.interval
    return f"{format_number(compared.value)} (95 % CI {format_number(low)} to {format_number(high)}{more})"


def describe_difference(cell: Cell) -> str:
    """Describe the ratio to the error of the uncorrected optimizer, with its interval."""
    return format_ratio(cell.ratio.value, cell.ratio.interval)


def sample_count(setup: Setup, entry: Entry) -> int:
    """Return how many samples a run of the contestant sees."""
    return int(entry.tuned.at[-1]) * setup.batch * entry.contestant.batch_factor
