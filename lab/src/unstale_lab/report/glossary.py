"""The terms of the report, explained."""

from __future__ import annotations

TITLE = "Correcting Momentum in Temporal Difference Learning: a reproduction"
GLOSSARY: dict[str, str] = {
    "μ, μ*, μ̂, μ̂ diag": "standard momentum; the oracle, which recomputes all remembered gradients at the current "
    "parameters; the paper's full correction; its diagonal approximation. “μ̂ bounded” is the full correction with "
    "this library's bound on its size.",
    "Adam, …/√": "Adam divides momentum by the root of the mean squared gradient; methods with “/√” divide their "
    "momentum by the same denominator. “literal” is the paper's recursion, which uses α μ̂ as the last step although "
    "Adam divided it; the other variants use the actual step. “window” is the full correction for large networks: it "
    "keeps the gradients of the last 2/(1-β) batches instead of a matrix, with this library's bound.",
    "True values": "of MsPacman: the mean return of many rollouts from the same state; the variance of that mean is "
    "subtracted from the error. A single sampled return, which the paper uses, adds noise.",
    "Pairs": "for the same seed, all methods see the same data and start from the same weights, so that methods are "
    "compared run by run.",
    "Difference and effect": "the relative difference of the errors of a and b in the typical pair: −0.25 means that "
    "the error of a is 25 % lower. If a claim is about something else than two errors, its text says what the effect "
    "is.",
    "CI": "95 % confidence interval, by a bootstrap that resamples seeds with all their runs; so are the bands in the "
    "figures.",
    "IQM": "interquartile mean, the mean of the middle half of the runs: it is robust to a few outliers.",
    "p, Welch": "the paper's test, which pools seeds and settings and ignores pairs; shown for comparison.",
    "p, paired, Holm": "a t-test over seeds on the interquartile mean of the log ratios of each seed's pairs, with "
    "Holm's correction for the number of comparisons of the claim. Seeds are the independent unit: runs of one seed in "
    "several settings share data and initial weights, which Welch's test as used in the paper ignores. If a claim has "
    "several comparisons, the smallest and the largest p are shown.",
    "P(a better)": "probability of improvement: the share of pairs in which a has the lower final error.",
    "Diverged": "a run whose error exceeded all bounds. It is never dropped: ranks and interquartile means treat it as "
    "worse than any other run. Statistics that need finite numbers (differences, tests, means) replace it by one "
    "number per verdict: the largest error before the first step, or the largest final error if that is larger. So "
    "diverging is never better than not training. A cross marks where a line ends because too many runs diverged. Runs "
    "and diverged runs of a claim are those that its verdict compares; its figure may show more.",
    "p": "of the comparison whose effect is shown, and of the test that decided. A claim of several parts holds if all "
    "parts hold, and does not hold if one does not. If a claim has several rows, the first one counts.",
    "Correction strength": "the authors' code leaves out the factor 2 of the loss in the Taylor term, so that its full "
    "correction has half the strength of μ̂ here. Whether that explains its fewer divergences has not been measured.",
    "Verdicts": "“holds” and “does not hold” if the data decide; “inconclusive” if they do not; “not run” if nothing "
    "was measured.",
}
