"""Runs the tests that use Keras once more, with tf_keras as tf.keras."""

import pathlib

import pytest
from absl.testing import absltest, parameterized
from processes import CLUSTER_TESTS, run_test_files

_TESTS = pathlib.Path(__file__).resolve().parent

# Files that Keras cannot make a difference to. A new file runs with both
# unless it is put here.
_WITHOUT_KERAS = {
    "benchmarks_comparing_test.py",
    "benchmarks_test.py",
    "build_backend_test.py",
    "cluster_test.py",
    "core_test.py",
    "data_shares_test.py",
    "distribute_errors_test.py",
    "distribute_local_test.py",
    "exchange_ops_test.py",
    "exchange_pull_ops_test.py",
    "exchange_size_ops_test.py",
    "exchange_sum_ops_test.py",
    "exchange_test.py",
    "gradient_sum_ops_test.py",
    "legacy_keras_test.py",
    "local_workers_test.py",
    "malformed_sizes_test.py",
    "multi_worker_launch_test.py",
    "multi_worker_strategy_test.py",
    "package_test.py",
    "parameter_server_handshake_test.py",
    "parameter_server_killed_chief_test.py",
    "parameter_server_network_test.py",
    "saving_kill_test.py",
    "serving_test.py",
    "sharding_test.py",
    "snapshot_command_test.py",
    "snapshot_damage_test.py",
    "snapshot_durability_test.py",
    "snapshot_forging_test.py",
    "snapshot_kill_test.py",
    "snapshot_manifest_test.py",
    "snapshot_ops_test.py",
    "snapshot_reader_test.py",
    "snapshot_writers_test.py",
    "style_test.py",
    "table_owner_ops_test.py",
    "wide_deep_data_test.py",
}

# Files that take long: they run again only with `-m slow`.
_SLOW = {
    "docs_cluster_test.py",
    "docs_test.py",
    "memory_test.py",
    "multi_worker_batch_normalization_test.py",
    "multi_worker_long_test.py",
    "multi_worker_recovery_test.py",
    "multi_worker_saving_test.py",
    "multi_worker_train_test.py",
    "parameter_server_batch_normalization_test.py",
    "parameter_server_callbacks_test.py",
    "parameter_server_checkpoint_test.py",
    "parameter_server_data_test.py",
    "parameter_server_faults_test.py",
    "parameter_server_frozen_test.py",
    "parameter_server_loops_test.py",
    "parameter_server_metrics_test.py",
    "parameter_server_model_test.py",
    "parameter_server_recovery_test.py",
    "parameter_server_sizes_test.py",
    "parameter_server_snapshot_test.py",
    "parameter_server_tables_test.py",
    "snapshot_restart_test.py",
    "wide_deep_cluster_test.py",
    "wide_deep_test.py",
}


# A process's start takes as long as many a file.
_PROCESSES = 6

_FILES = [
    path
    for path in sorted(_TESTS.glob("*_test.py"))
    if path.name not in _WITHOUT_KERAS | _SLOW
]
_TOGETHER = [path for path in _FILES if path not in CLUSTER_TESTS]
_ALONE = [path for path in _FILES if path in CLUSTER_TESTS]


@pytest.mark.timeout(660)
class LegacyKerasTest(parameterized.TestCase):
    @parameterized.named_parameters(
        *(
            (f"{i}_of_{_PROCESSES}", _TOGETHER[i::_PROCESSES])
            for i in range(_PROCESSES)
        ),
        *((path.stem, [path]) for path in _ALONE),
    )
    def test_passes(self, files):
        run_test_files(files, TF_USE_LEGACY_KERAS="1")

    @parameterized.named_parameters(
        *((name.removesuffix(".py"), name) for name in sorted(_SLOW))
    )
    @pytest.mark.slow
    def test_passes_slow(self, name):
        run_test_files([_TESTS / name], TF_USE_LEGACY_KERAS="1")

    def test_files_exist(self):
        for name in _WITHOUT_KERAS | _SLOW:
            self.assertTrue((_TESTS / name).exists(), name)


if __name__ == "__main__":
    absltest.main()
