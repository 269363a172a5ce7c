"""What holds for all tests: it has to be said before TensorFlow starts."""

import os
import pathlib
import sys

from processes import CLUSTER_TESTS

import tf_ext

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

# Processes that tests start take the tf_ext that is tested: not the source
# tree's, which need not be built, for being in the current folder. A test of
# a script that imports its neighbours takes PYTHONSAFEPATH away.
os.environ["PYTHONSAFEPATH"] = "1"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [
        str(pathlib.Path(tf_ext.__file__).parents[1]),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
)


def pytest_sessionstart(session):
    import tensorflow as tf

    # Mirrored strategies are tested on two devices; devices cannot be split
    # any more once an op has run.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )


def pytest_sessionfinish(session):
    # Not imported here: few tests need a cluster.
    if util := sys.modules.get("parameter_server_util"):
        util.stop_shared()


def pytest_ignore_collect(collection_path, config):
    # cluster_test.py runs these files in processes of their own. One that is
    # named on the command line runs in this one.
    named = {pathlib.Path(a.partition("::")[0]).resolve() for a in config.args}
    if collection_path in CLUSTER_TESTS and collection_path not in named:
        return True
    return None
