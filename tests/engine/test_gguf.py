"""GGUF files: converted once into a folder that computes and tokenises what the file says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from engine.conversion import SPLITS
from engine.device import Device
from engine.errors import StartError
from engine.loading import load
from engine.locate import find_model
from tests.engine.test_families import TEXTS, assert_equal, eager, paged, tiny

CPU = Device(torch.device("cpu"), torch.float32)
CORPUS = ["one two three 2024 1234 naïve 12", "three two one, isn't it? 55 66", "one one two"] * 20
END = "<|im_end|>"
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def train(split: str) -> Tokenizer:
    """A byte-level BPE tokenizer that splits by `split` first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(split), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=[END], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def renamed(name: str) -> str:
    base, kind = name.rsplit(".", 1)
    if base in TOP:
        return f"{TOP[base]}.{kind}"
    _, _, layer, part = base.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.{kind}"


def write_gguf(path: Path, model: Any, tokenizer: Tokenizer, pre: str, template: str = "") -> None:
    """What llama.cpp's own converter writes for a qwen2 model. template: for chats."""
    config = model.config
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    vocabulary = tokenizer.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    kinds = gguf.TokenType
    writer.add_token_types([kinds.CONTROL if token == END else kinds.NORMAL for token in tokens])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(vocabulary[END])
    if template:
        writer.add_chat_template(template)
    for name, weight in model.state_dict().items():
        writer.add_tensor(renamed(name), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny_source() -> tuple[Any, Tokenizer]:
    """A random model of the family with a tokenizer of its own."""
    tokenizer = train(SPLITS["qwen2"])
    settings = {"use_sliding_window": False, "layer_types": None}
    end = tokenizer.token_to_id(END)
    model = tiny(
        "qwen2",
        vocab_size=tokenizer.get_vocab_size(),
        eos_token_id=end,
        tie_word_embeddings=False,
        **settings,
    )
    return model, tokenizer


@pytest.fixture(scope="module")
def source() -> tuple[Any, Tokenizer]:
    return tiny_source()


def test_a_gguf_file_is_converted_once_and_computes_and_tokenises_what_it_says(
    source: tuple[Any, Tokenizer], tmp_path: Path
) -> None:
    model, tokenizer = source
    file = tmp_path / "files" / "tiny.gguf"
    file.parent.mkdir()
    write_gguf(file, model, tokenizer, "qwen2")
    cache = tmp_path / "cache"
    folder = find_model(str(file), cache)
    loaded = load(folder, CPU, 0)
    with torch.no_grad():
        assert_equal(paged(loaded.decoder), eager(model, TEXTS))
    text = "one 2024 isn't naïve 12"
    assert loaded.tokenizer.encode(text) == tokenizer.encode(text).ids
    assert loaded.stop_ids == {tokenizer.token_to_id(END)}

    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert find_model(str(file.parent), cache) == folder, "a folder with one GGUF file is that file"
    assert (folder / "model.safetensors").stat().st_mtime_ns == made, "converted only once"
    os.utime(file, ns=(1, 1))
    assert find_model(str(file), cache) != folder, "a file that was replaced is converted anew"


def test_a_split_of_text_that_is_not_known_is_refused(
    source: tuple[Any, Tokenizer], tmp_path: Path
) -> None:
    file = tmp_path / "odd.gguf"
    write_gguf(file, *source, "brand-new")
    with pytest.raises(StartError, match=r"rules 'brand-new'.*safetensors release") as caught:
        find_model(str(file), tmp_path / "cache")
    assert caught.value.code == "conversion_failed"
    assert not list((tmp_path / "cache" / "models").glob("odd*")), "nothing half-made stays"


def test_a_cut_gguf_file_is_refused(source: tuple[Any, Tokenizer], tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    write_gguf(file, *source, "qwen2")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(StartError, match=r"Cannot convert .*cut\.gguf") as caught:
        find_model(str(file), tmp_path / "cache")
    assert caught.value.code == "conversion_failed"


def test_what_is_no_gguf_file_or_only_a_part_of_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"PK\x03\x04")
    with pytest.raises(StartError, match="does not begin as a GGUF file"):
        find_model(str(tmp_path), tmp_path)
    file.rename(tmp_path / "model-00001-of-00002.gguf")
    (tmp_path / "model-00001-of-00002.gguf").write_bytes(b"GGUF")
    with pytest.raises(StartError, match="join the parts"):
        find_model(str(tmp_path), tmp_path)


def test_a_folder_of_several_gguf_files_asks_for_one(tmp_path: Path) -> None:
    for name in ("a.Q4.gguf", "a.Q8.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(StartError, match=r"a\.Q4\.gguf, a\.Q8\.gguf") as caught:
        find_model(str(tmp_path), tmp_path)
    assert caught.value.code == "model_ambiguous"
