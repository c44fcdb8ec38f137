"""Trains many runs at once: parameters, data and corrections have a leading dimension of runs."""
