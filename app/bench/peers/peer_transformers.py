"""transformers' generate: plain, with prompt lookup, or with an assistant model."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from serving import Generate, serve  # beside this script

LOOKUP_TOKENS = 10
"""As in transformers' own examples."""


def load(setup: dict[str, Any]) -> tuple[str, bool, Generate]:
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    if setup["threads"]:
        torch.set_num_threads(setup["threads"])
    kind = getattr(torch, setup["dtype"])
    models = transformers.AutoModelForCausalLM
    model = models.from_pretrained(setup["model"], dtype=kind).eval()
    more: dict[str, Any] = {}
    if setup["variant"] == "lookup":
        more["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
    if setup["variant"] == "assisted":
        more["assistant_model"] = models.from_pretrained(setup["assistant"], dtype=kind).eval()
    # Greedy and to the full length: nothing of the model's own generation settings applies.
    settings = transformers.GenerationConfig(do_sample=False, pad_token_id=0)

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        longest = max(map(len, prompts))
        padded = [[0] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        with torch.inference_mode():
            found = model.generate(
                torch.tensor(padded),
                attention_mask=torch.tensor(mask),
                generation_config=settings,
                min_new_tokens=max_tokens,
                max_new_tokens=max_tokens,
                **more,
            )
        return found[:, longest:].tolist()

    return f"transformers {transformers.__version__}", not more, generate


if __name__ == "__main__":
    serve(load)
