"""Parameters of other servers that are refused by name instead of silently ignored."""

from __future__ import annotations

from typing import Any

import msgspec

from app.errors import unsupported


class Refused(msgspec.Struct, kw_only=True):
    """Parameters that would change the answer elsewhere: only their neutral value passes."""

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    length_penalty: Any = None
    use_beam_search: Any = None
    suffix: Any = None
    modalities: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    reasoning_effort: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    add_generation_prompt: Any = None
    continue_final_message: Any = None
    documents: Any = None
    reasoning: Any = None
    truncation: Any = None
    truncate_prompt_tokens: Any = None
    prompt_embeds: Any = None
    background: Any = None
    conversation: Any = None
    skip_special_tokens: Any = None
    spaces_between_special_tokens: Any = None
    include_stop_str_in_output: Any = None
    return_tokens_as_token_ids: Any = None
    logits_processors: Any = None
    guided_whitespace_pattern: Any = None
    logprob_token_ids: Any = None
    repetition_detection: Any = None
    return_prompt_text: Any = None
    return_token_offsets: Any = None
    thinking_token_budget: Any = None
    verbosity: Any = None
    vllm_xargs: Any = None
    watermarking: Any = None
    best_of: Any = None

    def check_refused(self, *more: str) -> None:
        """Raise a 400 that names the first parameter which has an effect elsewhere.

        more: further fields of the request that are refused. best_of may be n: nothing is then left
        out of the answer."""
        for name in (*Refused.__struct_fields__, *more):
            value = getattr(self, name)
            if name in _ON:
                neutral = value is None or value is True
            else:
                neutral = value is None or value is False or value in _NEUTRAL.get(name, ())
            if name == "best_of":
                neutral = neutral or value == getattr(self, "n", None)
            if not neutral:
                raise unsupported(name)


# Those whose neutral value is true.
_ON = ("add_generation_prompt", "skip_special_tokens", "spaces_between_special_tokens")
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "length_penalty": (1,),
    "suffix": ("",),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "logits_processors": ([],),
    "reasoning": ({}, {"effort": None, "summary": None}, {"effort": "none"}),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "vllm_xargs": ({},),
    "include": ([],),
    "text": ({}, {"format": {"type": "text"}}),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "n": (1,),
    "best_of": (1,),
}
