"""A study of our own: does a long memory with correction beat tuned Adam with the same samples?

It judges no claim of the paper. Everything that is compared is data: ``SETUPS``, ``CONTESTANTS``, ``QUICK_SETTINGS``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..analysis.panels import Panel, Table
from ..experiment import Run, Scale, unique
from ..records import Record
from .figure import Figure
from .shared import contest_findings, contest_panels, contest_tables
from .shared.contest import Contestant, Setup, Study, results

RATES = [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]
SEEDS = list(range(15))  # ``tuned.TUNING_SEEDS`` select, the other ten are reported
WIDTH = 16
SHORT_BETAS, LONG_BETAS = (0.0, 0.9), (0.99, 0.997, 0.999)
ANNEALED = {"lr_schedule": "linear"}
SLOTS = (256, 1024, 4096)

# A stream and batches come first: they also have panels with the error over the learning rate.
SETUPS = (
    Setup("Mountain Car, stream", "mountain_car_online", batch=1, steps=20_000),
    Setup("Mountain Car, batches", "mountain_car_scaled"),
    Setup("Cartpole, 1-step", "cartpole"),
    Setup("Cartpole, 3-step", "cartpole", n_step=3),
    Setup("Acrobot", "acrobot"),
)

# ---------------------------------------------------------------------------------------------------------------------
# The contestants. Add, remove or change lines here and nowhere else; tables and panels have the same order. β of
# ``adam_default`` and ``adam_reservoir`` grows with training. They keep ``Run.beta`` at its default, 0.9, which is also
# the β of the uncorrected Adam that they are compared with at equal α.
CONTESTANTS = (
    # References: Adam with the same samples.
    Contestant("adam", "Adam", "reference", betas=(0.0, 0.9, 0.99), kind="constant learning rate", is_drawn=True),
    Contestant(
        "adam_annealed",
        "Adam, annealed",
        "reference",
        betas=SHORT_BETAS,
        settings=ANNEALED,
        kind="annealed",
        is_drawn=True,
    ),
    Contestant(
        "adam_averaged_99",
        "Adam, averaged weights 0.99",
        "reference",
        settings={"weight_average": 0.99},
        kind="averaged weights",
    ),
    Contestant(
        "adam_averaged_999",
        "Adam, averaged weights 0.999",
        "reference",
        settings={"weight_average": 0.999},
        kind="averaged weights",
    ),
    # Other peers: eligibility traces, more samples per step, a long memory without correction.
    Contestant("traces_5", "Adam, TD(0.5)", "peer", betas=SHORT_BETAS, settings={"trace_decay": 0.5}, only="stream"),
    Contestant("traces_9", "Adam, TD(0.9)", "peer", betas=SHORT_BETAS, settings={"trace_decay": 0.9}, only="stream"),
    Contestant(
        "traces_5_annealed",
        "Adam, TD(0.5), annealed",
        "peer",
        betas=SHORT_BETAS,
        settings={"trace_decay": 0.5, **ANNEALED},
        only="stream",
        is_drawn=True,
    ),
    Contestant(
        "traces_9_annealed",
        "Adam, TD(0.9), annealed",
        "peer",
        betas=SHORT_BETAS,
        settings={"trace_decay": 0.9, **ANNEALED},
        only="stream",
    ),
    Contestant(
        "batch_4x_annealed",
        "Adam, 4x the batch, annealed",
        "peer",
        betas=SHORT_BETAS,
        settings=ANNEALED,
        batch_factor=4,
        only="batch",
    ),
    Contestant(
        "batch_16x_annealed",
        "Adam, 16x the batch, annealed",
        "peer",
        betas=SHORT_BETAS,
        settings=ANNEALED,
        batch_factor=16,
        only="batch",
    ),
    Contestant("adam_long", "Adam, long memory", "peer", betas=LONG_BETAS),
    # Corrected.
    Contestant("default", "CorrectedAdam (default)", "ours", method="adam_default", is_drawn=True),
    Contestant(
        "default_annealed",
        "CorrectedAdam (default), annealed",
        "ours",
        method="adam_default",
        settings=ANNEALED,
        is_drawn=True,
    ),
    *(
        Contestant(
            f"reservoir_{slots}",
            f"CorrectedAdam, reservoir of {slots:,}",
            "ours",
            method="adam_reservoir",
            settings={"slots": slots},
        )
        for slots in SLOTS
    ),
    Contestant("dense", "CorrectedAdam, dense, constant β", "ours", method="adam_dense", betas=LONG_BETAS),
    Contestant("diagonal", "CorrectedAdam, diagonal", "ours", method="adam_diagonal", betas=(0.9, 0.99)),
    Contestant("window", "CorrectedAdam, window, β 0.9", "ours", method="adam_window"),
)
# ---------------------------------------------------------------------------------------------------------------------
STUDY = Study(SETUPS, CONTESTANTS, headline="default")

# At the scale "quick": α and β by problem and contestant, the best of a search on three tuning seeds at that scale. (β
# of the default grows.)
QUICK_SETTINGS: dict[str, dict[str, tuple[float, float]]] = {
    "mountain_car_online": {"adam": (3e-3, 0.99), "adam_annealed": (1e-2, 0.9), "default": (1e-2, 0.9)},
    "mountain_car_scaled": {"adam": (1e-3, 0.0), "adam_annealed": (1e-2, 0.0), "default": (3e-3, 0.9)},
}
QUICK_SEEDS = [5, 6, 7]
QUICK_STEPS = {"mountain_car_online": 4000, "mountain_car_scaled": 2000}
SMOKE_SETUPS = SETUPS[:2]
SMOKE_CHOICES = {"alpha": [1e-3, 1e-2], "seed": [0, 5, 6], "steps": 50, "width": 4}


def runs(scale: Scale) -> list[Run]:
    """Return the runs; contestants share some of them."""
    if scale == "quick":
        return unique(run for setup in SETUPS for run in _quick_runs(setup))
    setups = SMOKE_SETUPS if scale == "smoke" else SETUPS
    return unique(
        run
        for setup in setups
        for contestant in CONTESTANTS
        if contestant.takes_part_in(setup)
        for run in _search_runs(contestant, setup, scale)
    )


def _search_runs(contestant: Contestant, setup: Setup, scale: Scale) -> list[Run]:
    if scale == "smoke":
        return contestant.runs(setup, beta=contestant.betas[-1], **SMOKE_CHOICES)
    return contestant.runs(setup, alpha=RATES, beta=list(contestant.betas), seed=SEEDS, steps=setup.steps, width=WIDTH)


def _quick_runs(setup: Setup) -> list[Run]:
    settings = QUICK_SETTINGS.get(setup.problem, {})
    return [
        run
        for contestant in CONTESTANTS
        if contestant.name in settings
        for run in _runs_at(contestant, setup, *settings[contestant.name])
    ]


def _runs_at(contestant: Contestant, setup: Setup, alpha: float, beta: float) -> list[Run]:
    return contestant.runs(
        setup, alpha=alpha, beta=beta, seed=QUICK_SEEDS, steps=QUICK_STEPS[setup.problem], width=WIDTH
    )


def panels(records: Sequence[Record]) -> list[Panel]:
    found = results(STUDY, records)
    return [*contest_panels.learning_panels(found), *contest_panels.rate_panels(found[:2])]


def tables(records: Sequence[Record]) -> list[Table]:
    return contest_tables.tables(STUDY, results(STUDY, records))


def findings(records: Sequence[Record]) -> list[str]:
    return contest_findings.findings(STUDY, results(STUDY, records))


def measured(records: Sequence[Record]) -> list[str]:
    return contest_findings.measured(STUDY, results(STUDY, records))


FIGURE = Figure(
    name="long_memory",
    title="Long memory with correction against tuned Adam",
    claims=(),
    settings="Policy evaluation; MLP of 4 layers, width 16; batches of 16 and 5,000 steps, or a stream of 20,000 "
    "single transitions. Every optimizer has the best α of six from 0.0001 to 0.03, and the best β where several are "
    "tried, selected on seeds 0 to 4 by the mean squared error against true values over the last tenth of training. "
    "Seeds 5 to 14 are reported.",
    runs=runs,
    panels=panels,
    findings=findings,
    tables=tables,
    measured=measured,
    cut="Two problems, three optimizers at a learning rate that was selected beforehand, 3 seeds, 2,000 steps (stream: "
    "4,000).",
)
