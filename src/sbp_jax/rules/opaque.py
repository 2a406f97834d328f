"""Primitives that stay whole, and why. Every device computes all of them; a user's rule may take their place."""

from .base import register, whole

KEYS = "keys are a few words: splitting them saves nothing, and the bits made of them are split (trace/expand.py)"
_POSITION = "the numbers drawn depend on an element's position in the whole"
BODY = "its body is code this library does not read: register_rule on the function says how it splits"
_COLLECTIVE = "lives inside shard_map, whose body is not opened"
_REFERENCE = "a mutable reference is one buffer, written in order"
_SPARSE = "entries of a sparse format lie where their indices say, not where a split would cut"
TOKEN = "an order of effects, not an array"
SCALES = "block scales and quantised blocks are laid out for the whole operand"
SHAPE = "a size, known on every device"
_KERNEL = "lives inside a Pallas kernel, which is not opened"

REASONS: dict[str, str] = {
    **dict.fromkeys(("random_seed", "random_split", "random_fold_in", "random_wrap", "random_unwrap", "random_clone",
                     "iota_2x32_shape", "to_edtype", "from_edtype"), KEYS),
    **dict.fromkeys(("random_bits", "rng_bit_generator", "random_gamma", "philox2x32", "philox4x32",
                     "threefry4x32"), _POSITION),
    **dict.fromkeys(("shard_map", "pallas_call", "ffi_call", "custom_call", "cudnn_fusion", "custom_partitioning",
                     "call_exported", "core_map", "mpmd_map", "run_state", "jaxpr_call",
                     "call_hi_primitive", "call_hi_primitive_linearized"), BODY),
    "inspect_sharding": "it asks for a layout, and the plan has it: plan.signatures()",
    **dict.fromkeys(("psum", "pmax", "pmin", "ppermute", "pbroadcast", "all_gather", "all_to_all", "axis_index",
                     "ragged_all_to_all", "reduce_scatter", "psum_invariant", "all_gather_invariant",
                     "all_gather_reduced", "unreduced_psum", "unreduced_reduce_scatter", "preduced", "psend", "precv",
                     "reduced_vary_cast", "reduced_vary_cast_p", "vary_unreduced_cast", "vary_unreduced_cast_p",
                     "pbroadcast_dynamic", "unreduced_pmax", "unreduced_pmin", "all_gather_start", "all_gather_done",
                     "all_gather_reduced_start", "all_to_all_start", "all_to_all_done", "pbroadcast_start",
                     "pbroadcast_done", "ppermute_start", "ppermute_done", "psum_start", "psum_done",
                     "psum_invariant_start", "reduce_scatter_start", "reduce_scatter_done", "unreduced_psum_start",
                     "unreduced_reduce_scatter_start"), _COLLECTIVE),
    **dict.fromkeys(("get", "swap", "addupdate", "new_ref", "empty_ref", "free_ref", "freeze", "accum_grad_in_ref",
                     "masked_load", "masked_swap", "pin", "unpin"), _REFERENCE),
    **dict.fromkeys(("bcoo_dot_general", "bcoo_dot_general_sampled", "bcoo_extract", "bcoo_fromdense",
                     "bcoo_sort_indices", "bcoo_spdot_general", "bcoo_sum_duplicates", "bcoo_todense",
                     "bcoo_transpose", "bcsr_dot_general", "bcsr_extract", "bcsr_fromdense", "bcsr_todense",
                     "coo_fromdense", "coo_matmat", "coo_matvec", "coo_spmm", "coo_spmv", "coo_todense",
                     "csr_fromdense", "csr_matmat", "csr_matvec", "csr_spmm", "csr_spmv", "csr_todense", "spsolve",
                     "todense"), _SPARSE),
    **dict.fromkeys(("create_token", "after_all", "check", "delay", "infeed", "outfeed", "unreachable", "dce_sink",
                     "tie", "create_linear"), TOKEN),
    **dict.fromkeys(("scaled_dot", "scaled_matmul", "scaled_matmul_wrapper", "dot_product_attention_fp8_fwd",
                     "dot_product_attention_fp8_bwd", "dot_product_attention_fp8_fwd_wrapper",
                     "dot_product_attention_fp8_bwd_wrapper"), SCALES),
    **dict.fromkeys(("dimension_size", "dim_as_value", "shape_assertion", "multiple_of", "platform_index"), SHAPE),
    **dict.fromkeys(("program_id", "num_programs", "run_scoped", "semaphore_read", "semaphore_signal",
                     "semaphore_wait", "get_global", "stage", "box_get", "box_set", "new_box", "new_log", "log_extend",
                     "log_read"), _KERNEL),
    "sbp.whole": "a loop's condition must be the same on every device",
    "cholesky_update": "one matrix, no batch of them",
    **dict.fromkeys(("empty", "empty2"), "holds nothing yet"),
}  # fmt: skip

for _name, _reason in REASONS.items():
    register(_name, reason=_reason)(whole)
