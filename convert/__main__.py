from lynx_jax.convert.cli import main

main()
