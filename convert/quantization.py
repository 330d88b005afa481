"""Reading ``quantization_config`` of config.json."""

from collections.abc import Mapping
from typing import Any, NoReturn

from lynx_jax.convert.fp8 import BlockFp8
from lynx_jax.convert.int4 import Awq, Gptq
from lynx_jax.convert.mxfp4 import Mxfp4
from lynx_jax.convert.packing import Packing
from lynx_jax.errors import InputError

_METHODS = ("awq", "fp8", "gptq", "mxfp4")
# By what each version of the format stores zero points too low.
_GPTQ_FORMATS = {"gptq": 1, "gptq_v2": 0}


def read_packing(raw_config: Mapping[str, Any]) -> Packing | None:
    """The quantised form that config.json names, or None if it names none.

    Raises:
      InputError: the form is not supported, or its fields contradict it.
    """
    nested = raw_config.get("text_config")
    found = raw_config.get("quantization_config")
    if found is None and isinstance(nested, Mapping):
        found = nested.get("quantization_config")
    if found is None:
        return None
    if not isinstance(found, Mapping):
        raise InputError(f"config.json: expected quantization_config as an object, got {found!r}")
    match found.get("quant_method"):
        case "fp8":
            return _fp8(found)
        case "mxfp4":
            return Mxfp4()
        case "gptq":
            return _gptq(found)
        case "awq":
            return _awq(found)
    _refuse(found, "quant_method", f"one of {', '.join(_METHODS)}")


def without_packing(raw_config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """config.json of the same model in a plain form of this dtype."""
    plain = {name: value for name, value in raw_config.items() if name != "quantization_config"}
    if isinstance(nested := plain.get("text_config"), Mapping):
        plain["text_config"] = without_packing(nested, dtype)
    # transformers 4 and 5 name the field differently.
    plain["torch_dtype" if "torch_dtype" in plain else "dtype"] = dtype
    return plain


def _fp8(found: Mapping[str, Any]) -> BlockFp8:
    block = found.get("weight_block_size")
    sizes = block if isinstance(block, list) else []
    if len(sizes) != 2 or not all(type(n) is int and n >= 1 for n in sizes):
        _refuse(found, "weight_block_size", "two sizes of a block, such as [128, 128]")
    if found.get("fmt", "e4m3") != "e4m3":
        _refuse(found, "fmt", "'e4m3'")
    return BlockFp8((sizes[0], sizes[1]))


def _gptq(found: Mapping[str, Any]) -> Gptq:
    name = "checkpoint_format" if "checkpoint_format" in found else "format"
    form = found.get(name, "gptq")
    if form not in _GPTQ_FORMATS:
        _refuse(found, name, " or ".join(map(repr, _GPTQ_FORMATS)))
    return Gptq(_group_size(found), _GPTQ_FORMATS[form])


def _awq(found: Mapping[str, Any]) -> Awq:
    name = "version" if "version" in found else "format"
    if str(found.get(name, "gemm")).lower() != "gemm":
        _refuse(found, name, "'gemm'")
    if found.get("zero_point", True) is not True:
        _refuse(found, "zero_point", "true")
    return Awq(_group_size(found))


def _group_size(found: Mapping[str, Any]) -> int:
    if found.get("bits") != 4:
        _refuse(found, "bits", "4")
    size = found.get("group_size")
    if type(size) is not int or (size < 1 and size != -1):
        _refuse(found, "group_size", "the inputs of a group, or -1")
    return size


def _refuse(found: Mapping[str, Any], name: str, expected: str) -> NoReturn:
    raise InputError(
        f"config.json: expected quantization_config.{name} as {expected}, got "
        f"{found.get(name)!r}; use another copy of the checkpoint, such as one in bfloat16"
    )
