"""``python -m lynx_jax.evaluate``: what policies cost a model; see ``lynx_jax.evaluation``."""

from lynx_jax.evaluation.cli import main

if __name__ == "__main__":
    main()
