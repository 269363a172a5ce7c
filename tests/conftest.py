"""What holds for all tests: it has to be said before TensorFlow starts."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")


def pytest_sessionstart(session):
    import tensorflow as tf

    # Mirrored strategies are tested on two devices; devices cannot be split
    # any more once an op has run.
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
