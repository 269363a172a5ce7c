# SPDX-License-Identifier: Apache-2.0
"""The one list of C++ sources: load()ed by Bazel, read by setup.py.

Plain list literals only: setup.py reads them with ast.literal_eval.
"""

# Files that do not depend on TensorFlow.
CORE_SOURCES = [
    "cc/core/bags/combine.cc",
    "cc/core/bags/gradient_sum.cc",
    "cc/core/bags/unique.cc",
    "cc/core/hashing/fingerprint.cc",
    "cc/core/hashing/fingerprint_avx512.cc",
    "cc/core/hashing/hash_columns.cc",
    "cc/core/hashing/hash_part.cc",
    "cc/core/initializers/initializer.cc",
    "cc/core/initializers/initializer_avx2.cc",
    "cc/core/initializers/initializer_avx512.cc",
    "cc/core/initializers/initializer_scalar.cc",
    "cc/core/records/example_columns.cc",
    "cc/core/records/record_block.cc",
    "cc/core/rules/absent_history.cc",
    "cc/core/rules/absent_rows.cc",
    "cc/core/rules/adagrad.cc",
    "cc/core/rules/adam.cc",
    "cc/core/rules/finite_rows.cc",
    "cc/core/rules/ftrl.cc",
    "cc/core/rules/lion.cc",
    "cc/core/rules/momentum.cc",
    "cc/core/rules/narrow.cc",
    "cc/core/rules/none.cc",
    "cc/core/rules/registry.cc",
    "cc/core/rules/rmsprop.cc",
    "cc/core/rules/row_wise_adagrad.cc",
    "cc/core/rules/rule_spec.cc",
    "cc/core/rules/sgd.cc",
    "cc/core/rules/shrinkage.cc",
    "cc/core/rules/update_rule.cc",
    "cc/core/snapshot/counter_chunks.cc",
    "cc/core/snapshot/crc32c.cc",
    "cc/core/snapshot/snapshot_chunk.cc",
    "cc/core/support/cpu.cc",
    "cc/core/table/admission/policies.cc",
    "cc/core/table/config.cc",
    "cc/core/table/eviction/policies.cc",
    "cc/core/table/row_conversion.cc",
    "cc/core/table/row_format.cc",
    "cc/core/table/row_layout.cc",
    "cc/core/table/stripe.cc",
    "cc/core/table/stripe_compact.cc",
    "cc/core/table/stripe_counters.cc",
    "cc/core/table/stripe_export.cc",
    "cc/core/table/table.cc",
    "cc/core/table/table_clock.cc",
    "cc/core/table/table_compact.cc",
    "cc/core/table/table_counters.cc",
    "cc/core/table/table_evict.cc",
    "cc/core/table/table_pull.cc",
    "cc/core/table/table_snapshot.cc",
    "cc/core/table/table_statistics.cc",
    "cc/core/table/table_update.cc",
    "cc/core/table/unknown_rows.cc",
]

# No contraction, so that all instruction sets give bit-identical results.
CORE_COPTS = [
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
]

# The compiler takes 12 s to read TensorFlow's headers, and one more for a file
# of ours: so many units are compiled, each of which includes its share of
# OPS_SOURCES. Hence no two of these may define the same name.
OPS_UNITS = 4

# REGISTER_OP and kernels.
OPS_SOURCES = [
    "cc/ops/bags/bag_inputs.cc",
    "cc/ops/bags/bag_kernels.cc",
    "cc/ops/bags/bag_ops.cc",
    "cc/ops/bags/cut_bags_kernels.cc",
    "cc/ops/bags/cut_bags_ops.cc",
    "cc/ops/bags/gradient_sum_kernels.cc",
    "cc/ops/bags/gradient_sum_ops.cc",
    "cc/ops/bags/hash_kernels.cc",
    "cc/ops/bags/hash_ops.cc",
    "cc/ops/bags/text_kernels.cc",
    "cc/ops/bags/text_ops.cc",
    "cc/ops/exchange/exchange_kernels.cc",
    "cc/ops/exchange/exchange_ops.cc",
    "cc/ops/exchange/exchange_pull_kernels.cc",
    "cc/ops/exchange/exchange_size_kernels.cc",
    "cc/ops/exchange/exchange_size_ops.cc",
    "cc/ops/exchange/exchange_weigh_kernels.cc",
    "cc/ops/kernel_util.cc",
    "cc/ops/passes/bundle_kernels.cc",
    "cc/ops/passes/bundle_ops.cc",
    "cc/ops/passes/bundle_pass.cc",
    "cc/ops/passes/concat_kernels.cc",
    "cc/ops/passes/concat_ops.cc",
    "cc/ops/passes/concat_pass.cc",
    "cc/ops/process_kernels.cc",
    "cc/ops/process_ops.cc",
    "cc/ops/snapshot/counter_kernels.cc",
    "cc/ops/snapshot/counter_ops.cc",
    "cc/ops/snapshot/snapshot_files.cc",
    "cc/ops/snapshot/snapshot_inputs.cc",
    "cc/ops/snapshot/snapshot_kernels.cc",
    "cc/ops/snapshot/snapshot_ops.cc",
    "cc/ops/snapshot/update_kernels.cc",
    "cc/ops/snapshot/update_ops.cc",
    "cc/ops/table/eviction_kernels.cc",
    "cc/ops/table/eviction_ops.cc",
    "cc/ops/table/maintenance_kernels.cc",
    "cc/ops/table/op_counts.cc",
    "cc/ops/table/owner_kernels.cc",
    "cc/ops/table/owner_ops.cc",
    "cc/ops/table/step_kernels.cc",
    "cc/ops/table/step_ops.cc",
    "cc/ops/table/table_access.cc",
    "cc/ops/table/table_kernels.cc",
    "cc/ops/table/table_ops.cc",
    "cc/ops/table/table_resource.cc",
]

# The pybind11 module tf_ext._core.
PYTHON_SOURCES = [
    "cc/python/core_module.cc",
    "cc/python/records_module.cc",
    "cc/python/rows_module.cc",
    "cc/python/rules_module.cc",
    "cc/python/setting_module.cc",
    "cc/python/snapshot_module.cc",
]

CORE_TESTS = [
    "cc/core/bags/gradient_sum_test.cc",
    "cc/core/hashing/fingerprint_test.cc",
    "cc/core/hashing/hash_columns_errors_test.cc",
    "cc/core/hashing/hash_columns_test.cc",
    "cc/core/initializers/initializer_test.cc",
    "cc/core/records/example_columns_test.cc",
    "cc/core/rules/absent_rows_test.cc",
    "cc/core/rules/finite_rows_test.cc",
    "cc/core/rules/narrow_test.cc",
    "cc/core/rules/shrinkage_test.cc",
    "cc/core/rules/update_rule_adam_test.cc",
    "cc/core/rules/update_rule_narrow_test.cc",
    "cc/core/rules/update_rule_test.cc",
    "cc/core/snapshot/crc32c_test.cc",
    "cc/core/snapshot/sign_set_test.cc",
    "cc/core/snapshot/snapshot_chunk_test.cc",
    "cc/core/snapshot/snapshot_fuzz_test.cc",
    "cc/core/table/admission/admission_counters_test.cc",
    "cc/core/table/bucket_index_test.cc",
    "cc/core/table/config_test.cc",
    "cc/core/table/row_conversion_test.cc",
    "cc/core/table/table_counters_test.cc",
    "cc/core/table/table_finite_test.cc",
    "cc/core/table/table_no_memory_test.cc",
]

# Those that start threads, and so run under ThreadSanitizer, too.
CORE_THREADED_TESTS = [
    "cc/core/bags/combine_test.cc",
    "cc/core/bags/unique_test.cc",
    "cc/core/table/table_admission_test.cc",
    "cc/core/table/table_compact_stress_test.cc",
    "cc/core/table/table_compact_test.cc",
    "cc/core/table/table_evict_test.cc",
    "cc/core/table/table_export_test.cc",
    "cc/core/table/table_lifetime_stress_test.cc",
    "cc/core/table/table_narrow_test.cc",
    "cc/core/table/table_pull_statistics_test.cc",
    "cc/core/table/table_snapshot_test.cc",
    "cc/core/table/table_statistics_test.cc",
    "cc/core/table/table_stress_test.cc",
    "cc/core/table/table_test.cc",
    "cc/core/table/table_update_test.cc",
]

# Together one program.
CORE_BENCHMARK_SOURCES = [
    "cc/core/benchmarks/line_benchmark.cc",
    "cc/core/benchmarks/memory_benchmark.cc",
    "cc/core/benchmarks/table_benchmark.cc",
]
