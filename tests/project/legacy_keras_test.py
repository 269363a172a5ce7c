"""Runs the tests that use Keras once more, with tf_keras as tf.keras."""

import pathlib

import pytest
from absl.testing import absltest, parameterized
from paths import TESTS
from processes import CLUSTER_TESTS, run_test_files

# Files that Keras cannot make a difference to. A new file runs with both, in
# tf_keras with `-m slow`, unless it is in one of these lists.
_WITHOUT_KERAS = {
    "analysis/importance_results_test.py",
    "benchmarks/benchmarks_comparing_test.py",
    "benchmarks/benchmarks_lifetime_test.py",
    "benchmarks/benchmarks_retrieval_test.py",
    "benchmarks/benchmarks_scaling_test.py",
    "benchmarks/benchmarks_serving_test.py",
    "benchmarks/benchmarks_small_rows_test.py",
    "benchmarks/benchmarks_table_stats_test.py",
    "benchmarks/benchmarks_test.py",
    "benchmarks/benchmarks_tfra_test.py",
    "compat/compat_clusters_test.py",
    "compat/compat_errors_test.py",
    "compat/compat_scalars_test.py",
    "compat/parameter_server_compat_test.py",
    "core/core_arrays_test.py",
    "core/core_test.py",
    "data/day_files_test.py",
    "data/parquet_bombs_test.py",
    "data/reading_arguments_test.py",
    "data/reading_damage_test.py",
    "data/reading_formats_test.py",
    "data/reading_test.py",
    "data/worker_batches_test.py",
    "distribute/distribute_errors_test.py",
    "distribute/distribute_local_test.py",
    "distribute/forked_processes_test.py",
    "distribute/local_workers_test.py",
    "distribute/metrics_clients_test.py",
    "distribute/multi_worker_launch_test.py",
    "distribute/multi_worker_strategy_test.py",
    "distribute/parameter_server_handshake_test.py",
    "distribute/parameter_server_killed_chief_test.py",
    "distribute/server_grace_test.py",
    "distribute/server_metrics_test.py",
    "distribute/server_threads_test.py",
    "distribute/this_task_test.py",
    "docs/site_test.py",
    "examples/kubernetes_test.py",
    "examples/recommender_data_test.py",
    "examples/recommender_examples_test.py",
    "examples/wide_deep_data_test.py",
    "feature_column/bag_blocks_test.py",
    "feature_column/columns_to_bags_errors_test.py",
    "hashing_test.py",
    "metrics/user_means_test.py",
    "models/batch_packing_test.py",
    "models/inflight_test.py",
    "ops/bag_ops_test.py",
    "ops/bundle_ops_test.py",
    "ops/concat_pass_test.py",
    "ops/counter_ops_test.py",
    "ops/exchange_ops_test.py",
    "ops/exchange_pull_ops_test.py",
    "ops/exchange_size_ops_test.py",
    "ops/exchange_sum_ops_test.py",
    "ops/gradient_sum_ops_test.py",
    "ops/hash_ops_test.py",
    "ops/lifetime_ops_test.py",
    "ops/malformed_bags_test.py",
    "ops/malformed_handle_test.py",
    "ops/malformed_hash_ops_test.py",
    "ops/malformed_input_test.py",
    "ops/malformed_sizes_test.py",
    "ops/op_counts_test.py",
    "ops/route_gradient_ops_test.py",
    "ops/shape_fuzz_test.py",
    "ops/signs_test.py",
    "ops/snapshot_ops_test.py",
    "ops/stock_allowed_test.py",
    "ops/stock_bags_test.py",
    "ops/stock_hash_test.py",
    "ops/stock_initial_rows_test.py",
    "ops/table_ops_test.py",
    "ops/table_owner_ops_test.py",
    "ops/table_resource_test.py",
    "ops/text_ops_test.py",
    "ops/traced_shapes_test.py",
    "ops/update_ops_test.py",
    "ops/version_ops_test.py",
    "optimizers/rule_specs_test.py",
    "package_test.py",
    "project/build_backend_test.py",
    "project/cluster_test.py",
    "project/legacy_keras_test.py",
    "project/style_test.py",
    "regimes/exchange_test.py",
    "regimes/parameter_server_network_test.py",
    "saving/saving_kill_test.py",
    "serving/export_kill_test.py",
    "serving/serving_test.py",
    "snapshot/conversion_test.py",
    "snapshot/small_rows_snapshot_test.py",
    "snapshot/snapshot_command_test.py",
    "snapshot/snapshot_damage_test.py",
    "snapshot/snapshot_durability_test.py",
    "snapshot/snapshot_forging_test.py",
    "snapshot/snapshot_interrupts_test.py",
    "snapshot/snapshot_kill_test.py",
    "snapshot/snapshot_manifest_test.py",
    "snapshot/snapshot_reader_test.py",
    "snapshot/snapshot_refusals_test.py",
    "snapshot/snapshot_test.py",
    "snapshot/snapshot_top_test.py",
    "snapshot/snapshot_writers_test.py",
    "tables/apply_delta_test.py",
    "tables/eviction_test.py",
    "tables/random_programs_test.py",
    "tables/sharding_test.py",
    "tables/table_arguments_test.py",
}

# Files of what is written for each Keras by itself: they run again by default,
# the others only with `-m slow`.
_BY_DEFAULT = {
    "callbacks/early_stopping_test.py",
    "callbacks/evict_test.py",
    "compat/compat_calls_test.py",
    "compat/compat_checkpoints_test.py",
    "compat/compat_graphs_test.py",
    "compat/compat_masks_test.py",
    "compat/compat_models_test.py",
    "compat/compat_optimizers_test.py",
    "compat/compat_variables_test.py",
    "layers/batch_normalization_test.py",
    "layers/embedding_features_test.py",
    "layers/sequences_test.py",
    "models/composed_optimizers_test.py",
    "models/frames_test.py",
    "models/input_casting_test.py",
    "models/input_kinds_test.py",
    "models/model_test.py",
    "models/read_errors_test.py",
    "optimizers/clipping_test.py",
    "optimizers/keras_rules_test.py",
    "optimizers/optimizer_test.py",
    "regimes/multi_worker_errors_test.py",
    "regimes/parameter_server_fit_test.py",
    "regimes/regime_test.py",
    "saving/saving_test.py",
    "saving/subclassed_models_test.py",
    "serving/export_test.py",
    "serving/signature_test.py",
    "tables/sparse_table_test.py",
    "user_errors_test.py",
}


# A process's start takes as long as many a file.
_PROCESSES = 2

_NAMES = [
    name
    for name in (
        str(path.relative_to(TESTS)) for path in TESTS.rglob("*_test.py")
    )
    if name not in _WITHOUT_KERAS
]
_TOGETHER = sorted(n for n in _BY_DEFAULT if TESTS / n not in CLUSTER_TESTS)
_ALONE = sorted(_BY_DEFAULT.difference(_TOGETHER))
_LATER = sorted(set(_NAMES) - _BY_DEFAULT)


@pytest.mark.timeout(960)
class LegacyKerasTest(parameterized.TestCase):
    @parameterized.named_parameters(
        *(
            (f"{i}_of_{_PROCESSES}", _TOGETHER[i::_PROCESSES])
            for i in range(_PROCESSES)
        ),
        *((pathlib.Path(name).stem, [name]) for name in _ALONE),
    )
    def test_passes(self, names):
        run_test_files([TESTS / n for n in names], TF_USE_LEGACY_KERAS="1")

    @parameterized.named_parameters(
        *((pathlib.Path(name).stem, name) for name in _LATER)
    )
    @pytest.mark.slow
    def test_passes_slow(self, name):
        run_test_files([TESTS / name], TF_USE_LEGACY_KERAS="1")

    def test_files_exist(self):
        for name in _WITHOUT_KERAS | _BY_DEFAULT:
            self.assertTrue((TESTS / name).exists(), name)
        self.assertEmpty(_WITHOUT_KERAS & _BY_DEFAULT)


if __name__ == "__main__":
    absltest.main()
