"""Known hardware. Peak figures are the makers' data sheets', dense (no sparsity), link figures one direction.

Sources: NVIDIA data sheets "V100" (2020), "A100" (2022), "H100" (2023), "H200" (2024), "DGX B200" (2024) and their
NVLink generations (300, 600, 900, 900, 1800 GB/s both directions); AMD "Instinct MI300X" (2023, Infinity Fabric
128 GB/s a peer, 448 GB/s one direction to all); Google Cloud "TPU v5p" (4,800 Gb/s a chip). InfiniBand is one
adapter a device: EDR 100 Gb/s, HDR 200 Gb/s, NDR 400 Gb/s. Latencies are NCCL's orders of magnitude (its
``hwLat`` tables): some microseconds in a node, about ten between nodes. Efficiencies are what large matrix
products and streaming kernels commonly reach; ``calibrate`` will replace them by measurements.
"""

from .base import Cluster, Level, device

_GIB = 2.0**30


def _gpus(
    name: str, half: float, single: float, tf32: float | None, memory_gib: float, memory_tbs: float, nvlink_gbs: float,
    infiniband_gbs: float, efficiency: float = 0.7,
) -> Cluster:  # fmt: skip
    rates = {"bfloat16": half * 1e12, "float16": half * 1e12, "float32": (tf32 or single) * 1e12,
             "float64": single * 0.5e12}  # fmt: skip
    return Cluster(
        name,
        device(name, rates, memory_gib * _GIB, memory_tbs * 1e12),
        (Level("node", 8, nvlink_gbs * 1e9, 3e-6), Level("network", None, infiniband_gbs * 1e9, 1e-5)),
        matmul_efficiency=efficiency,
        memory_efficiency=0.8,
        op_seconds_floor=2e-6,
    )


# A simulated device is a thread of the host; copies through memory stand for the links. Measured with 8 of them on
# 2 cores (JAX 0.10.2): matrix products 5e10 FLOP/s each, the smallest op 2 to 5e-6 s, large collectives 2 to 3e9
# bytes/s, and about 9e-5 s for any collective however small. That last figure is the host's thread scheduling and
# says nothing of the machines that the simulation stands for, where XLA merges small collectives besides: it is left
# out, so plans on simulated devices weigh bytes, as plans of large models on real ones do.
CPU = Cluster(
    "cpu",
    device("cpu", {"float32": 5e10, "bfloat16": 2e10, "float16": 2e10, "float64": 2.5e10}, 8 * _GIB, 1e10),
    (Level("shared memory", None, 2e9, 0.0),),
    op_seconds_floor=2e-6,
    overlaps=frozenset(),  # XLA's CPU client runs a device's program in order; a collective holds its thread
)

PRESETS: dict[str, Cluster] = {
    c.name: c
    for c in (
        CPU,
        _gpus("v100", 125, 15.7, None, 32, 0.9, 150, 12.5),
        _gpus("a100-40", 312, 19.5, 156, 40, 1.555, 300, 25),
        _gpus("a100-80", 312, 19.5, 156, 80, 2.039, 300, 25),
        _gpus("h100", 989, 67, 494, 80, 3.35, 450, 50),
        _gpus("h200", 989, 67, 494, 141, 4.8, 450, 50),
        _gpus("b200", 2250, 80, 1100, 180, 8.0, 900, 50),
        _gpus("mi300x", 1307, 163, None, 192, 5.3, 448, 50, efficiency=0.6),
        Cluster(
            "tpu-v5p",
            device("tpu-v5p", {"bfloat16": 459e12, "float16": 459e12, "float32": 229e12}, 95 * _GIB, 2.765e12),
            (Level("torus", None, 300e9, 1e-6),),
            matmul_efficiency=0.7,
            memory_efficiency=0.8,
        ),
    )
}

# What ``jax.Device.device_kind`` says -> preset.
KINDS = (
    ("v100", "v100"), ("a100-sxm4-80", "a100-80"), ("a100 80", "a100-80"), ("a100-sxm4-40", "a100-40"),
    ("a100", "a100-80"), ("h200", "h200"), ("h100", "h100"), ("b200", "b200"), ("mi300", "mi300x"),
    ("tpu v5p", "tpu-v5p"), ("tpu v5", "tpu-v5p"),
)  # fmt: skip
