"""Everything the engine process is told at start, in one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from controller.policies.switchable import PolicyChoice

PolicyName = Literal[
    "adaptive",
    "off",
    "fixed",
    "batch_table",
    "tensorrt_schedule",
    "ema_tiers",
    "goodput",
    "ucb",
    "acceptance_gate",
    "ngram_else_model",
    "margin_verify",
]


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """model: a local folder, a Hugging Face id, or "embedded" (SmolLM2-135M-Instruct).

    dtype auto picks bfloat16 where the device has fast bfloat16, else float32. threads 0 means the
    number of physical cores. kv_tokens 0 sizes the page pool from free memory and memory_fraction,
    where 0 means 0.4 on a CPU and 0.85 on a GPU.
    prefix_cache: whose prompts may reuse computed pages: everybody's, each tenant's its own, or
    nobody's. chunk_rows bounds the prefill rows of one step; 0 means 256 on a CPU and 2,048 on a
    GPU. context_length 0 means the model's own. cache_dir holds converted models and calibration
    tables. Lengths in tokens. calibration: "auto" uses a cached cost table if there is one, "fresh"
    always measures, "off" begins with what the machine's bandwidth and arithmetic suggest.
    suffix_tree: whose past answers the suffix drafter may draft from: those of a
    request's own tenant, everybody's, or none. suffix_memory_mb bounds its trees of answers and
    corpora, suffix_depth the tokens matched and drafted together, suffix_max_age_s the age of
    answers (0: none). mtp and draft_model: the drafters with a model of their own: "auto" takes
    what ships for the target or what its own checkpoint holds, "off" none, anything else is a
    folder (for draft_model also a Hugging Face id). draft_vocabulary: so many of the most frequent
    tokens they may draft; 0 as their checkpoint says. An engine whose step runs longer than
    step_timeout_s (five times that for its first, which may compile), or that sends nothing for
    silence_timeout_s, hangs: it is killed and restarted. policy: who chooses drafter and D, with
    policy_options as "KEY=VALUE KEY=VALUE"; with ab_policy the share ab_share of the requests has
    that one instead."""

    model: str = "embedded"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    attention: Literal["auto", "torch", "flashinfer"] = "auto"
    threads: int = 0
    max_batch: int = 32
    max_waiting: int = 256
    max_draft_length: int = 16
    chunk_rows: int = 0
    page_size: int = 16
    kv_tokens: int = 0
    prefix_cache: Literal["shared", "tenant", "off"] = "shared"
    memory_fraction: float = 0.0
    context_length: int = 0
    cache_dir: str = ""
    calibration: Literal["auto", "fresh", "off"] = "auto"
    suffix_tree: Literal["tenant", "shared", "off"] = "tenant"
    suffix_memory_mb: int = 384
    suffix_depth: int = 64
    suffix_max_age_s: int = 86_400
    mtp: str = "auto"
    draft_model: str = "auto"
    draft_vocabulary: int = 0
    policy: PolicyName = "adaptive"
    policy_options: str = ""
    ab_policy: str = ""
    ab_options: str = ""
    ab_share: float = 0.5
    step_timeout_s: float = 60.0
    silence_timeout_s: float = 15.0
    served_name: str = ""


def check_policy(config: EngineConfig) -> None:
    """ValueError, beginning with the field and a colon, for a policy that cannot be made."""
    # The policies load numpy, which most commands do without.
    from controller.policies.switchable import check_choice

    check_choice(policy_choice(config))


def policy_choice(config: EngineConfig) -> PolicyChoice:
    """The policy, or pair of policies, that the config names."""
    from controller.policies.switchable import PolicyChoice

    return PolicyChoice(
        config.policy,
        config.policy_options,
        config.ab_policy,
        config.ab_options,
        config.ab_share,
    )
