"""Array-level primitives of a Mixture-of-Experts decode step.

One file a primitive, each with its plain-JAX form. The plain forms run on any device and are the
references that a GPU kernel of the same signature is tested against.
"""
