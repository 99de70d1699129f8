"""Usage and speculation numbers of an answer, in OpenAI's and vLLM's names."""

from __future__ import annotations

from typing import Any

from engine.wire import Delta, Finished


def usage(finished: list[Finished], per_prompt: int = 1) -> dict[str, Any]:
    """Token counts; a prompt that was answered per_prompt times counts once."""
    prompts = finished[::per_prompt]
    prompt = sum(item.prompt_tokens for item in prompts)
    completion = sum(item.completion_tokens for item in finished)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(item.cached_tokens for item in prompts)},
    }


def usage_so_far(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Token counts of one choice while it is being written."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def metrics(finished: Finished) -> dict[str, Any]:
    """Speculation and timing (ms) of one request.

    num_spec_steps counts verify steps, plain ones too. mean_acceptance_length is the tokens that a
    verify step committed, on average: the first token comes from the prefill, and what the end of
    the answer cut off the last step does not count."""
    counts, timing = finished.speculation, finished.timing
    steps, drafted, accepted = counts.steps, counts.drafted, counts.accepted
    return {
        "speculative_decoding": {
            "mean_acceptance_length": (finished.completion_tokens - 1) / steps if steps else None,
            "draft_acceptance_rate": accepted / drafted if drafted else None,
            "acceptance_histogram": list(counts.histogram),
            "num_spec_steps": steps,
            "num_accepted_draft_tokens": accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": counts.max_draft_length,
            "drafters": counts.drafters,
            "drafted_by": {
                name: {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted}
                for name, (drafted, accepted) in counts.parts.items()
            },
        },
        "timing": {
            "queue_ms": timing.queue_ms,
            "ttft_ms": timing.ttft_ms,
            "e2e_ms": timing.e2e_ms,
            "tpot_ms": timing.tpot_ms,
        },
    }


def provenance(delta: Delta) -> dict[str, Any]:
    """x_spec: where each token of a step came from."""
    return {
        "step": delta.step,
        "drafter": delta.drafter,
        "drafted": delta.drafted,
        "accepted": delta.accepted,
        "pieces": [
            {"token": piece.token, "text": piece.text, "kind": piece.kind} for piece in delta.pieces
        ],
    }
