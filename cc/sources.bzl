"""The one list of C++ sources: load()ed by Bazel, read by setup.py.

Plain list literals only: setup.py reads them with ast.literal_eval.
"""

# Files that know nothing of TensorFlow.
CORE_SOURCES = [
    "cc/core/combine.cc",
    "cc/core/config.cc",
    "cc/core/cpu.cc",
    "cc/core/crc32c.cc",
    "cc/core/fingerprint.cc",
    "cc/core/fingerprint_avx512.cc",
    "cc/core/gradient_sum.cc",
    "cc/core/hash_columns.cc",
    "cc/core/hash_part.cc",
    "cc/core/initializer.cc",
    "cc/core/initializer_avx2.cc",
    "cc/core/initializer_avx512.cc",
    "cc/core/initializer_scalar.cc",
    "cc/core/row_layout.cc",
    "cc/core/snapshot_chunk.cc",
    "cc/core/stripe.cc",
    "cc/core/table.cc",
    "cc/core/table_pull.cc",
    "cc/core/table_snapshot.cc",
    "cc/core/unique.cc",
    "cc/core/update_rule.cc",
    "cc/core/update_rule_avx2.cc",
    "cc/core/update_rule_avx512.cc",
    "cc/core/update_rule_scalar.cc",
]

# No contraction: the same bits on every instruction set.
CORE_COPTS = [
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
]

# REGISTER_OP and kernels.
OPS_SOURCES = [
    "cc/ops/bag_kernels.cc",
    "cc/ops/bag_ops.cc",
    "cc/ops/exchange_kernels.cc",
    "cc/ops/exchange_ops.cc",
    "cc/ops/exchange_pull_kernels.cc",
    "cc/ops/exchange_size_kernels.cc",
    "cc/ops/exchange_size_ops.cc",
    "cc/ops/gradient_sum_kernels.cc",
    "cc/ops/gradient_sum_ops.cc",
    "cc/ops/hash_kernels.cc",
    "cc/ops/hash_ops.cc",
    "cc/ops/kernel_util.cc",
    "cc/ops/maintenance_kernels.cc",
    "cc/ops/owner_kernels.cc",
    "cc/ops/owner_ops.cc",
    "cc/ops/snapshot_files.cc",
    "cc/ops/snapshot_kernels.cc",
    "cc/ops/snapshot_ops.cc",
    "cc/ops/table_kernels.cc",
    "cc/ops/table_ops.cc",
    "cc/ops/table_resource.cc",
    "cc/ops/version_kernels.cc",
    "cc/ops/version_ops.cc",
]

# The pybind11 module tf_ext._core.
PYTHON_SOURCES = [
    "cc/python/core_module.cc",
    "cc/python/snapshot_module.cc",
]

CORE_TESTS = [
    "cc/core/bucket_index_test.cc",
    "cc/core/combine_test.cc",
    "cc/core/config_test.cc",
    "cc/core/crc32c_test.cc",
    "cc/core/fingerprint_test.cc",
    "cc/core/gradient_sum_test.cc",
    "cc/core/hash_columns_errors_test.cc",
    "cc/core/hash_columns_test.cc",
    "cc/core/initializer_test.cc",
    "cc/core/sign_set_test.cc",
    "cc/core/snapshot_chunk_test.cc",
    "cc/core/snapshot_fuzz_test.cc",
    "cc/core/table_export_test.cc",
    "cc/core/table_snapshot_test.cc",
    "cc/core/table_stress_test.cc",
    "cc/core/table_test.cc",
    "cc/core/unique_test.cc",
    "cc/core/update_rule_adam_test.cc",
    "cc/core/update_rule_test.cc",
]

# One program.
CORE_BENCHMARK_SOURCES = [
    "cc/core/memory_benchmark.cc",
    "cc/core/table_benchmark.cc",
]
