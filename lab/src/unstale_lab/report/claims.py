"""The paper's 25 claims, and what was found of each: the table that every report is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..figures.base import Verdict
from ..summary import Summary, in_order


@dataclass(frozen=True)
class Claim:
    number: int
    figure: str  # of the paper, in print
    problem: str
    statement: str


CLAIMS = (
    Claim(1, "1", "Regression", "μ* differs from μ by little; μ̂ does not differ from μ"),
    Claim(2, "2", "SVHN", "Only the training loss of μ* and μ differ, μ* being the worse; test losses do not"),
    Claim(3, "3", "Mountain Car, replay", "After 5,000 steps all four methods differ from one another"),
    Claim(
        4,
        "4",
        "Mountain Car, online",
        "μ* and μ̂ beat μ and μ̂ diag; μ differs from μ̂ diag; μ* and μ̂ do not differ",
    ),
    Claim(5, "5", "Mountain Car, drift", "Values drift very little with RBF features, and much with MLPs"),
    Claim(6, "12", "Mountain Car, RBFs", "With sparse RBFs all methods are the same, the oracle included"),
    Claim(7, "6", "Mountain Car, RBFs", "The wider the kernels, the larger the gap between μ̂ and μ"),
    Claim(8, "7", "Mountain Car, RBFs", "The error rises with the mean drift"),
    Claim(
        9,
        "8",
        "Mountain Car, agreement",
        "Corrected gradients agree with the true ones in training, and less so as the model converges",
    ),
    Claim(
        10,
        "13",
        "Mountain Car, layers",
        "Correcting the bottom layers matters far more than the top ones; all layers are best; both ends are no "
        "better than the bottom alone",
    ),
    Claim(11, "9", "MsPacman", "Diagonal correction over Adam's denominator beats Adam, without a target network"),
    Claim(
        12,
        "16, 17",
        "Mountain Car and MsPacman, frozen targets",
        "Frozen targets learn much more slowly; in MsPacman they are more precise in the very end",
    ),
    Claim(
        13,
        "–",
        "Atari, control",
        "A corrected critic gains little or no return; drift is two to three times smaller, agreement about 0.1",
    ),
    Claim(
        14,
        "10",
        "Mountain Car, batch size",
        "Batches of one hurt μ̂ diag, which does not alone explain its poor online result",
    ),
    Claim(15, "11", "Mountain Car, momentum", "The methods depend on β in different ways"),
    Claim(16, "14", "Acrobot, 5-step", "Much as on Mountain Car; several steps are needed to converge"),
    Claim(17, "15", "Cartpole, 3-step", "Much as on Mountain Car; several steps are needed to converge"),
    Claim(18, "18", "Mountain Car, 50,000 steps", "All methods converge to the value function"),
    Claim(19, "19", "Mountain Car, learning rate", "The methods depend on α in different ways"),
    Claim(20, "–", "Small MLP", "Keeping the second derivatives in Z has no visible effect"),
    Claim(
        21,
        "–",
        "Small MLP, activations",
        "tanh, ELU and SELU have steadier Taylor expansions; Leaky ReLU learns best",
    ),
    Claim(
        22,
        "–",
        "MsPacman, small model",
        "Full correction beats Adam; most of its extra time goes into backward passes, not into Z",
    ),
    Claim(
        23,
        "–",
        "MsPacman, control",
        "Parallel environments, without replay or target network, give decent agents with the small model",
    ),
    Claim(24, "–", "Linear value function", "Z does not depend on θ, so μ̂ = μ*"),
    Claim(25, "–", "Cost", "Two more backward passes; 2n + n² numbers for the full correction, 3n for the diagonal"),
)


def claim_records(summaries: Iterable[Summary]) -> list[dict[str, Any]]:
    """One record for each claim; where it was read in several ways, ``readings`` has them all, the paper's first."""
    found: dict[int, list[dict[str, Any]]] = {}
    for summary in in_order(summaries):
        for verdict in summary.verdicts:
            found.setdefault(verdict.claim, []).append(_reading(verdict, summary))
    return [_record(claim, found.get(claim.number, [])) for claim in CLAIMS]


def _record(claim: Claim, readings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    about = {"claim": claim.number, "figure": claim.figure, "problem": claim.problem, "statement": claim.statement}
    several = list(readings) if len(readings) > 1 else []
    return about | (readings[0] if readings else _NOT_RUN) | {"readings": several}


def _reading(verdict: Verdict, summary: Summary) -> dict[str, Any]:
    own = asdict(verdict)
    del own["claim"]
    place = {"section": summary.name, "scale": summary.scale, "command": summary.command}
    return {"verdict": own.pop("outcome")} | own | place


_NOT_RUN: dict[str, Any] = {
    "verdict": "not run",
    "reading": "",
    "note": "",
    "effect": None,
    "interval": None,
    "p": None,
    "runs": 0,
    "diverged": 0,
    "comparisons": (),
    "section": None,
    "scale": None,
    "command": None,
}
