"""What a reader has to know: the terms of the report in plain words."""

from __future__ import annotations

TITLE = "Correcting Momentum in Temporal Difference Learning, measured again"
EXPLANATIONS: dict[str, str] = {
    "μ, μ*, μ̂, μ̂ diag": "momentum as everyone has it; the oracle, which computes all remembered gradients anew; the "
    "paper's full correction; its diagonal approximation. “unstale (default)” is this library as it comes, with its "
    "bound on the correction.",
    "Adam, …/√": "Adam divides momentum by the root of the mean square of the gradients; the others divide theirs by "
    "the same root. “literal” is the paper's recursion, which takes α μ̂ for the last step although that was divided; "
    "without it, the correction sees the step that was made. “By window” is the full correction of large networks, "
    "made of the gradients of the last 2/(1-β) batches instead of a matrix, with this library's bound.",
    "The truth": "of MsPacman's values: the mean of many games continued from the same state, less what that mean is "
    "off by. A single sampled return, the paper's yardstick, differs from it by chance.",
    "Pairs": "for the same seed, every method sees the same data and starts from the same weights, so that methods "
    "are compared run for run.",
    "Difference and effect": "how much larger the error of a is than its pair's, in the typical pair: −0.25 is an "
    "error lower by a quarter. Where a claim is about other things than two errors, its note says what the effect is.",
    "Interval": "the range of 95 % of the values that come out when seeds are drawn again, each with all its runs "
    "(bootstrap); so are the bands in the figures.",
    "IQM": "interquartile mean, the mean of the middle half of the runs: a few lucky or broken runs do not move it.",
    "p, Welch": "the paper's test, in which seeds and settings are pooled and pairs are ignored; shown for comparison.",
    "p, paired, Holm": "a t-test over seeds on the interquartile mean of the log ratios of each seed's pairs, "
    "corrected by Holm's method for the number of comparisons beside it. Seeds are what is drawn independently: runs "
    "of one seed in several settings share data and initial weights, which Welch's test as the paper used it "
    "overlooks. Where a claim has several comparisons, the smallest and the largest p are shown.",
    "a better": "probability of improvement: the share of pairs in which a ends with the lower error.",
    "Diverged": "a run whose error left all bounds. It is never dropped: ranks and interquartile means take it as "
    "worse than any other. What needs finite numbers (differences, tests, plain means) takes one number in its place, "
    "the same in a whole verdict: the largest error before the first step, or the largest in the end if that is "
    "larger. So diverging never counts as better than not having trained. A cross marks where so many runs have "
    "diverged that a line ends. Runs and divergences of a claim are those that its verdict compares; its figure may "
    "have more.",
    "p": "of the comparison whose effect is shown, that of the test that decided. A claim of several parts holds if "
    "all do, and does not if one does not; its first row is the one that is counted.",
    "Strength": "the authors' code leaves the factor 2 of the loss out of the Taylor term, so that its full correction "
    "has half the strength of μ̂ here. How far that explains its fewer divergences has not been measured.",
    "Verdicts": "“holds” and “does not hold” are said where the data decide; “inconclusive” where they do not; “not "
    "run” where nothing was measured.",
}
