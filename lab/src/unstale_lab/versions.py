"""The version of what runs compute."""

from __future__ import annotations

# Increase this when a run with the same settings computes different results, beyond rounding. Stored runs and
# checkpoints of another version are then not reused. ``test_versions.py`` pins small results for every version.
RESULTS_VERSION = 1
