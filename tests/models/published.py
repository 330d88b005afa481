"""Configs of published checkpoints, and what their files hold, name by name.

The lists are written down from how the files are laid out, apart from the package's own tables.
Parameter counts are those that the model hubs state; ``elements`` counts what is stored: scales of
quantised weights and layers of multi-token prediction too, and packed 4-bit values singly.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

type Tensor = tuple[str, str, tuple[int, ...]]  # name, dtype code of safetensors, shape
type Listing = Callable[[dict[str, Any]], Iterator[Tensor]]


@dataclass(frozen=True)
class Published:
    """A checkpoint.

    Attributes:
      config: what the model needs of its config.json.
      parameters: of the model.
      listing: every tensor of the files.
      elements: values stored in the files where they differ from the parameters.
      tensors: how many tensors they hold, where that is known.
    """

    config: dict[str, Any]
    parameters: int
    listing: Listing
    elements: int | None = None
    tensors: int | None = None


def count_elements(tensors: list[Tensor]) -> int:
    """Values in the tensors; a byte of packed 4-bit values counts as two."""
    packed = ("_blocks",)
    return sum(math.prod(shape) * (2 if name.endswith(packed) else 1) for name, _, shape in tensors)


def bfloat16(name: str, *shape: int) -> Tensor:
    return name, "BF16", shape


def ends(c: dict[str, Any], *, decoder: str = "model.", head: str = "") -> Iterator[Tensor]:
    """Embedding, last norm and output head."""
    width, vocab = c["hidden_size"], c["vocab_size"]
    yield bfloat16(f"{decoder}embed_tokens.weight", vocab, width)
    yield bfloat16(f"{decoder}norm.weight", width)
    yield bfloat16(f"{head}lm_head.weight", vocab, width)


def norms(c: dict[str, Any], layer: str) -> Iterator[Tensor]:
    yield bfloat16(f"{layer}.input_layernorm.weight", c["hidden_size"])
    yield bfloat16(f"{layer}.post_attention_layernorm.weight", c["hidden_size"])


def attention(c: dict[str, Any], layer: str, *, biases: str = "") -> Iterator[Tensor]:
    """Grouped-query attention; ``biases`` are letters of the projections that have one."""
    width, heads = c["hidden_size"], c["num_attention_heads"]
    head = c.get("head_dim") or width // heads
    query, key = heads * head, c["num_key_value_heads"] * head
    shapes = {"q": (query, width), "k": (key, width), "v": (key, width), "o": (width, query)}
    for letter, shape in shapes.items():
        yield bfloat16(f"{layer}.self_attn.{letter}_proj.weight", *shape)
        if letter in biases:
            yield bfloat16(f"{layer}.self_attn.{letter}_proj.bias", shape[0])


def mlp(
    name: str, width: int, hidden: int, names: str = "gate_proj up_proj down_proj"
) -> Iterator[Tensor]:
    gate, up, down = names.split()
    yield bfloat16(f"{name}.{gate}.weight", hidden, width)
    yield bfloat16(f"{name}.{up}.weight", hidden, width)
    yield bfloat16(f"{name}.{down}.weight", width, hidden)


def layers(c: dict[str, Any], decoder: str = "model.") -> list[str]:
    return [f"{decoder}layers.{i}" for i in range(c["num_hidden_layers"])]


def mixtral(c: dict[str, Any]) -> Iterator[Tensor]:
    width, experts = c["hidden_size"], c["num_local_experts"]
    yield from ends(c)
    for layer in layers(c):
        yield from norms(c, layer)
        yield from attention(c, layer)
        moe = f"{layer}.block_sparse_moe"
        yield bfloat16(f"{moe}.gate.weight", experts, width)
        for e in range(experts):
            yield from mlp(f"{moe}.experts.{e}", width, c["intermediate_size"], "w1 w3 w2")


def _experts(layer: str, experts: int, width: int, hidden: int) -> Iterator[Tensor]:
    yield bfloat16(f"{layer}.mlp.gate.weight", experts, width)
    for e in range(experts):
        yield from mlp(f"{layer}.mlp.experts.{e}", width, hidden)


def qwen2_moe(c: dict[str, Any]) -> Iterator[Tensor]:
    width, shared = c["hidden_size"], c["shared_expert_intermediate_size"]
    yield from ends(c)
    for layer in layers(c):
        yield from norms(c, layer)
        yield from attention(c, layer, biases="qkv")
        yield from _experts(layer, c["num_experts"], width, c["moe_intermediate_size"])
        yield from mlp(f"{layer}.mlp.shared_expert", width, shared)
        yield bfloat16(f"{layer}.mlp.shared_expert_gate.weight", 1, width)


def qwen3_moe(c: dict[str, Any]) -> Iterator[Tensor]:
    yield from ends(c)
    for layer in layers(c):
        yield from norms(c, layer)
        yield from attention(c, layer)
        yield bfloat16(f"{layer}.self_attn.q_norm.weight", c["head_dim"])
        yield bfloat16(f"{layer}.self_attn.k_norm.weight", c["head_dim"])
        yield from _experts(layer, c["num_experts"], c["hidden_size"], c["moe_intermediate_size"])


def qwen3_vl_moe(c: dict[str, Any]) -> Iterator[Tensor]:
    """The text model inside the multimodal files, experts as inputs by outputs, and the vision."""
    text = c["text_config"]
    experts, width, hidden = (
        text["num_experts"],
        text["hidden_size"],
        text["moe_intermediate_size"],
    )
    for name, code, shape in qwen3_moe(text):
        if ".experts." not in name:
            yield name.replace("model.", "model.language_model.", 1), code, shape
    for layer in layers(text, "model.language_model."):
        yield bfloat16(f"{layer}.mlp.experts.gate_up_proj", experts, width, 2 * hidden)
        yield bfloat16(f"{layer}.mlp.experts.down_proj", experts, hidden, width)
    yield from _qwen3_vision(width)


def _qwen3_vision(text_width: int) -> Iterator[Tensor]:
    def affine(name: str, outputs: int, *inputs: int) -> Iterator[Tensor]:
        yield bfloat16(f"model.visual.{name}.weight", outputs, *inputs)
        yield bfloat16(f"model.visual.{name}.bias", outputs)

    yield from affine("patch_embed.proj", 1152, 3, 2, 16, 16)
    yield bfloat16("model.visual.pos_embed.weight", 2304, 1152)
    for i in range(27):
        yield from affine(f"blocks.{i}.norm1", 1152)
        yield from affine(f"blocks.{i}.norm2", 1152)
        yield from affine(f"blocks.{i}.attn.qkv", 3456, 1152)
        yield from affine(f"blocks.{i}.attn.proj", 1152, 1152)
        yield from affine(f"blocks.{i}.mlp.linear_fc1", 4304, 1152)
        yield from affine(f"blocks.{i}.mlp.linear_fc2", 1152, 4304)
    mergers = {"merger": 1152} | {f"deepstack_merger_list.{i}": 4608 for i in range(3)}
    for merger, normed in mergers.items():
        yield from affine(f"{merger}.norm", normed)
        yield from affine(f"{merger}.linear_fc1", 4608, 4608)
        yield from affine(f"{merger}.linear_fc2", text_width, 4608)


def olmoe(c: dict[str, Any]) -> Iterator[Tensor]:
    width = c["hidden_size"]
    yield from ends(c)
    for layer in layers(c):
        yield from norms(c, layer)
        yield from attention(c, layer)
        yield bfloat16(f"{layer}.self_attn.q_norm.weight", width)
        yield bfloat16(f"{layer}.self_attn.k_norm.weight", width)
        yield from _experts(layer, c["num_experts"], width, c["intermediate_size"])


def latent_attention(c: dict[str, Any], layer: str) -> Iterator[Tensor]:
    width, heads, latent = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    content, rotary, value = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    queries, rank = heads * (content + rotary), c["q_lora_rank"]
    if rank is None:
        yield bfloat16(f"{layer}.self_attn.q_proj.weight", queries, width)
    else:
        yield bfloat16(f"{layer}.self_attn.q_a_proj.weight", rank, width)
        yield bfloat16(f"{layer}.self_attn.q_a_layernorm.weight", rank)
        yield bfloat16(f"{layer}.self_attn.q_b_proj.weight", queries, rank)
    yield bfloat16(f"{layer}.self_attn.kv_a_proj_with_mqa.weight", latent + rotary, width)
    yield bfloat16(f"{layer}.self_attn.kv_a_layernorm.weight", latent)
    yield bfloat16(f"{layer}.self_attn.kv_b_proj.weight", heads * (content + value), latent)
    yield bfloat16(f"{layer}.self_attn.o_proj.weight", width, heads * value)


def _deepseek_layer(c: dict[str, Any], layer: str, *, dense: bool) -> Iterator[Tensor]:
    width, hidden, experts = c["hidden_size"], c["moe_intermediate_size"], c["n_routed_experts"]
    yield from norms(c, layer)
    yield from latent_attention(c, layer)
    if dense:
        yield from mlp(f"{layer}.mlp", width, c["intermediate_size"])
        return
    yield from _experts(layer, experts, width, hidden)
    yield from mlp(f"{layer}.mlp.shared_experts", width, hidden * c["n_shared_experts"])
    if c["model_type"] == "deepseek_v3":
        yield f"{layer}.mlp.gate.e_score_correction_bias", "F32", (experts,)


def deepseek(c: dict[str, Any]) -> Iterator[Tensor]:
    yield from ends(c)
    for i, layer in enumerate(layers(c)):
        yield from _deepseek_layer(c, layer, dense=i < c["first_k_dense_replace"])


def deepseek_v3(c: dict[str, Any]) -> Iterator[Tensor]:
    """In blocks of float8, with the layer of multi-token prediction behind the last."""
    width, extra = c["hidden_size"], f"model.layers.{c['num_hidden_layers']}"
    yield from block_fp8("F32")(deepseek)(c)
    yield from block_fp8("F32")(lambda c: _deepseek_layer(c, extra, dense=False))(c)
    yield bfloat16(f"{extra}.embed_tokens.weight", c["vocab_size"], width)
    yield bfloat16(f"{extra}.enorm.weight", width)
    yield bfloat16(f"{extra}.hnorm.weight", width)
    yield bfloat16(f"{extra}.eh_proj.weight", width, 2 * width)
    yield bfloat16(f"{extra}.shared_head.norm.weight", width)
    yield bfloat16(f"{extra}.shared_head.head.weight", c["vocab_size"], width)


def block_fp8(scale: str) -> Callable[[Listing], Listing]:
    """A list with its projections in float8 and scales of this dtype for blocks of 128 by 128."""
    kept = ("norm.weight", "embed_tokens.weight", "lm_head.weight", ".gate.weight", "_bias")

    def packed(listing: Listing) -> Listing:
        def tensors(c: dict[str, Any]) -> Iterator[Tensor]:
            for name, code, shape in listing(c):
                if name.endswith(kept):
                    yield name, code, shape
                else:
                    yield name, "F8_E4M3", shape
                    yield f"{name}_scale_inv", scale, tuple(-(-n // 128) for n in shape)

        return tensors

    return packed


def llama4(c: dict[str, Any]) -> Iterator[Tensor]:
    """The text model inside the multimodal files, with vision tower and projector."""
    text, model = c["text_config"], "language_model.model."
    width, hidden, experts = (
        text["hidden_size"],
        text["intermediate_size"],
        text["num_local_experts"],
    )
    step = text["interleave_moe_layer_step"]
    yield from ends(text, decoder=model, head="language_model.")
    for i, layer in enumerate(layers(text, model)):
        yield from norms(text, layer)
        yield from attention(text, layer)
        moe = f"{layer}.feed_forward"
        if (i + 1) % step:
            yield from mlp(moe, width, text["intermediate_size_mlp"])
            continue
        yield bfloat16(f"{moe}.router.weight", experts, width)
        yield bfloat16(f"{moe}.experts.gate_up_proj", experts, width, 2 * hidden)
        yield bfloat16(f"{moe}.experts.down_proj", experts, hidden, width)
        yield from mlp(f"{moe}.shared_expert", width, hidden)
    yield from _llama4_vision()


def _llama4_vision() -> Iterator[Tensor]:
    def affine(name: str, outputs: int, *inputs: int) -> Iterator[Tensor]:
        yield bfloat16(f"vision_model.{name}.weight", outputs, *inputs)
        yield bfloat16(f"vision_model.{name}.bias", outputs)

    yield bfloat16("vision_model.class_embedding", 1408)
    yield bfloat16("vision_model.positional_embedding_vlm", 577, 1408)
    yield bfloat16("vision_model.patch_embedding.linear.weight", 1408, 588)
    yield from affine("layernorm_pre", 1408)
    yield from affine("layernorm_post", 1408)
    for i in range(34):
        layer = f"model.layers.{i}"
        for letter in "qkvo":
            yield from affine(f"{layer}.self_attn.{letter}_proj", 1408, 1408)
        yield from affine(f"{layer}.mlp.fc1", 5632, 1408)
        yield from affine(f"{layer}.mlp.fc2", 1408, 5632)
        yield from affine(f"{layer}.input_layernorm", 1408)
        yield from affine(f"{layer}.post_attention_layernorm", 1408)
    yield bfloat16("vision_model.vision_adapter.mlp.fc1.weight", 4096, 5632)
    yield bfloat16("vision_model.vision_adapter.mlp.fc2.weight", 4096, 4096)
    yield bfloat16("multi_modal_projector.linear_1.weight", 5120, 4096)


def gpt_oss(c: dict[str, Any]) -> Iterator[Tensor]:
    """Experts in blocks of 32 values of 4 bits, 16 bytes each, with a scale a block."""
    width, hidden, experts = c["hidden_size"], c["intermediate_size"], c["num_local_experts"]
    yield from ends(c)
    for layer in layers(c):
        yield from norms(c, layer)
        yield from attention(c, layer, biases="qkvo")
        yield bfloat16(f"{layer}.self_attn.sinks", c["num_attention_heads"])
        yield bfloat16(f"{layer}.mlp.router.weight", experts, width)
        yield bfloat16(f"{layer}.mlp.router.bias", experts)
        shapes = {"gate_up": (2 * hidden, width), "down": (width, hidden)}
        for name, (outputs, inputs) in shapes.items():
            projection = f"{layer}.mlp.experts.{name}_proj"
            yield f"{projection}_blocks", "U8", (experts, outputs, inputs // 32, 16)
            yield f"{projection}_scales", "U8", (experts, outputs, inputs // 32)
            yield bfloat16(f"{projection}_bias", experts, outputs)


def phimoe(c: dict[str, Any]) -> Iterator[Tensor]:
    width, experts = c["hidden_size"], c["num_local_experts"]
    yield from ends(c)
    yield bfloat16("model.norm.bias", width)
    yield bfloat16("lm_head.bias", c["vocab_size"])
    for layer in layers(c):
        yield from norms(c, layer)
        yield bfloat16(f"{layer}.input_layernorm.bias", width)
        yield bfloat16(f"{layer}.post_attention_layernorm.bias", width)
        yield from attention(c, layer, biases="qkvo")
        moe = f"{layer}.block_sparse_moe"
        yield bfloat16(f"{moe}.gate.weight", experts, width)
        for e in range(experts):
            yield from mlp(f"{moe}.experts.{e}", width, c["intermediate_size"], "w1 w3 w2")
