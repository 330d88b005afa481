"""Checkpoints: reading Hugging Face and converted folders, and converting one into the other.

The readers give the tensors of a checkpoint one at a time, in one canonical form; the converter
writes them to Orbax, and ``lynx_jax.load`` puts them into a model.
"""
