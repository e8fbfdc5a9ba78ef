"""The picture of a text in a report: its tokens, coloured by the epistemic uncertainty of their predictions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bdl.posterior.class_evaluation import ClassEvaluation

Pieces = Callable[[Sequence[int]], list[str] | None]  # the text of each token; None where classes are no tokens
TOKENS_SHOWN = 1000  # tokens
DARKEST = 0.9  # opacity of the largest epistemic uncertainty


@dataclass(frozen=True)
class Word:
    """A token, as the page shows it."""

    piece: str  # the text of the token
    shade: str  # opacity of its colour, proportional to its epistemic uncertainty
    title: str  # the numbers of the token


def coloured(evaluation: ClassEvaluation, pieces: Pieces) -> list[Word]:
    """The first tokens of an evaluation. The largest epistemic uncertainty among them is the darkest."""
    labels = evaluation.labels[:TOKENS_SHOWN]
    texts = pieces(labels.tolist())
    if texts is None:
        return []
    probability = evaluation.bma[range(len(labels)), labels].tolist()
    parts = evaluation.uncertainty
    entropy, epistemic = (parts[name][:TOKENS_SHOWN].clamp_min(0) for name in ("entropy", "epistemic"))
    shades = DARKEST * epistemic / epistemic.max().clamp_min(1e-12)
    return [
        Word(text, f"{shade:.3f}", f"p = {p:.3f}, entropy {h:.3f} nats, epistemic {e:.4f} nats")
        for text, shade, p, h, e in zip(
            texts, shades.tolist(), probability, entropy.tolist(), epistemic.tolist(), strict=True
        )
    ]
