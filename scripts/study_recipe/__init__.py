"""Constants of policies and ratios k/N: what ``scripts/study_constants.py`` is made of."""
