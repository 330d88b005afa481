"""Random models of the transformers library, and what they compute in float32."""

import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

from golden_recipe.cases import ROWS, TOKENS, Checkpoint

# Small, so that the epsilon of the first norm tells; a tied embedding is also the output head.
_EMBEDDING, _TIED_EMBEDDING = 0.02, 0.15
# Router logits spread as a trained model's do, so that choices are far from ties.
_ROUTER_GAIN = 2.0
# Of the sigmoid scores' own size, so that it changes choices and makes some biased scores negative.
_SELECTION_BIAS = 0.4
_BIAS = 0.5
# Some activations of gpt-oss reach the limits at which they are clamped; they go down again.
_CLAMPED_GAIN = 3.0


def save_checkpoint(checkpoint: Checkpoint, folder: Path) -> None:
    """Save a model with random weights as transformers does."""
    config = getattr(transformers, checkpoint.config_class)(**checkpoint.config)
    model = getattr(transformers, checkpoint.auto_class).from_config(config)
    _randomize(model, checkpoint.seed_name, tied=config.tie_word_embeddings)
    model = model.to(torch.bfloat16 if checkpoint.bfloat16 else torch.float32)
    config = config.get_text_config()
    if config.pad_token_id is not None:  # as Qwen3 is published: padding ends a text, too
        model.generation_config.eos_token_id = [config.eos_token_id, config.pad_token_id]
    model.save_pretrained(
        folder,
        max_shard_size=checkpoint.max_shard_size,
        save_original_format=not checkpoint.fused,
    )
    if checkpoint.flipped:
        _flip_experts(folder / "model.safetensors")


def _flip_experts(file: Path) -> None:
    """Exchange inputs and outputs of the experts in a file."""
    tensors = load_file(file)
    for name, x in tensors.items():
        if ".experts." in name:
            tensors[name] = x.transpose(1, 2).contiguous()
    save_file(tensors, file, {"format": "pt"})


def expected_outputs(folder: Path) -> dict[str, np.ndarray]:
    """What the model of a folder computes for random ids.

    Returns:
      ``input_ids`` [rows, tokens] int32, ``logits`` [rows, tokens, vocab]; for every layer i
      ``hidden.i`` [rows, tokens, width], the stream behind it; for every sparse layer also
      ``router_logits.i`` [rows, tokens, experts], ``expert_ids.i`` int32 and ``expert_weights.i``
      [rows, tokens, k]. All others float32.
    """
    model = (
        _auto_class(folder)
        .from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        .eval()
    )
    config = model.config.get_text_config()
    random = np.random.default_rng(0)
    ids = random.integers(0, config.vocab_size, (ROWS, TOKENS))
    found: dict[str, torch.Tensor] = {}
    decoder = getattr(model.model, "language_model", model.model)
    for index, layer in enumerate(decoder.layers):
        layer.register_forward_hook(_keeper(found, f"hidden.{index}"))
        mlp = layer.mlp if hasattr(layer, "mlp") else layer.feed_forward
        if hasattr(mlp, "experts"):
            router = mlp.gate if hasattr(mlp, "gate") else mlp.router
            router.register_forward_hook(
                _keeper(
                    found,
                    f"router_logits.{index}",
                    f"expert_weights.{index}",
                    f"expert_ids.{index}",
                )
            )
    with torch.no_grad():
        found["logits"] = model(torch.from_numpy(ids)).logits
    outputs = {name: _numpy(x).reshape(ROWS, TOKENS, -1) for name, x in found.items()}
    return {"input_ids": ids.astype(np.int32), **outputs}


def _auto_class(folder: Path) -> Any:
    """The class that reads a folder: of text where there is one, else of text with pictures."""
    config = transformers.AutoConfig.from_pretrained(folder)
    if type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        return transformers.AutoModelForCausalLM
    return transformers.AutoModelForImageTextToText


def _randomize(model: torch.nn.Module, seed_name: str, *, tied: bool) -> None:
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        noise = _noise(seed_name, name, parameter.shape)
        if name.endswith(("bias", "sinks")):
            noise *= _BIAS
        elif parameter.ndim == 1:  # a norm
            noise = 1 + 0.2 * noise
        elif "embed_tokens" in name:
            noise *= _TIED_EMBEDDING if tied else _EMBEDDING
        else:
            gain = _ROUTER_GAIN if name.endswith(("mlp.gate.weight", "router.weight")) else 1.0
            inputs = parameter.shape[-1]
            if f"{name}_bias" in parameters:  # experts of gpt-oss
                inputs = parameter.shape[-2]
                gain = _CLAMPED_GAIN if "gate_up" in name else _CLAMPED_GAIN**-2
            noise *= gain / math.sqrt(inputs)
        parameter.data.copy_(torch.from_numpy(noise))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            noise = _noise(seed_name, name, buffer.shape)
            buffer.copy_(torch.from_numpy(_SELECTION_BIAS * noise))


def _noise(seed_name: str, name: str, shape: Sequence[int]) -> np.ndarray:
    random = np.random.default_rng([zlib.crc32(seed_name.encode()), zlib.crc32(name.encode())])
    return random.standard_normal(tuple(shape), np.float32)


def _keeper(found: dict[str, torch.Tensor], *names: str):
    def keep(module, _arguments, output):
        outputs = output if isinstance(output, tuple) else (output,)
        if type(module).__name__ == "Llama4Router":  # scores that are 0 where not chosen, logits
            scores, logits = output
            outputs = (logits, *torch.topk(scores, module.top_k))
        found.update(zip(names, outputs, strict=True))

    return keep


def _numpy(x: torch.Tensor) -> np.ndarray:
    return x.numpy().astype(np.int32 if x.dtype == torch.int64 else np.float32)
