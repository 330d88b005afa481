"""Build the tiny reference checkpoints and their expected outputs in tests/golden.

Runs in an environment of its own, beside the project, since the tests need none of it:

    python3.11 -m venv golden-env
    golden-env/bin/pip install torch==2.13.0 transformers==5.24.0
    golden-env/bin/python scripts/make_golden.py

The seeds are fixed: where versions and processor are the same, so are the files.
"""

import argparse
import json
import platform
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from golden_recipe.cases import CASES, CHECKPOINTS, Case
from golden_recipe.chats import CHAT_FORMATS, expected_chats, write_chat
from golden_recipe.reference import expected_outputs, save_checkpoint
from golden_recipe.texts import expected_texts, write_tokenizer
from safetensors.numpy import save_file

_DEFAULT = Path(__file__).parent.parent / "tests" / "golden"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=_DEFAULT)
    output = parser.parse_args().output
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    for checkpoint in CHECKPOINTS:
        folder = output / checkpoint.name
        shutil.rmtree(folder, ignore_errors=True)
        save_checkpoint(checkpoint, folder)
        if checkpoint.tokenizer is not None:
            write_tokenizer(checkpoint.tokenizer, folder)
    for name in ("configs", "expected"):
        (output / name).mkdir(exist_ok=True)
    _write_texts(output)
    _write_chats(output)
    _write_cases(output)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    print(f"{len(CASES)} cases, {size / 1e6:.1f} MB in {output}")


def _write_texts(output: Path) -> None:
    for kind in sorted({c.tokenizer for c in CHECKPOINTS if c.tokenizer is not None}):
        folder = next(c.name for c in CHECKPOINTS if c.tokenizer == kind)
        texts = {"folder": folder, **expected_texts(kind, output / folder)}
        _write_json(output / "expected" / f"{kind}.json", texts)


def _write_chats(output: Path) -> None:
    for chat in CHAT_FORMATS:
        folder = output / "chat" / chat.name
        write_chat(chat, folder)
        _write_json(folder / "expected.json", expected_chats(chat, folder))


def _write_cases(output: Path) -> None:
    written: dict[str, dict[str, np.ndarray]] = {}
    listed = []
    for case in CASES:
        found = _run(case, output)
        if case.expected not in written:
            written[case.expected] = found
            save_file(found, output / "expected" / f"{case.expected}.safetensors")
        _check_same(case, found, written[case.expected])
        config = None if case.change is None else f"configs/{case.name}.json"
        listed.append(
            {
                "name": case.name,
                "folder": case.folder,
                "config": config,
                "expected": f"expected/{case.expected}.safetensors",
            }
        )
    versions = {
        "python": platform.python_version(),
        "tokenizers": tokenizers.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    _write_json(output / "manifest.json", {"made_with": versions, "cases": listed})


def _run(case: Case, output: Path) -> dict[str, np.ndarray]:
    """What transformers computes for a case; writes the case's config where it has its own."""
    folder = output / case.folder
    if case.change is None:
        return expected_outputs(folder)
    config = json.loads((folder / "config.json").read_text())
    case.change(config)
    _write_json(output / "configs" / f"{case.name}.json", config)
    with tempfile.TemporaryDirectory() as name:
        changed = shutil.copytree(folder, Path(name) / "checkpoint")
        _write_json(changed / "config.json", config)
        return expected_outputs(changed)


def _check_same(case: Case, found: dict[str, np.ndarray], shared: dict[str, np.ndarray]) -> None:
    """Cases that share a file of outputs must agree to the last bit."""
    assert found.keys() == shared.keys(), case.name
    for name, array in found.items():
        np.testing.assert_array_equal(array, shared[name], err_msg=f"{case.name}: {name}")


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    lists_of_ids = re.compile(r"\[[\d,\s]+\]")
    path.write_text(lists_of_ids.sub(lambda ids: " ".join(ids[0].split()), text) + "\n")


if __name__ == "__main__":
    main()
