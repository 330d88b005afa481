"""Write a training checkpoint as a Hugging Face folder: bfloat16 weights, config, tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from demo_recipe import chat, dataset
from demo_recipe.trainer import CHECKPOINT, Settings, restore
from demo_recipe.training_model import Params, Shape

_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def named_tensors(params: Params, shape: Shape) -> dict[str, np.ndarray]:
    """The parameters under the names and in the layouts of a Qwen3-MoE checkpoint, float32."""
    tensors = {
        "model.embed_tokens.weight": params["embed"],
        "model.norm.weight": params["norm"],
    }
    query = shape.num_attention_heads * shape.head_dim
    key = shape.num_key_value_heads * shape.head_dim
    for index, layer in enumerate(params["layers"]):
        name = f"model.layers.{index}"
        q, k, v = np.split(np.asarray(layer["qkv"]), (query, query + key), axis=1)
        tensors |= {
            f"{name}.input_layernorm.weight": layer["input_norm"],
            f"{name}.post_attention_layernorm.weight": layer["post_norm"],
            f"{name}.self_attn.q_proj.weight": q.T,
            f"{name}.self_attn.k_proj.weight": k.T,
            f"{name}.self_attn.v_proj.weight": v.T,
            f"{name}.self_attn.o_proj.weight": np.asarray(layer["o"]).T,
            f"{name}.self_attn.q_norm.weight": layer["q_norm"],
            f"{name}.self_attn.k_norm.weight": layer["k_norm"],
            f"{name}.mlp.gate.weight": np.asarray(layer["gate"]).T,
        }
        gate_up, down = np.asarray(layer["gate_up"]), np.asarray(layer["down"])
        for expert in range(shape.num_experts):
            gate, up = np.split(gate_up[expert], 2)
            prefix = f"{name}.mlp.experts.{expert}"
            tensors[f"{prefix}.gate_proj.weight"] = gate
            tensors[f"{prefix}.up_proj.weight"] = up
            tensors[f"{prefix}.down_proj.weight"] = down[expert].T
    return {key: np.ascontiguousarray(value, np.float32) for key, value in tensors.items()}


def model_config(shape: Shape, end_of_text: int, end_of_turn: int) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "decoder_sparse_step": 1,
        "eos_token_id": [end_of_text, end_of_turn],
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": 2 * shape.hidden_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "mlp_only_layers": [],
        "moe_intermediate_size": shape.moe_intermediate_size,
        "norm_topk_prob": True,
        "num_attention_heads": shape.num_attention_heads,
        "num_experts": shape.num_experts,
        "num_experts_per_tok": shape.num_experts_per_tok,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_key_value_heads": shape.num_key_value_heads,
        "output_router_logits": False,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": shape.rope_theta,
        "router_aux_loss_coef": Settings.balance_weight,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": shape.vocab_size,
    }


def tokenizer_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """The content of tokenizer_config.json."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": {
            str(tokenizer.token_to_id(token)): {
                "content": token,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for token in dataset.SPECIALS
        },
        "bos_token": None,
        "chat_template": _TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": chat.END,
        "model_max_length": Shape.max_position_embeddings,
        "pad_token": dataset.END_OF_TEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def export(
    work: Path, target: Path, settings: Settings | None = None, *, data: Path | None = None
) -> int:
    """Write ``work``'s checkpoint to ``target``; returns the step it was taken at.

    ``data`` is the folder with the tokenizer that it was trained with, ``work/data`` if not given.
    """
    settings = settings or Settings()
    tokenizer_file = (data or work / "data") / "tokenizer.json"
    state = restore(work / CHECKPOINT, settings)
    target.mkdir(parents=True, exist_ok=True)
    tensors = named_tensors(state.params, settings.shape)
    rounded = {name: value.astype(ml_dtypes.bfloat16) for name, value in tensors.items()}
    metadata = {"format": "pt", "step": str(int(state.step)), "tokens": str(int(state.tokens))}
    save_file(rounded, target / "model.safetensors", metadata)
    (target / "model.safetensors").chmod(0o644)
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    shutil.copy(tokenizer_file, target / "tokenizer.json")
    ends = tokenizer.token_to_id(dataset.END_OF_TEXT), tokenizer.token_to_id(chat.END)
    generation = {"do_sample": False, "eos_token_id": list(ends), "pad_token_id": ends[0]}
    _write(target / "config.json", model_config(settings.shape, *ends))
    _write(target / "tokenizer_config.json", tokenizer_config(tokenizer))
    _write(target / "generation_config.json", generation)
    return int(state.step)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
