"""Compiling for an NVIDIA H200 on a machine without one."""
