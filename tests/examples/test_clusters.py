"""The examples for clusters cannot run here: they are read, and their commands are ones that the programs know."""

import argparse
import ast
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from sbp_jax.distributed.launch.options import add_arguments

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "examples" / "clusters"


def elastic_options() -> set[str]:
    return set(re.findall(r'add_argument\("(--\w+)"', (ROOT / "examples" / "elastic.py").read_text()))


def test_slurm() -> None:
    script = CLUSTERS / "slurm.sbatch"
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    text = script.read_text()
    line = next(line for line in text.splitlines() if line.startswith("srun "))
    words = shlex.split(line)
    program = words.index("examples/elastic.py")
    assert {word for word in words[program:] if word.startswith("--")} <= elastic_options()
    directives = re.findall(r"^#SBATCH (--[\w-]+)", text, re.MULTILINE)
    assert directives == sorted(set(directives), key=directives.index) and "--signal" in directives


def test_jobset() -> None:
    yaml = pytest.importorskip("yaml")
    read = yaml.safe_load((CLUSTERS / "jobset.yaml").read_text())
    assert (read["apiVersion"], read["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    job = read["spec"]["replicatedJobs"][0]
    pod = job["template"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert container["command"][:3] == ["python", "-m", "sbp_jax.distributed.launch"]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    command = [word.replace("$(NODE)", "1") for word in container["command"][3:]]
    args = parser.parse_args(command)
    assert args.nnodes == job["template"]["spec"]["completions"] == job["template"]["spec"]["parallelism"]
    assert args.allow_remote and args.stop_timeout < pod["terminationGracePeriodSeconds"]
    host = f"{read['metadata']['name']}-{job['name']}-0-0.{read['spec']['network']['subdomain']}"
    assert args.master_addr == host, "the name of the first pod"
    assert args.training_script == "examples/elastic.py"
    assert {word.partition("=")[0] for word in args.training_script_args} <= elastic_options()
    # The exit code of processes that have saved and left, in the policy of the container's own name.
    rule = job["template"]["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert rule["values"] == [75] and rule["containerName"] == container["name"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}


def test_ray_train() -> None:
    tree = ast.parse((CLUSTERS / "ray_train.py").read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"train", "main"} <= functions.keys()
    passed = re.findall(r'"(--\w+)"', ast.unparse(functions["train"]).replace("'", '"'))
    assert set(passed) <= elastic_options()
    top = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    assert not any("ray" in ast.unparse(node) for node in top), "it can be imported where there is no Ray"
