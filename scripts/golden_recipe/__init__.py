"""What ``make_golden.py`` builds: checkpoints, the reference's numbers, tokenizers."""
