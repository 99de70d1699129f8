"""Heads in their targets' checkpoints: equal to transformers' own, or to the family's formulas."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from engine.errors import StartError
from engine.linear import linear
from engine.loading import open_model
from engine.mtp.opening import open_head
from engine.mtp.target import embedding_of, head_weight
from engine.shape import Model
from engine.trained import save
from tests.engine.heads import FLOAT, Slots, loaded, run, save_sharded, write
from tests.engine.test_families import LATENT, SMALL_MOE
from tests.engine.test_mtp_paceline import CONFIG, TOKENIZER, Oracle, tensors

CONTEXT = 64
SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v3": {**SMALL_MOE, **LATENT, "topk_group": 1, "first_k_dense_replace": 1},
    "glm4_moe": {**SMALL_MOE, "topk_group": 1, "first_k_dense_replace": 1},
}


def stored_names(index: int, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A transformers MtpModel's layer under the names of the released checkpoints."""
    behind, tensors = f"model.layers.{index}.", {}
    for name, tensor in state.items():
        name = name.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(tensor):
                for part, half in zip(("gate", "up"), both.chunk(2), strict=True):
                    key = name.replace("gate_up_proj", f"{expert}.{part}_proj.weight")
                    tensors[behind + key] = half
        elif name.endswith("experts.down_proj"):
            for expert, one in enumerate(tensor):
                tensors[behind + name.replace("down_proj", f"{expert}.down_proj.weight")] = one
        else:
            tensors[behind + name] = tensor
    return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}


def random_weights(module: torch.nn.Module) -> None:
    for name, tensor in module.state_dict().items():
        spread = 0.1 if "norm" in name else tensor.shape[-1] ** -0.5 if tensor.dim() > 1 else 0.2
        tensor.copy_(torch.randn_like(tensor) * spread + ("norm" in name))


@torch.no_grad()
def native(family: str, folder: Path) -> tuple[Any, Any, Model]:
    """(transformers' model, its MTP modules, our target) of a saved random checkpoint."""
    from transformers.modeling_layers import MtpModel

    if not hasattr(MtpModel, "forward_layer"):
        pytest.skip("this transformers keeps its heads' steps to itself")
    torch.manual_seed(3)
    sizes = {**SIZES, **FAMILIES[family], "num_nextn_predict_layers": 1}
    config = AutoConfig.for_model(family, **sizes)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    random_weights(model)
    mtp: Any = MtpModel(model, 1).eval()
    random_weights(mtp.layers)
    layer = stored_names(2, mtp.layers[0].state_dict())
    whole = {"model.embed_tokens.weight": model.model.embed_tokens.weight.clone()}
    save_sharded(folder, config.to_dict(), layer | whole)
    target: Any = AutoModelForCausalLM.from_config(copy.deepcopy(config)).eval()
    target.load_state_dict(model.state_dict())
    return model, mtp, open_model(target, target.config, FLOAT, CONTEXT)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_a_head_equals_transformers_own_and_recycles_its_output(
    family: str, tmp_path: Path
) -> None:
    from transformers.cache_utils import MtpCache

    model, mtp, target = native(family, tmp_path)
    head = open_head(tmp_path, loaded(target, tmp_path, family), FLOAT)
    ids = torch.tensor([5, 0, 60, 9, 33, 21])
    hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0]
    cache = MtpCache(config=mtp.config)
    positions = torch.arange(1, 6)
    wanted = mtp.forward_layer(
        0, hidden[None, :-1], positions[None], cache, input_ids=ids[None, 1:]
    )
    slots = Slots(head.shape)
    got = run(head, slots, ids[1:], hidden[:-1])
    torch.testing.assert_close(got, wanted[0], atol=2e-6, rtol=1e-5)
    for slot in range(6, 9):
        logits = head.logits(got[-1:])
        torch.testing.assert_close(logits, mtp.shared_head(wanted[0, -1:]), atol=1e-5, rtol=1e-5)
        token, place = logits.argmax(-1), torch.tensor([slot])
        got = run(head, slots, token, got[-1:], first=slot)
        wanted = mtp.forward_layer(0, wanted[:, -1:], place[None], cache, input_ids=token[None])
        torch.testing.assert_close(got, wanted[0], atol=2e-6, rtol=1e-5)
    written = Slots(head.shape)
    write(head, written, ids[1:], hidden[:-1])
    torch.testing.assert_close(written.keys[0][1:6], slots.keys[0][1:6])
    torch.testing.assert_close(written.values[0][1:6], slots.values[0][1:6])


@torch.no_grad()
def test_a_head_with_its_own_embedding_and_head_uses_them(tmp_path: Path) -> None:
    _, mtp, target = native("glm4_moe", tmp_path)
    shared = open_head(tmp_path, loaded(target, tmp_path, "glm4_moe"), FLOAT)
    stored = stored_names(2, mtp.layers[0].state_dict())
    config = json.loads((tmp_path / "config.json").read_text())
    same = {
        "model.layers.2.embed_tokens.weight": embedding_of(target).clone(),
        "model.layers.2.shared_head.head.weight": head_weight(target).clone(),
    }
    copied = save_sharded(tmp_path / "copied", config, stored | same)
    copy_of_both = open_head(copied, loaded(target, copied, "glm4_moe"), FLOAT)
    assert copy_of_both.bytes == shared.bytes  # equal ones are not kept twice
    own = {name: tensor + 1 for name, tensor in same.items()}
    folder = save_sharded(tmp_path / "own", config, stored | own)
    head = open_head(folder, loaded(target, folder, "glm4_moe"), FLOAT)
    assert head.parameters == shared.parameters + 2 * 61 * 32
    assert head.bytes == shared.bytes + 4 * 61 * 32 + linear(torch.zeros(61, 32)).extent[1]
    ids, hidden = torch.tensor([5, 0]), torch.randn(2, 32)
    one, other = (run(each, Slots(each.shape), ids, hidden) for each in (shared, head))
    assert not torch.allclose(one, other)
    weight = own["model.layers.2.shared_head.head.weight"]
    torch.testing.assert_close(head.logits(other), other @ weight.T)


@torch.no_grad()
def test_a_head_of_ours_over_a_module_reads_its_final_hidden_state_only(tmp_path: Path) -> None:
    _, _, target = native("glm4_moe", tmp_path / "target")
    config = msgspec.structs.replace(CONFIG, taps=(2,))
    weights = tensors(config)
    save(tmp_path / "one", config, weights)
    head = open_head(tmp_path / "one", loaded(target, tmp_path), FLOAT, TOKENIZER)
    ids, hidden = torch.tensor([5, 0, 60]), torch.randn(3, 32)
    plain = Oracle(config, weights, embedding_of(target), head_weight(target))
    wanted = plain.forward(ids, hidden, torch.arange(1, 4))
    got = run(head, Slots(head.shape), ids, head.fuse(hidden))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(head.logits(got), plain.logits(got), atol=1e-4, rtol=1e-4)
    save(tmp_path / "three", CONFIG, tensors(CONFIG))
    with pytest.raises(StartError, match=r"reads the target at layers 0, 1, 2.*--taps 2"):
        open_head(tmp_path / "three", loaded(target, tmp_path), FLOAT, TOKENIZER)
