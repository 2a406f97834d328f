"""The same run under Ray Train: Ray starts the processes, connects them, and starts them again when one fails.

    pip install 'ray[train]'
    python examples/clusters/ray_train.py --workers 8 --storage /shared/elastic

JaxTrainer connects JAX's processes itself before it calls the function below; `sbp.distributed.initialize()` then
finds them connected. It needs Ray's second version of Train, and a Ray that knows GPUs with JAX; with TPUs give
`--topology` and `--accelerator`.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

EXAMPLES = str(Path(__file__).resolve().parents[1])


def train(config: dict[str, Any]) -> None:
    """Runs in every worker. Whatever needs JAX is imported here."""
    sys.path.insert(0, EXAMPLES)
    sys.argv = ["elastic.py", "--folder", config["storage"], "--steps", str(config["steps"])]
    import elastic

    elastic.main()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--workers", type=int, default=8)
    options.add_argument("--storage", required=True, help="a folder that all workers share")
    options.add_argument("--steps", type=int, default=100_000)
    options.add_argument("--topology", help="of TPUs, such as 4x4; without it each worker has a GPU")
    options.add_argument("--accelerator", help="of TPUs, such as TPU-V6E")
    args = options.parse_args()

    from ray.train import FailureConfig, RunConfig, ScalingConfig  # pyright: ignore[reportMissingImports]
    from ray.train.v2.jax import JaxTrainer  # pyright: ignore[reportMissingImports]

    if args.topology:
        scaling = ScalingConfig(
            num_workers=args.workers, use_tpu=True, topology=args.topology, accelerator_type=args.accelerator
        )
    else:
        scaling = ScalingConfig(num_workers=args.workers, use_gpu=True)
    trainer = JaxTrainer(
        train,
        train_loop_config={"storage": args.storage, "steps": args.steps},
        scaling_config=scaling,
        run_config=RunConfig(storage_path=args.storage, failure_config=FailureConfig(max_failures=10)),
    )
    print(trainer.fit())


if __name__ == "__main__":
    main()
