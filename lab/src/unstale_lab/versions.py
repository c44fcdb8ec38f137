"""The version of what runs compute."""

from __future__ import annotations

# Increase this when a run with the same settings computes different results, beyond rounding, and let
# ``methods.results_version`` return it for such runs. Their stored results of earlier versions are then not reused, nor
# any checkpoints. ``test_versions.py`` pins small results for every version.
#
# 2: the weights of an oracle with a horizon have the sum of momentum's weights.
# 3: the times of phases are those of a run that is trained alone.
RESULTS_VERSION = 3
