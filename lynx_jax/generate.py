"""``python -m lynx_jax.generate``. In Python, ``lynx_jax.generate`` is the function."""

from lynx_jax.generate_cli import main

if __name__ == "__main__":
    main()
