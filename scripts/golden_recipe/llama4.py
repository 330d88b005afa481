"""Configs of the tiny Llama-4 checkpoints, text alone and multimodal."""

# As Scout has it since it was corrected: no frequencies between the kept and the divided ones.
_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 1.0,
    "original_max_position_embeddings": 12,
}

# Chunks of 5 tokens, queries that grow every 4, an epsilon that tells in the norm of queries.
LLAMA4_TEXT = {
    "vocab_size": 337,
    "hidden_size": 26,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 11,
    "num_local_experts": 7,
    "use_qk_norm": True,
    "attention_chunk_size": 5,
    "floor_scale": 4,
    "attn_scale": 0.7,
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-2,
    "rope_parameters": _ROPE,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
}

# Layers 1 and 3 are sparse, layer 2 has no rotary embedding, and Scout's scaling is the first one
# that was published; there is a vision tower, which text does without.
LLAMA4 = {
    "text_config": LLAMA4_TEXT
    | {
        "model_type": "llama4_text",
        "vocab_size": 349,
        "hidden_size": 28,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "head_dim": 10,
        "intermediate_size": 9,
        "intermediate_size_mlp": 22,
        "num_local_experts": 6,
        "interleave_moe_layer_step": 2,
        "no_rope_layers": [1, 1, 0, 1],
        "use_qk_norm": False,
        "rope_parameters": _ROPE | {"factor": 8.0, "high_freq_factor": 4.0},
    },
    "vision_config": {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vision_output_dim": 16,
        "image_size": 28,
        "patch_size": 14,
        "projector_input_dim": 16,
        "projector_output_dim": 16,
    },
}
