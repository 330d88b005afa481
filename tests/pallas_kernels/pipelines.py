"""What the interpreter cannot see in a pipeline, since it multiplies at once."""

import re

import jax

from lynx_jax.pallas_kernels.operand_tiles import IN_FLIGHT


def keeps_operands(function, arguments, stages):
    """Whether the tiles of a product stay in shared memory until it is known to be done.

    After the wait of step i comes the copy for step i + stages - IN_FLIGHT, if i >= IN_FLIGHT: into
    the buffer of step i - IN_FLIGHT, the last whose product is known to be done.
    """
    refilled = (
        rf"wgmma_wait\[n={IN_FLIGHT}\].*\n.* = add (\w+) {stages - IN_FLIGHT}:i32\[\]"
        rf".*\n.*\n.* = ge \1 {IN_FLIGHT}:i32\[\]"
    )
    return re.search(refilled, str(jax.make_jaxpr(function)(*arguments))) is not None
