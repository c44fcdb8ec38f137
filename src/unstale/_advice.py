"""What a monitor's readings mean, and the advice that follows from them.

The advice follows the project's study of long memory: the correction pays off where gradients are noisy and targets
move, because it lets momentum average over more of the past. Where batches leave little noise, there is
less to gain; where targets do not move, momentum needs no correction.
"""

from __future__ import annotations

import math

# Of every reading. μ is the momentum, μ* the same with its batches evaluated at the current parameters.
MEANINGS = {
    "staleness": "‖μ − μ*‖ / ‖μ‖: how far momentum is from its batches at the parameters of now",
    "predicted_staleness": "‖η‖ / ‖μ‖: the same by the first-order correction",
    "agreement": "cosine of μ and μ*",
    "corrected_agreement": "cosine of the corrected momentum and μ*; larger: the correction is right",
    "change": "what the correction would change of μ, relative to its norm; at most 1 (the trust bound)",
    "drift": "how far targets moved since their batches were used, root mean square",
    "relative_drift": "the same, in units of the TD error",
    "noise": "share of a batch's squared gradient that is noise",
    "cost": "time of a corrected training step, in uncorrected ones; from measure_cost()",
    "memory": "1 / (1-β): steps that momentum averages over",
    "batch": "samples per step",
    "coverage": "share of μ that comes from remembered batches",
    "gradient_match": "cosine of .grad and the gradient of the observed loss; below 1: it is not all of .grad",
}
ABOVE_ONE = {
    "staleness": "their change exceeds the norm of the momentum",
    "predicted_staleness": "the trust bound would limit the correction",
    "relative_drift": "targets moved further than predictions are from them",
    "noise": "an estimate from a few batches; take it as 1",
}

MIN_COVERAGE = 0.5
MIN_MATCH = 0.5
# Targets that move by less, in units of the TD error, are constant as far as momentum is concerned.
MIN_RELATIVE_DRIFT = 0.001
# If less of a gradient is noise, an average over any number of batches at most halves its squared length.
MIN_NOISE = 0.5
LARGE_BATCH = 128  # not studied from here on; there is less noise to average out
MIN_STALENESS = 0.1


def advise(reading: dict[str, float], optimizer: str, steps: float = math.inf, sees_target: bool = True) -> str:
    """One sentence.

    Args:
        reading: of :meth:`unstale.Monitor.read`.
        optimizer: the name of the class.
        steps: how many steps are remembered; infinity if that is all that the monitor remembers.
        sees_target: whether targets depend on nothing else than on what is followed.
    """
    measured = {key: value for key, value in reading.items() if not math.isnan(value)}
    staleness = measured.get("staleness", measured.get("predicted_staleness"))
    if staleness is None or reading["coverage"] < MIN_COVERAGE or steps < reading["memory"]:
        return (
            f"Too early to say: {reading['coverage']:.0%} of the momentum was observed; call observe() before every "
            f"step, for at least {math.ceil(reading['memory']):,} steps."
        )
    if measured.get("gradient_match", 1.0) < MIN_MATCH:
        return (
            "The gradient of the observed loss is little of what is in .grad: pass observe() the loss that you use, or "
            "expect little, since the correction leaves other losses as they are."
        )
    if measured.get("relative_drift", math.inf) < MIN_RELATIVE_DRIFT:
        return f"Targets do not move over the memory of {optimizer}: keep it, there is little to gain."
    if not sees_target:
        return (
            "Targets move with a network that is not followed, so the correction cannot be judged: pass targets live, "
            "call follow(target_network), and read again."
        )
    noise, batch = measured.get("noise", 1.0), reading["batch"]
    if noise < MIN_NOISE:
        return f"Only {noise:.0%} of a gradient is noise at present: keep {optimizer} and anneal its learning rate."
    if batch >= LARGE_BATCH:
        return f"Batches of {batch:.0f} average much noise away: keep {optimizer} and anneal its learning rate first."
    before, after = (measured.get(key, math.nan) for key in ("agreement", "corrected_agreement"))
    if staleness >= MIN_STALENESS and after <= before:
        return (
            f"Momentum is stale ({staleness:.2g}), but the correction does not follow it (agreement {after:.2f}, "
            f"without it {before:.2f}): lower the learning rate, or keep {optimizer}."
        )
    what = "stale and gradients are noisy" if staleness >= MIN_STALENESS else "fresh, but gradients are noisy"
    cost = f", at {measured['cost']:.1f} times the time of a step" if "cost" in measured else ""
    corrected = "CorrectedSGD" if optimizer == "SGD" else "CorrectedAdam"
    return (
        f"Momentum is {what} (staleness {staleness:.2g}): try unstale.{corrected}, whose longer memory averages the "
        f"noise away{cost}; in replay, try a larger batch first."
    )


def table(reading: dict[str, float]) -> str:
    """A line for every reading, with its meaning and, where it is above 1, what that means."""
    lines = []
    for name, meaning in MEANINGS.items():
        value = reading[name]
        shown = "not measured" if math.isnan(value) else f"{value:.3g}"
        lines.append(f"{name:19}  {shown:>12}  {meaning}")
        if value > 1 and name in ABOVE_ONE:
            lines.append(f"{'':35}above 1: {ABOVE_ONE[name]}")
    return "\n".join(lines)
