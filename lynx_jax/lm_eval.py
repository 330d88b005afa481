"""``python -m lynx_jax.lm_eval``: lm-eval's own command line, with the model ``lynx_jax`` known.

    python -m lynx_jax.lm_eval run --model lynx_jax --model_args path=demo,policy=lynx --tasks ...

lm-eval looks for models in a table of its own, so a plain ``lm_eval`` does not find this one.
"""

import sys
from typing import NoReturn

from lynx_jax.errors import InputError


def main() -> NoReturn:
    """Run lm-eval; exit code 2 and one line for input that the user can mend."""
    try:
        from lm_eval.__main__ import cli_evaluate

        import lynx_jax.lm_eval_model  # noqa: F401 - registers the model
    except ModuleNotFoundError as e:
        sys.exit(_refuse(f"{e.name} is not installed; install lynx-jax with the extra 'lm-eval'"))
    try:
        cli_evaluate()
    except InputError as e:
        sys.exit(_refuse(str(e)))
    sys.exit(0)


def _refuse(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
