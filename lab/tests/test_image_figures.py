"""Figures on images and games, end to end on tiny data."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from atari_samples import AtRandom
from scipy.io import savemat

from unstale_lab import problems
from unstale_lab.atari import dataset
from unstale_lab.engine import training
from unstale_lab.engine.sweep import make_engine, missing, run_batches
from unstale_lab.problems import ms_pacman, svhn
from unstale_lab.reproduce import figures_named, runs_of, summarise
from unstale_lab.store import Store

FIGURES = figures_named(
    ["fig2", "fig9", "fig9_tuned", "fig9_equal_settings", "fig17", "claim22", "claim22_time", "ms_pacman_memory"]
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Create noise images in SVHN format, and a MsPacman recording with random actions."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    (folder / "svhn").mkdir()
    for split, count in {"train": 40, "test": 20}.items():
        label = (1 + np.arange(count) % 10).astype(np.uint8)[:, None]
        image = rng.integers(256, size=(32, 32, 3, count), dtype=np.uint8)
        savemat(folder / "svhn" / f"{split}_32x32.mat", {"X": image, "y": label})
    settings = {"transitions": 100, "test": 100, "states": 6, "count": 2, "limit": 20, "jobs": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "PARALLEL_GAMES", 1)
        dataset.make_dataset("ms_pacman", AtRandom(), folder / "ms_pacman", **settings)
    return folder


@pytest.fixture(scope="module")
def store(data, tmp_path_factory):
    """Make all runs of the figures at the scale "smoke"."""
    caches = (problems.load, ms_pacman._recordings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "UNSTALE_DATA", str(data))
        # Evaluation on all images dominates the time.
        patch.setattr(training, "EVALUATIONS_PER_RUN", 1)
        patch.setattr(ms_pacman, "TRAINING_SUBSET", 20)
        for cached in caches:
            cached.cache_clear()
        torch.set_num_threads(1)
        kept = Store(tmp_path_factory.mktemp("store"))
        engine = make_engine("local", "cpu", 1, kept.path)
        run_batches(missing(runs_of(FIGURES, "smoke"), kept, "cpu"), kept, engine, lambda *args: None)
    for cached in caches:
        cached.cache_clear()
    torch.set_flush_denormal(False)
    return kept


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_figure_from_images(figure, store):
    summary = summarise(figure, "smoke", store)
    answers = {verdict.answer for verdict in summary.verdicts}
    assert answers == ({"undecided"} if figure.claims else set()) and summary.cut
    assert bool(summary.findings) == (not figure.claims)
    assert all(np.isfinite(series.y).all() for panel in summary.panels for series in panel.series)


@pytest.mark.parametrize("kind, folder", [(svhn.SVHN, "svhn"), (ms_pacman.MsPacman, "ms_pacman")])
def test_stream_depends_only_on_its_arguments(kind, folder, data):
    problem = kind(data / folder)

    def stream(seed=0):
        return problem.stream(seed, batch=3, n_step=2)

    whole, parts = stream()(20), stream()
    first, second = parts(7), parts(13)
    for field in vars(whole):
        assert torch.equal(getattr(whole, field), torch.cat([getattr(first, field), getattr(second, field)])), field
    assert whole.state.shape == whole.next_state.shape == (20, 3, 2) and whole.state.dtype == torch.int64
    assert not torch.equal(whole.state, stream(seed=1)(20).state)


def test_transitions_limit_keeps_the_first_ones(data):
    few = ms_pacman.MsPacman(data / "ms_pacman", transitions=10).stream(0, batch=4, n_step=1)(50)
    assert few.state[..., 0].unique().tolist() == list(range(10))
    assert (few.next_state[..., 0] - few.state[..., 0] == 1).all() and (few.discount == 0.99).all()
