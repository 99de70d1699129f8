"""How well steps are predicted: the errors of sampled steps, taken together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]


def calibration(records: Sequence[Json]) -> dict[str, Any]:
    """Of these step records: how many there are, and for tokens and ms of a step the error (mean of
    |realised / predicted - 1|) and the bias (sum realised / sum predicted - 1), null without any.

    Steps with prefill rows count for tokens only: a prediction knows nothing of what these
    take."""
    alone = [one for one in records if not one["prefill_rows"]]
    return {
        "records": len(records),
        "records_without_prefill": len(alone),
        "tokens": _errors((one["predicted_tokens"], one["realised_tokens"]) for one in records),
        "ms": _errors((one["predicted_ms"], one["realised_ms"]) for one in alone),
    }


def _errors(pairs: Iterable[tuple[float | None, float]]) -> dict[str, float] | None:
    """Without those whose prediction is no positive number."""
    sound = [(predicted, realised) for predicted, realised in pairs if predicted and predicted > 0]
    if not sound:
        return None
    predicted, realised = (sum(values) for values in zip(*sound, strict=True))
    error = sum(abs(got / said - 1.0) for said, got in sound) / len(sound)
    return {"error": error, "bias": realised / predicted - 1.0}
