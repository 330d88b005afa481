"""Batch-aware expert selection policies: which experts of a decode batch survive.

A policy is a small frozen value, static under ``jax.jit``. Given the scores of all rows it names
the surviving experts; ``lynx_jax.routing`` remaps every row into them.
"""

from lynx_jax.policies.demand import Demand
from lynx_jax.policies.lynx import Lynx
from lynx_jax.policies.oea import OEA
from lynx_jax.policies.policy import Policy, TopK
from lynx_jax.policies.xshare import XShare

__all__ = ["OEA", "Demand", "Lynx", "Policy", "TopK", "XShare"]
