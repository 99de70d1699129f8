"""llama.cpp through llama-cpp-python: plain, or with its prompt lookup; one prompt at a time."""

from __future__ import annotations

from importlib import import_module
from itertools import islice
from typing import Any

from serving import Generate, serve  # beside this script

CONTEXT = 8192
LOOKUP_TOKENS = 10
"""What its own documentation recommends at batch 1."""


def load(setup: dict[str, Any]) -> tuple[str, bool, Generate]:
    llama_cpp: Any = import_module("llama_cpp")
    draft: Any = None
    if setup["variant"] == "lookup":
        speculative: Any = import_module("llama_cpp.llama_speculative")
        draft = speculative.LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS)
    threads = setup["threads"] or None
    model = llama_cpp.Llama(
        setup["gguf"],
        n_ctx=CONTEXT,
        n_threads=threads,
        n_threads_batch=threads,
        draft_model=draft,
        verbose=False,
    )

    def one(prompt: list[int], max_tokens: int) -> list[int]:
        model.reset()
        return list(islice(model.generate(prompt, temp=0.0, top_k=1, reset=True), max_tokens))

    def generate(prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
        return [one(prompt, max_tokens) for prompt in prompts]

    return f"llama-cpp-python {llama_cpp.__version__}", False, generate


if __name__ == "__main__":
    serve(load)
