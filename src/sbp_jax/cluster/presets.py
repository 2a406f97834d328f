"""Known hardware. Every figure here has its source in this file; what has none is called an assumption.

Peaks are the makers' data sheets', dense (no sparsity), link figures one direction: NVIDIA "V100" (2020), "A100"
(2022), "H100" (2023), "H200" (2024), "DGX B200" (2024); AMD "Instinct MI300X" (2023); Google Cloud documentation,
"TPU v5p". float32 is the rate that XLA multiplies float32 matrices at by default, TF32 where there is such.

Matrix products, the part of peak that arithmetic alone sustains (the clock falls under its load):
    A100 0.85: with it the model meets 257 TFLOP/s for 8192 x 8192 x 8192 on random values (H. He, "Strangely, Matrix
    Multiplications on GPUs Run Faster When Given 'Predictable' Data!", 2024) and, within 8 %, the nine products of more
    than 0.1 ms that EleutherAI's "cookbook" shows (``benchmarks/sizing/sample_results``, the scripts of Anthony et al.,
    "The Case for Co-Designing Model Architectures with Hardware", arXiv:2401.14489; an A100 by its rates, taken for one
    of 40 GB; four products of 0.04 ms have the host's time in them). Bekman's 0.87 is the best of all shapes tried.
    H100 0.80, MI300X 0.51: S. Bekman, "Machine Learning Engineering", table of maximum achievable matmul FLOPS
    (bfloat16, caches reset). V100 0.74: 83 of 112.7 TFLOP/s, Markidis et al., "NVIDIA Tensor Core Programmability,
    Performance & Precision", IPDPSW 2018. H200: the H100's, the same chip at the same power. B200 0.75 and TPU v5p
    0.85: assumptions.
Results stored between tiles: V100 and A100. Attention's scores, 2048 x 2048 of k = 256, run at 130 TFLOP/s on an A100
    (cookbook, as above): with stores put beside arithmetic the model says 230, with stores between tiles 139. From the
    H100 on, kernels stay on their unit and store one tile beside the next ("CUTLASS documentation", "Efficient GEMM in
    CUDA", warp specialisation). MI300X: beside, an assumption.
Units and clocks: "NVIDIA A100 Tensor Core GPU Architecture" (2020; 80 SMs of the V100, 108 of the A100; its cache
    gives 5,120 bytes a cycle, 2.3 times the V100's in all), "NVIDIA H100 Tensor Core GPU Architecture" (2022; 132
    SMs), AMD "CDNA 3 white paper" (2023; 304 CUs, 17.2 TB/s from the shared cache), DGX B200 (148 SMs). The H100's
    and B200's caches, 5,120 bytes a cycle for each die: an assumption.
Tiles: 256 x 128 down to 64 x 64, "Matrix Multiplication Background User's Guide" (NVIDIA DU-09799-001), 2.3. The
    B200 has 256 x 256 too, over two SMs ("CUTLASS documentation", Blackwell SM100 GEMMs). The TPU's is its systolic
    array, 8 rows on 128 x 128 ("How to Scale Your Model", part 2, 2025); filling it is left out.
Filling a wave of tiles, 1 us: two round trips to memory of 0.4 to 0.7 us, Jia et al., "Dissecting the NVIDIA Volta
    GPU Architecture via Microbenchmarking" (2018): 375 to 1,029 cycles at 1.4 GHz.
Memory: 0.88 of peak, 1.80 of 2.04 TB/s on an A100 (NVIDIA developer forum, thread 339083, where 0.9 is the most that
    any kernel reached); the others alike, and 0.81 for the MI300X: assumptions. Kernels with arithmetic, 0.82 of that:
    dropout on 268 million half-precision values takes 1.2 ms, 1.12 of 1.555 TB/s, GELU on 134 million 0.5 ms, 1.07 TB/s
    (cookbook, as above; 0.72 and 0.69 of peak); GPUs other than the A100 alike, an assumption.
Smallest kernel, 2 us: 2.9 us of kernel and 0.5 us of gap in a CUDA graph for half a million elements, of which about
    1 us is their traffic (A. Gray, "Getting Started with CUDA Graphs", NVIDIA developer blog, 2019).

Links in a node, and the part of them that NCCL reaches (S. Jeaugey and A. Laddy, of NCCL, say so in the issues named):
    A100 12 NVLinks of 25 GB/s, 230 of 300 (NVIDIA/nccl-tests issue 149); H100 18 of 25, 370 of 450 (issue 212,
    without NVLink SHARP, which is not modelled: with it, all-reduce in a node is 1.3 times as fast); B200 18 of 50,
    721.8 of 900, and V100 6 of 25, 120 of 150: ``SM100_NVLINK_BW`` and ``SM70_NVLINK_BW`` of ``src/graph/topo.h``.
    The V100 is a DGX-1's: six links to four neighbours, no switch. MI300X: seven links of 64 GB/s, 313 of 448 with
    all eight devices, 48 of 64 with two (Bekman, "Inter-node and intra-node networking hardware"). TPU v5p: two
    links along each axis of its torus, 90 GB/s each ("How to Scale Your Model"); only one axis is counted.
Between nodes: one InfiniBand adapter a device, HDR 200 Gb/s (A100, a DGX A100's), NDR 400 Gb/s (Hopper and after,
    MI300X), of which 46 to 48 GB/s of 50 are reached (nccl-tests issue 290), 24 of 25 (NVIDIA/nccl issue 412). The
    V100's DGX-1 has four EDR adapters of 100 Gb/s for eight devices ("NVIDIA DGX-1 System Architecture", 2017).
Latencies: a ring's step in NCCL's Simple protocol, 3.4 us by NVLink and 14 us by network, 8.4 us before the first
    (``src/graph/tuning.cc``). RCCL, which descends from it: the same, an assumption. TPU: 1 us a hop ("How to Scale
    Your Model").
Compute beside collectives takes 19 % longer: the mean over GPT and LLaMA training on A100, H100, MI210 and MI250, 40 %
    at the most ("Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning",
    arXiv:2507.03114). GPUs start all kinds beside compute (``base.ASYNC``); the TPU permutes (JAX documentation,
    "Pallas Async Operations") and, an assumption, gathers, while others wait for flags
    (``xla_enable_async_all_reduce``, ``xla_tpu_enable_async_all_to_all`` in Google's recipes and JAX's tests).

``sbp-jax calibrate`` puts a machine's own figures in their place.
"""

import re

from .base import Cluster
from .device import Tile, device
from .levels import Level

_GIB = 2.0**30
_DEPTH = 32
# Rows and columns of cuBLAS's tiles, by which their depth goes in steps of 32.
GPU_TILES: tuple[Tile, ...] = tuple(
    (a, b, _DEPTH) for a, b in ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
)
_PAIRED_TILES: tuple[Tile, ...] = ((256, 256, 64), *GPU_TILES)
FILL_SECONDS = 1e-6
_NVLINK_STEP, _NETWORK_STEP, _STARTUP = 3.4e-6, 14e-6, 8.4e-6
_SLOWDOWN = 0.189
_FUSED = 0.82


def _node(gbs: float, efficiency: float, pair_gbs: float | None = None) -> Level:
    pair = None if pair_gbs is None else pair_gbs * 1e9
    return Level("node", 8, gbs * 1e9, _NVLINK_STEP, efficiency, None, pair, _STARTUP)


def _network(gbs: float, adapters: int | None = None) -> Level:
    return Level("network", None, gbs * 1e9, _NETWORK_STEP, 0.94, adapters, None, _STARTUP)


def _gpus(
    name: str, tflops: dict[str, float], memory_gib: float, memory_tbs: float, units: int, cache_tbs: float,
    sustained: float, levels: tuple[Level, ...], memory_efficiency: float = 0.88, tiles: tuple[Tile, ...] = GPU_TILES,
    stores_between: int = 0,
) -> Cluster:  # fmt: skip
    rates = {name: value * 1e12 for name, value in tflops.items()}
    chip = device(name, rates, memory_gib * _GIB, memory_tbs * 1e12, units, tiles, FILL_SECONDS, cache_tbs * 1e12,
                  stores_between)  # fmt: skip
    return Cluster(name, chip, levels, sustained, memory_efficiency, 2e-6, overlap_slowdown=_SLOWDOWN, library="nccl",
                   fused_efficiency=_FUSED)  # fmt: skip


def _tflops(half: float, float32: float, float64: float) -> dict[str, float]:
    return {"bfloat16": half, "float16": half, "float32": float32, "float64": float64}


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

_A100 = (_node(300, 0.767), _network(25))
_H100 = (_node(450, 0.822), _network(50))

PRESETS: dict[str, Cluster] = {
    c.name: c
    for c in (
        CPU,
        _gpus("v100", _tflops(125, 15.7, 7.8), 32, 0.9, 80, 3.1, 0.74,
              (_node(150, 0.8, pair_gbs=37.5), _network(12.5, adapters=4)), stores_between=1),
        _gpus("a100-40", _tflops(312, 156, 19.5), 40, 1.555, 108, 7.2, 0.85, _A100, stores_between=1),
        _gpus("a100-80", _tflops(312, 156, 19.5), 80, 2.039, 108, 7.2, 0.85, _A100, stores_between=1),
        _gpus("h100", _tflops(989, 494, 67), 80, 3.35, 132, 9.4, 0.80, _H100),
        _gpus("h200", _tflops(989, 494, 67), 141, 4.8, 132, 9.4, 0.80, _H100),
        _gpus("b200", _tflops(2250, 1100, 40), 180, 8.0, 148, 18.8, 0.75, (_node(900, 0.802), _network(50)),
              tiles=_PAIRED_TILES),
        _gpus("mi300x", _tflops(1307, 163, 163), 192, 5.3, 304, 17.2, 0.51,
              (_node(448, 0.70, pair_gbs=64), _network(50)), memory_efficiency=0.81),
        Cluster(
            "tpu-v5p",
            device("tpu-v5p", {"bfloat16": 459e12, "float16": 459e12, "float32": 229e12}, 95 * _GIB, 2.765e12,
                   units=8, tiles=((8, 128, 128),)),
            (Level("torus", None, 180e9, 1e-6),),
            matmul_efficiency=0.85,
            memory_efficiency=0.88,
            overlaps=frozenset({"all_gather", "permute"}),
        ),
    )
}  # fmt: skip

# What ``jax.Device.device_kind`` says of a device, in lower case, and the preset that is of its kind. Cards (PCIe, NVL)
# have other clocks and links than modules, and have no preset; nor have 16 GB V100s and the v5e ("TPU v5 lite").
_KINDS = (
    (r"v100-sxm\d-32", "v100"), (r"a100-sxm\d-40", "a100-40"), (r"a100-sxm\d-80", "a100-80"),
    (r"\bh100\b(?!.*(pcie|nvl))", "h100"), (r"\bh200\b(?!.*nvl)", "h200"), (r"\bb200\b", "b200"),
    (r"mi300x", "mi300x"), (r"^tpu v5p?$", "tpu-v5p"),
)  # fmt: skip


def preset_of(kind: str) -> Cluster | None:
    """The preset for devices of a ``device_kind``, or None."""
    for pattern, name in _KINDS:
        if re.search(pattern, kind.lower()):
            return PRESETS[name]
    return None
