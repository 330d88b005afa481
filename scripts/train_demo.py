"""Make the demo model: fetch its text, train it, export it to ``lynx_jax/demo``.

    python scripts/train_demo.py data WORK             # fetch packages, train the tokenizer
    python scripts/train_demo.py fresh WORK            # after data: more text it has not seen
    python scripts/train_demo.py train WORK            # train, or go on from the checkpoint
    python scripts/train_demo.py export WORK TARGET    # write a Hugging Face folder
    python scripts/train_demo.py evaluate WORK TARGET  # measure it, write its card
    python scripts/train_demo.py study WORK LOGS       # small models of other ratios k/N

Training needs the extra ``train``, about 3 GB of memory and some hours on two cores.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lynx_jax.arguments import Parser

# Large buffers are made and freed at every step. Kept by the allocator, on huge pages, they cost
# no page faults; a step is then twice as fast.
_ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "536870912",
    "XLA_FLAGS": "--xla_cpu_prefer_vector_width=512",
}


def _restart_with_environment() -> None:
    if sys.platform == "linux" and "MALLOC_TOP_PAD_" not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], {**_ENVIRONMENT, **os.environ})


def _parser() -> Parser:
    parser = Parser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("data", "fetch and prepare the text"),
        ("fresh", "prepare more text that the model has not seen"),
        ("train", "train or resume"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("work", type=Path, help="folder of the run")
        if name == "train":
            command.add_argument("--steps", type=int, help="steps of the whole schedule")
            command.add_argument("--checkpoint-seconds", type=float, default=300.0)
    study = commands.add_parser("study", help="train the study's models and export them")
    study.add_argument("work", type=Path, help="folder of the run")
    study.add_argument("logs", type=Path, help="folder that the logs are copied to")
    study.add_argument("--checkpoint-seconds", type=float, default=120.0)
    for name, text in (
        ("export", "write the checkpoint as a Hugging Face folder"),
        ("evaluate", "measure an exported folder and write its card"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("work", type=Path, help="folder of the run")
        command.add_argument("target", type=Path, help="folder of the exported model")
    return parser


def main() -> None:
    """Run one command."""
    arguments = _parser().parse_args()
    work: Path = arguments.work
    if arguments.command == "data":
        from demo_recipe import corpus, dataset

        corpus.fetch(work / "packages")
        dataset.prepare(work / "packages", work / "data")
    elif arguments.command == "fresh":
        from demo_recipe import fresh

        fresh.fetch(work / "packages")
        print(fresh.prepare(work / "packages", work / "data"))
    elif arguments.command == "train":
        _restart_with_environment()
        from demo_recipe.trainer import Settings, Trainer

        settings = Settings() if arguments.steps is None else Settings(steps=arguments.steps)
        trainer = Trainer(
            work / "data", work, settings, checkpoint_seconds=arguments.checkpoint_seconds
        )
        trainer.run()
    elif arguments.command == "export":
        from demo_recipe.export import export

        print(f"step {export(work, arguments.target)}")
    elif arguments.command == "study":
        _restart_with_environment()
        from demo_recipe import study

        for k, num_experts in study.ROUTERS:
            seconds = arguments.checkpoint_seconds
            print(study.train(work, arguments.logs, k, num_experts, checkpoint_seconds=seconds))
    else:
        from demo_recipe import card, evaluate

        results = evaluate.evaluate(arguments.target, work / "data")
        text = card.model_card(work, *evaluate.trained(arguments.target), results)
        (arguments.target / "README.md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
