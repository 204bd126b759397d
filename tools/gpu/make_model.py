#!/usr/bin/env python3
"""Make a model folder that SGLang and vLLM can open, without a network.

    make_model.py hybrid OUT            a Qwen3-Next layout (36 linear + 12 full attention layers, 128 experts, one MTP layer): configuration
                                        and tokenizer only, for ``--load-format dummy``.  Memory planning and kernels are real, the text is not.
    make_model.py llama FILE.gguf OUT   real weights of a llama GGUF as safetensors (bf16), with its tokenizer and chat template

The hybrid's tokenizer names all 151,936 ids, so that every id which random weights produce becomes text: a server that streams
an empty piece for an unknown id sends no event, and time to first token could not be measured.
"""

from __future__ import annotations

import argparse
import json
import re
import sysconfig
from pathlib import Path
from typing import Any

HYBRID: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 32768,
    "partial_rotary_factor": 0.25,
    "rope_theta": 10000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SIMULATED = 100
"""The id SGLang writes for every token of a simulated round: it must be a whole word, or the text is held back as half a character."""
PLAIN_CHAT = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def hybrid(out: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text("utf-8", "replace") for path in sorted(library.glob("*.py"))[:120]]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=16000, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=alphabet)
    )
    model = json.loads(trained.to_str())["model"]
    vocab: dict[str, int] = model["vocab"]
    word = next(
        token
        for token, number in vocab.items()
        if number > SIMULATED and token[:1] == "\u0120" and token[1:].isascii() and token[1:].isalpha()
    )
    other = next(token for token, number in vocab.items() if number == SIMULATED)
    vocab[word], vocab[other] = SIMULATED, vocab[word]
    for number in range(len(vocab), HYBRID["vocab_size"]):
        vocab[f"\u0120word{number}"] = number
    merges = [tuple(merge) for merge in model["merges"]]
    full = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    full.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    full.decoder = decoders.ByteLevel()
    full.add_special_tokens(["<unk>", "<s>", "</s>"])
    write(out, HYBRID, full, chat=PLAIN_CHAT, bos="<s>", eos="</s>", longest=HYBRID["max_position_embeddings"])


def llama(source: Path, out: Path) -> None:
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    reader = GGUFReader(source)

    def value(name: str) -> Any:
        field = reader.fields.get(name)
        return None if field is None else field.contents()

    heads, kv_heads = value("llama.attention.head_count"), value("llama.attention.head_count_kv")
    tensors: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        data = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        name = hf_name(tensor.name)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            # the converter to GGUF interleaves the two halves of each rotary pair; here they go back
            count = heads if "q_proj" in name else kv_heads
            data = data.reshape(count, data.shape[0] // count // 2, 2, data.shape[1]).swapaxes(1, 2).reshape(data.shape)
        tensors[name] = data.to(torch.bfloat16).contiguous()
    tokens, kinds = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in value("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}"), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    bos, eos = value("tokenizer.ggml.bos_token_id"), value("tokenizer.ggml.eos_token_id")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": value("llama.embedding_length"),
        "intermediate_size": value("llama.feed_forward_length"),
        "num_hidden_layers": value("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": value("llama.embedding_length") // heads,
        "max_position_embeddings": value("llama.context_length"),
        "rope_theta": value("llama.rope.freq_base") or 10000.0,
        "rms_norm_eps": value("llama.attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "torch_dtype": "bfloat16",
        "dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": eos,
    }
    write(
        out,
        config,
        tokenizer,
        chat=value("tokenizer.chat_template"),
        bos=tokens[bos],
        eos=tokens[eos],
        longest=config["max_position_embeddings"],
    )
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})


def hf_name(name: str) -> str:
    """The name a tensor has in a Hugging Face folder."""
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    if name in top:
        return top[name]
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if found is None:
        raise SystemExit(f"{name}: no llama tensor")
    part = {
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }[found.group(2)]
    return f"model.layers.{found.group(1)}.{part}.weight"


def write(out: Path, config: dict[str, Any], tokenizer: Any, *, chat: str, bos: str, eos: str, longest: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(config, indent=1))
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": bos,
        "eos_token": eos,
        "model_max_length": longest,
        "chat_template": chat,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(about, indent=1))
    print(f"{out}: {config['model_type']}, {config['vocab_size']} tokens in the vocabulary")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kinds.add_parser("hybrid").add_argument("out", type=Path)
    real = kinds.add_parser("llama")
    real.add_argument("source", type=Path)
    real.add_argument("out", type=Path)
    asked = parser.parse_args()
    if asked.kind == "hybrid":
        hybrid(asked.out)
    else:
        llama(asked.source, asked.out)


if __name__ == "__main__":
    main()
