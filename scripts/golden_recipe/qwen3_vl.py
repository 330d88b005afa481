"""Config of the tiny Qwen3-VL-MoE checkpoints."""

# Layer 1 is dense. The text part says that the head is tied; the whole, which decides, that not.
_TEXT = {
    "vocab_size": 173,
    "hidden_size": 30,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 22,
    "moe_intermediate_size": 9,
    "num_experts": 11,
    "num_experts_per_tok": 3,
    "mlp_only_layers": [1],
    "max_position_embeddings": 96,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 5e4,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}

QWEN3_VL = {
    "text_config": _TEXT,
    "vision_config": {
        "depth": 1,
        "hidden_size": 8,
        "num_heads": 2,
        "intermediate_size": 12,
        "patch_size": 4,
        "out_hidden_size": 30,
        "num_position_embeddings": 4,
        "deepstack_visual_indexes": [0],
    },
    "tie_word_embeddings": False,
}
