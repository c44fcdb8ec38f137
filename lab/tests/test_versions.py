"""The version of results changes when runs compute something else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from unstale_lab.engine.training import Training
from unstale_lab.experiment import Run
from unstale_lab.methods import results_version
from unstale_lab.versions import RESULTS_VERSION

COMMON = {"steps": 12, "width": 4, "layers": 3, "batch": 4, "alpha": 0.05, "precision": "float64", "seed": 3}
RUNS = {
    "momentum": Run(method="momentum", **COMMON),
    "oracle": Run(method="oracle", horizon=5, **COMMON),
    "full": Run(method="full", **COMMON),
    "diagonal": Run(method="diagonal", n_step=3, **COMMON),
    "adam_window": Run(method="adam_window", problem="mountain_car_online", **COMMON),
    "momentum, cartpole": Run(method="momentum", problem="cartpole", activation="tanh", **COMMON),
    "momentum, regression": Run(method="momentum", problem="regression", damped=False, **COMMON),
    "radial basis functions": Run(method="full", rbf_grid=3, **COMMON | {"layers": 1}),
}
# For every version, the last evaluation error and the last training error of each run. If the test fails and runs are
# meant to compute something else now: increase RESULTS_VERSION, let ``methods.results_version`` return it for these
# runs, and add an entry with the new numbers here.
PINNED: dict[int, dict[str, tuple[float, float]]] = {
    1: {
        "momentum": (1.360774272019124, 1.376106241260844),
        "oracle": (1.386002735537341, 1.4015743875543503),
        "full": (1.3615255569180533, 1.376864701426916),
        "diagonal": (1.2158630984185788, 1.2297658036716272),
        "adam_window": (0.6022465498108783, 0.9186985382241902),
        "momentum, cartpole": (74.15992374197181, 74.33493958401928),
        "momentum, regression": (0.7717953386765777, 0.7728526850331777),
        "radial basis functions": (2.0362374126169493, 2.056096030553762),
    },
    2: {
        "momentum": (1.360774272019124, 1.376106241260844),
        "oracle": (1.3615569273528123, 1.3768958625592524),
        "full": (1.3615255569180533, 1.376864701426916),
        "diagonal": (1.2158630984185788, 1.2297658036716272),
        "adam_window": (0.6022465498108783, 0.9186985382241902),
        "momentum, cartpole": (74.15992374197181, 74.33493958401928),
        "momentum, regression": (0.7717953386765777, 0.7728526850331777),
        "radial basis functions": (2.0362374126169493, 2.056096030553762),
    },
}
PINNED[3] = PINNED[2]  # only the times of phases have changed


@pytest.mark.parametrize("name", RUNS)
def test_results_are_those_of_their_version(name):
    assert RESULTS_VERSION in PINNED, f"add the results of version {RESULTS_VERSION} to PINNED"
    (record,) = Training([RUNS[name]], "cpu").run()
    found = np.array([record.curves["evaluation"][-1], record.curves["training"][-1]])
    pinned = np.array(PINNED[RESULTS_VERSION][name])
    message = (
        f"the run {name!r} computes {tuple(found.tolist())}, and version {RESULTS_VERSION} of results has "
        f"{tuple(pinned.tolist())}. If this is intended, increase RESULTS_VERSION in versions.py, return it for such "
        "runs from methods.results_version, and add the new numbers to PINNED: stored results of the old version are "
        "then not mixed with new ones."
    )
    assert np.allclose(found, pinned, rtol=1e-6, atol=0), message


def test_versions_are_pinned_without_gaps():
    assert sorted(PINNED) == list(range(1, RESULTS_VERSION + 1))
    assert all(numbers.keys() == RUNS.keys() for numbers in PINNED.values())


@pytest.mark.parametrize("name", RUNS)
def test_version_of_a_run_is_that_of_its_last_change(name):
    changes = [version for version in PINNED if version == 1 or PINNED[version][name] != PINNED[version - 1][name]]
    assert results_version(RUNS[name]) == max(changes)


def test_times_of_phases_are_of_version_3():
    assert results_version(Run(measure=("phases",))) == 3


def test_oracles_of_the_authors_have_not_changed():
    (record,) = Training([replace(RUNS["oracle"], convention="code")], "cpu").run()
    assert record.curves["evaluation"][-1] == pytest.approx(PINNED[1]["oracle"][0], rel=1e-6)
    assert results_version(record.run) == 1
