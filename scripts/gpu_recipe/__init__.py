"""What ``gpu_check.py`` checks and times on a GPU: one module a section."""
