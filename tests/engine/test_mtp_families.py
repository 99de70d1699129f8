"""Heads of families that transformers has no module for, against their formulas written down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from engine.decoder import Decoder
from engine.errors import StartError
from engine.loading import load
from engine.mtp.opening import carries_head, open_head
from engine.vocabulary import restricted
from tests.engine.heads import (
    FLOAT,
    HALF,
    Slots,
    causal,
    loaded,
    rms,
    run,
    save_sharded,
    tiny_decoder,
    turned,
    write,
)
from tests.engine.test_families import tiny

D, V, INNER, HEADS, KV, DIM, EXPERTS, WIDTH = 32, 61, 40, 4, 2, 8, 4, 12
POSITIONS = torch.arange(1, 7)
Weights = dict[str, Tensor]
COMMON: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": DIM,
    "max_position_embeddings": 64,
}
GATED = {
    **COMMON,
    "rms_norm_eps": 1e-3,
    "hidden_act": "silu",
    "layer_types": ["linear_attention", "full_attention"],
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 0],
    },
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "mimo": {**COMMON, "rms_norm_eps": 1e-3, "rope_theta": 10000.0},
    "qwen3_next": {
        **GATED, "num_experts": EXPERTS, "num_experts_per_tok": 2, "norm_topk_prob": True,
        "moe_intermediate_size": WIDTH, "shared_expert_intermediate_size": WIDTH,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "qwen3_5": {"text_config": {**GATED, "model_type": "qwen3_5_text"}},
    "nemotron_h": {
        **COMMON, "hybrid_override_pattern": "M*", "mtp_hybrid_override_pattern": "*E",
        "num_nextn_predict_layers": 1, "layer_norm_epsilon": 1e-3, "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2, "moe_intermediate_size": WIDTH, "n_group": 1, "topk_group": 1,
        "moe_shared_expert_intermediate_size": 20, "routed_scaling_factor": 2.5,
        "norm_topk_prob": True, "mlp_hidden_act": "relu2", "mamba_num_heads": 4,
        "mamba_head_dim": 8, "n_groups": 1, "ssm_state_size": 8,
    },
}  # fmt: skip
ATTENTION = {"q_proj": (HEADS * DIM, D), "k_proj": (KV * DIM, D), "v_proj": (KV * DIM, D)}
MLP = {"gate_proj": (INNER, D), "up_proj": (INNER, D), "down_proj": (D, INNER)}


def shapes_of(family: str) -> dict[str, tuple[int, ...]]:
    """The tensors of each released checkpoint."""
    if family == "mimo":
        prefix = "model.mtp_layers.0."
        norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
        shapes: dict[str, tuple[int, ...]] = {f"{prefix}{name}": (D,) for name in norms}
        shapes |= {f"{prefix}input_proj": (D, 2 * D), f"{prefix}self_attn.o_proj": (D, HEADS * DIM)}
        shapes |= {f"{prefix}{n}": (D,) for n in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{prefix}self_attn.{name}": shape for name, shape in ATTENTION.items()}
        shapes |= {f"{prefix}mlp.{name}": shape for name, shape in MLP.items()}
        biases = {f"{prefix}self_attn.{name}.bias": s[:1] for name, s in ATTENTION.items()}
        return {f"{name}.weight": shape for name, shape in shapes.items()} | biases
    if family == "nemotron_h":
        first, second = "mtp.layers.0.", "mtp.layers.1."
        shapes = {f"{first}{name}": (D,) for name in ("enorm", "hnorm", "norm")}
        shapes |= {f"{first}mixer.{name}": shape for name, shape in ATTENTION.items()}
        shapes |= {f"{first}eh_proj": (D, 2 * D), f"{first}mixer.o_proj": (D, HEADS * DIM)}
        shapes |= {f"{second}{name}": (D,) for name in ("norm", "final_layernorm")}
        shapes |= {f"{second}mixer.gate": (EXPERTS, D)}
        for owner, width in [(f"experts.{i}", WIDTH) for i in range(EXPERTS)] + [
            ("shared_experts", 20)
        ]:
            shapes |= {f"{second}mixer.{owner}.up_proj": (width, D)}
            shapes |= {f"{second}mixer.{owner}.down_proj": (D, width)}
        correction = {f"{second}mixer.gate.e_score_correction_bias": (EXPERTS,)}
        return {f"{name}.weight": shape for name, shape in shapes.items()} | correction
    layer = "mtp.layers.0."
    shapes = {"mtp.fc": (D, 2 * D), "mtp.norm": (D,)}
    shapes |= {f"mtp.pre_fc_norm_{name}": (D,) for name in ("embedding", "hidden")}
    shapes |= {f"{layer}{name}": (D,) for name in ("input_layernorm", "post_attention_layernorm")}
    shapes |= {f"{layer}self_attn.{name}": shape for name, shape in ATTENTION.items()}
    shapes |= {f"{layer}self_attn.q_proj": (2 * HEADS * DIM, D)}
    shapes |= {f"{layer}self_attn.{name}_norm": (DIM,) for name in "qk"}
    shapes |= {f"{layer}self_attn.o_proj": (D, HEADS * DIM)}
    if family == "qwen3_5":
        shapes |= {f"{layer}mlp.{name}": shape for name, shape in MLP.items()}
        assert len(shapes) == 15
    else:
        shapes |= {f"{layer}mlp.gate": (EXPERTS, D), f"{layer}mlp.shared_expert_gate": (1, D)}
        for owner in [*(f"experts.{i}" for i in range(EXPERTS)), "shared_expert"]:
            shapes |= {f"{layer}mlp.{owner}.{name}_proj": (WIDTH, D) for name in ("gate", "up")}
            shapes |= {f"{layer}mlp.{owner}.down_proj": (D, WIDTH)}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def weights_of(family: str) -> Weights:
    torch.manual_seed(11)
    return {
        name: torch.randn(shape) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        + ("norm" in name and family not in ("qwen3_next", "qwen3_5"))
        for name, shape in shapes_of(family).items()
    }


def attended(w: Weights, prefix: str, x: Tensor, positions: Tensor, theta: float | None) -> Tensor:
    q, k, v = (
        F.linear(x, w[f"{prefix}{name}_proj.weight"], w.get(f"{prefix}{name}_proj.bias"))
        .unflatten(1, (-1, DIM))
        for name in "qkv"
    )  # fmt: skip
    if theta is not None:
        q, k = turned(q, positions, theta), turned(k, positions, theta)
    return causal(q, k, v, DIM**-0.5) @ w[f"{prefix}o_proj.weight"].T


def gated_mlp(w: Weights, prefix: str, x: Tensor) -> Tensor:
    gate, up, down = (w[f"{prefix}{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def of_mimo(w: Weights, embeddings: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
    p = "model.mtp_layers.0."

    def norm(name: str, x: Tensor) -> Tensor:
        return rms(x, w[f"{p}{name}.weight"], 1e-3)

    both = torch.cat((norm("hidden_layernorm", hidden), norm("token_layernorm", embeddings)), 1)
    x = both @ w[f"{p}input_proj.weight"].T
    x = x + attended(w, f"{p}self_attn.", norm("input_layernorm", x), positions, 10000.0)
    x = x + gated_mlp(w, f"{p}mlp.", norm("post_attention_layernorm", x))
    return norm("final_layernorm", x)


def of_qwen(w: Weights, embeddings: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
    p = "mtp.layers.0."

    def norm(name: str, x: Tensor) -> Tensor:
        return rms(x, 1 + w[f"{name}.weight"], 1e-3)

    x = torch.cat(
        (norm("mtp.pre_fc_norm_embedding", embeddings), norm("mtp.pre_fc_norm_hidden", hidden)), 1
    )
    x = x @ w["mtp.fc.weight"].T
    normed = norm(f"{p}input_layernorm", x)
    q, gate = (normed @ w[f"{p}self_attn.q_proj.weight"].T).view(-1, HEADS, 2, DIM).unbind(2)
    k, v = ((normed @ w[f"{p}self_attn.{n}_proj.weight"].T).view(-1, KV, DIM) for n in "kv")
    q, k = norm(f"{p}self_attn.q_norm", q), norm(f"{p}self_attn.k_norm", k)
    q, k = (turned(part, positions, 1000.0, DIM // 2) for part in (q, k))
    out = causal(q, k, v, DIM**-0.5) * gate.flatten(1).sigmoid()
    x = x + out @ w[f"{p}self_attn.o_proj.weight"].T
    normed = norm(f"{p}post_attention_layernorm", x)
    if f"{p}mlp.gate.weight" not in w:
        return norm("mtp.norm", x + gated_mlp(w, f"{p}mlp.", normed))
    mixed = gated_mlp(w, f"{p}mlp.shared_expert.", normed)
    mixed = mixed * (normed @ w[f"{p}mlp.shared_expert_gate.weight"].T).sigmoid()
    chances, chosen = (normed @ w[f"{p}mlp.gate.weight"].T).softmax(-1).topk(2)
    chances = chances / chances.sum(-1, keepdim=True)
    for row in range(len(x)):
        for chance, expert in zip(chances[row], chosen[row].tolist(), strict=True):
            mixed[row] += chance * gated_mlp(w, f"{p}mlp.experts.{expert}.", normed[row])
    return norm("mtp.norm", x + mixed)


def of_nemotron(w: Weights, embeddings: Tensor, hidden: Tensor, positions: Tensor) -> Tensor:
    first, second = "mtp.layers.0.", "mtp.layers.1."

    def norm(name: str, x: Tensor) -> Tensor:
        return rms(x, w[f"{name}.weight"], 1e-3)

    def mlp(prefix: str, x: Tensor) -> Tensor:
        return F.relu(x @ w[f"{prefix}up_proj.weight"].T) ** 2 @ w[f"{prefix}down_proj.weight"].T

    x = torch.cat((norm(f"{first}enorm", embeddings), norm(f"{first}hnorm", hidden)), 1)
    x = x @ w[f"{first}eh_proj.weight"].T
    x = x + attended(w, f"{first}mixer.", norm(f"{first}norm", x), positions, None)
    normed = norm(f"{second}norm", x)
    scores = (normed @ w[f"{second}mixer.gate.weight"].T).sigmoid()
    chosen = (scores + w[f"{second}mixer.gate.e_score_correction_bias"]).topk(2).indices
    mixed = mlp(f"{second}mixer.shared_experts.", normed)
    for row in range(len(x)):
        total = scores[row, chosen[row]].sum()
        for expert in chosen[row].tolist():
            share = 2.5 * scores[row, expert] / total
            mixed[row] += share * mlp(f"{second}mixer.experts.{expert}.", normed[row])
    return norm(f"{second}final_layernorm", x + mixed)


Oracle = Callable[[Weights, Tensor, Tensor, Tensor], Tensor]
ORACLES: dict[str, Oracle] = {
    "mimo": of_mimo,
    "qwen3_next": of_qwen,
    "qwen3_5": of_qwen,
    "nemotron_h": of_nemotron,
}


def folder_of(family: str, folder: Path, weights: Weights | None = None) -> Path:
    config = {**CONFIGS[family], "model_type": family}
    return save_sharded(folder, config, weights or weights_of(family))


@pytest.mark.parametrize("family", ORACLES)
@torch.no_grad()
def test_a_head_computes_its_familys_formulas(family: str, tmp_path: Path) -> None:
    target, weights = tiny_decoder(), weights_of(family)
    folder = folder_of(family, tmp_path, weights)
    assert carries_head(folder)
    head = open_head(folder, loaded(target, folder, family), FLOAT)
    assert (head.family, head.taps, head.shape.layers) == (family, (2,), 1)
    assert head.parameters == sum(tensor.numel() for tensor in weights.values())
    ids, hidden = torch.tensor([5, 0, 60, 9, 33, 21]), torch.randn(6, D)
    assert head.fuse(hidden) is hidden
    slots, written = Slots(head.shape), Slots(head.shape)
    got = run(head, slots, ids, hidden)
    wanted = ORACLES[family](weights, target.embedding[ids], hidden, POSITIONS)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(head.logits(got), target.logits(got))
    write(head, written, ids, hidden)
    for one, other in ((slots.keys, written.keys), (slots.values, written.values)):
        torch.testing.assert_close(one[0][POSITIONS], other[0][POSITIONS])


@pytest.mark.parametrize("family", ORACLES)
@torch.no_grad()
def test_a_bfloat16_head_is_close_and_may_draft_few_of_the_ids(family: str, tmp_path: Path) -> None:
    target, weights = tiny_decoder(HALF), weights_of(family)
    folder = folder_of(family, tmp_path, weights)
    head = open_head(
        folder, loaded(target, folder, family), HALF, restrict=lambda whole: restricted(whole, 9)
    )
    ids, hidden = torch.tensor([5, 0, 60, 9, 33, 21]), torch.randn(6, D).bfloat16()
    got = run(head, Slots(head.shape), ids, hidden)
    rounded = {name: tensor.bfloat16().float() for name, tensor in weights.items()}
    embeddings = target.embedding[ids].float()
    wanted = ORACLES[family](rounded, embeddings, hidden.float(), POSITIONS)
    rows = (got.float() - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert float(rows.median()) < 0.03, rows  # rounding may send a row to other experts
    kept = head.vocabulary.to_target
    assert (len(kept), head.shape.vocabulary) == (9, 9)
    whole = target.logits(got)[:, kept]
    torch.testing.assert_close(head.logits(got), whole, atol=0.02, rtol=0.02)


def refusal(folder: Path, family: str, **target: Any) -> StartError:
    with pytest.raises(StartError) as caught:
        open_head(folder, loaded(tiny_decoder(**target), folder, family), FLOAT)
    assert str(folder) in caught.value.message
    return caught.value


@pytest.mark.parametrize("family", ORACLES)
def test_missing_tensors_are_named(family: str, tmp_path: Path) -> None:
    weights = weights_of(family)
    gone = sorted(name for name in weights if "k_proj" in name or "gate" in name or "up_p" in name)
    for name in gone:
        del weights[name]
    error = refusal(folder_of(family, tmp_path, weights), family)
    assert error.code == "drafter_broken"
    assert f"lacks {len(gone)} of the {len(gone) + len(weights)} tensors" in error.message
    assert sum(name in error.message for name in gone) == min(3, len(gone))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("mimo", "model.mtp_layers.0.input_proj.weight"),
        ("mimo", "model.mtp_layers.0.mlp.down_proj.weight"),
        ("qwen3_next", "mtp.norm.weight"),
        ("qwen3_next", "mtp.layers.0.mlp.experts.3.down_proj.weight"),
        ("qwen3_5", "mtp.layers.0.self_attn.q_norm.weight"),
        ("nemotron_h", "mtp.layers.0.eh_proj.weight"),
        ("nemotron_h", "mtp.layers.1.mixer.gate.weight"),
    ],
)
def test_tensors_of_another_size_are_named(family: str, name: str, tmp_path: Path) -> None:
    weights = weights_of(family)
    weights[name] = weights[name][:-1].clone()
    error = refusal(folder_of(family, tmp_path, weights), family)
    assert error.code == "drafter_broken"
    assert f"{name} as {list(weights[name].shape)}" in error.message


def test_quantised_tensors_are_refused(tmp_path: Path) -> None:
    weights = weights_of("qwen3_next")
    name = "mtp.layers.0.mlp.experts.2.up_proj.weight"
    weights[name] = weights[name].to(torch.float8_e4m3fn)
    error = refusal(folder_of("qwen3_next", tmp_path, weights), "qwen3_next")
    assert f"{name} as F8_E4M3, which is quantised" in error.message


def test_the_head_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = folder_of("mimo", tmp_path)
    error = refusal(folder, "mimo", layers=3, vocabulary=60, hidden=64)
    assert error.code == "drafter_unfit"
    for said in ("layers 2 where the served model has 3", "hidden size 32", "vocabulary 61"):
        assert said in error.message


def test_a_model_without_a_head_has_none(tmp_path: Path) -> None:
    for family in ("qwen2", "deepseek_v3", "llama"):
        weights = {"model.layers.1.self_attn.q_proj.weight": torch.zeros(4, 4), "a": torch.ones(1)}
        config = {**CONFIGS["mimo"], "model_type": family}
        folder = save_sharded(tmp_path / family, config, weights)
        assert not carries_head(folder)
        assert "holds no multi-token prediction head" in refusal(folder, family).message


def test_a_config_that_transformers_refuses_is_told(tmp_path: Path) -> None:
    config = {**CONFIGS["qwen3_next"], "model_type": "qwen3_next", "num_attention_heads": "four"}
    folder = save_sharded(tmp_path, config, weights_of("qwen3_next"))
    assert refusal(folder, "qwen3_next").code == "drafter_broken"


def test_a_mimo_folder_is_served_as_qwen2_with_its_head(tmp_path: Path) -> None:
    """Its config.json names Python code of its own, which is never run."""
    model: Any = tiny("qwen2", **COMMON, rms_norm_eps=1e-3)
    weights = weights_of("mimo")
    code = {"AutoConfig": "configuration_mimo.MiMoConfig", "AutoModel": "modeling_mimo.MiMoModel"}
    config = {
        **CONFIGS["mimo"], "model_type": "mimo", "architectures": ["MiMoForCausalLM"],
        "auto_map": code, "attention_bias": True, "hidden_act": "silu", "use_mrope": False,
        "num_nextn_predict_layers": 1, "tie_word_embeddings": False, "eos_token_id": 2,
    }  # fmt: skip
    save_sharded(tmp_path, config, {**model.state_dict(), **weights})
    tokenizer = {f"t{index}": index for index in range(V)}
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(tokenizer, unk_token="t0")), eos_token="t2"
    ).save_pretrained(tmp_path)
    target = load(tmp_path, FLOAT, 0)
    assert isinstance(target.decoder, Decoder)
    assert (target.architecture, target.stop_ids) == ("mimo", frozenset({2}))
    ids = torch.tensor([5, 0, 60, 9, 33, 21])
    slots = Slots(target.decoder.shape, first=0)
    got = target.decoder.forward(ids, POSITIONS - 1, slots.at(POSITIONS - 1))
    wanted = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
    head = open_head(tmp_path, target, FLOAT)
    got = run(head, Slots(head.shape), ids[1:], wanted[:-1])
    expected = of_mimo(weights, target.decoder.embedding[ids[1:]], wanted[:-1], POSITIONS[:-1])
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-4)
