"""vLLM in this process: plain, or with its n-gram drafter."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from serving import Generate, serve  # beside this script

CONTEXT = 4096
LOOKUP = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


def load(setup: dict[str, Any]) -> tuple[str, bool, Generate]:
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    vllm: Any = import_module("vllm")
    more = {"speculative_config": LOOKUP} if setup["variant"] == "lookup" else {}
    model = vllm.LLM(
        setup["model"],
        dtype=setup["dtype"],
        max_model_len=CONTEXT,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **more,
    )

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        wanted = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = model.generate(wanted, sampling, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]

    return f"vllm {vllm.__version__}", True, generate


if __name__ == "__main__":
    serve(load)
