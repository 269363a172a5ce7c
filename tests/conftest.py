# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests: it has to be said before TensorFlow starts."""

import gc
import importlib.util
import os
import pathlib
import sys

import pytest

pytest_plugins = ["test_groups", "test_hangs", "test_tiers"]

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

# Processes that tests start take the tf_ext that is tested: not the source
# tree's, which need not be built, for being in the current folder. A test of
# a script that imports its neighbours takes PYTHONSAFEPATH away.
os.environ["PYTHONSAFEPATH"] = "1"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [
        # Not imported: the process that only hands out tests needs neither it
        # nor TensorFlow.
        str(pathlib.Path(importlib.util.find_spec("tf_ext").origin).parents[1]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)


# Until the tests begin: imports leave no garbage.
gc.disable()


def pytest_sessionstart(session):
    if _hands_out_tests(session.config):
        return
    import tensorflow as tf

    _without_autotuning()
    # A context manager, which skips itself where it is taken for a test.
    tf.test.TestCase.test_session.__test__ = False
    # Mirrored strategies are tested on two devices; devices cannot be split
    # any more once an op has run.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )


def _without_autotuning():
    """Has datasets without options of their own not tune themselves.

    The end of an iterator waits for the thread that tunes it, which may miss
    that it is to end, and then sleeps for as long as the iterator has lived.
    Processes that tests start tune as users' do.
    """
    import tensorflow as tf
    from tensorflow.python.data.ops import dataset_ops

    before = dataset_ops.DatasetV2._apply_debug_options

    def without(dataset):
        found = before(dataset)
        if found.options().autotune.enabled is not None:
            return found
        options = tf.data.Options()
        options.autotune.enabled = False
        return found.with_options(options)

    dataset_ops.DatasetV2._apply_debug_options = without


def _hands_out_tests(config):
    """Whether other processes, of pytest-xdist, run the tests."""
    is_worker = hasattr(config, "workerinput")
    return bool(config.getoption("numprocesses", None)) and not is_worker


def pytest_collection_finish(session):
    gc.set_threshold(50_000, 10, 10)
    gc.enable()
    _leave_what_stays()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        _leave_what_stays()


def _leave_what_stays():
    # The collector would walk through all of TensorFlow's objects and all
    # graphs that it keeps time and again, for a fifth of the tests' CPU time.
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session):
    # Not imported here: few tests need a cluster.
    for name in ("clusters.parameter_server_util", "clusters.case_workers"):
        if util := sys.modules.get(name):
            util.stop_shared()


def pytest_ignore_collect(collection_path, config):
    # A site takes minutes to build, and needs the extra `docs`.
    if collection_path.name == "site_test.py":
        return not any("site_test.py" in argument for argument in config.args)
    return None
