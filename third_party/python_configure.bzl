# SPDX-License-Identifier: Apache-2.0
"""The Python of $TF_EXT_PYTHON, or python3 of the PATH, as a repository.

Provides the headers of that Python and of its TensorFlow and pybind11, and
`python.bzl` with the interpreter's path for tests.
"""

_PROBE = """
import json, sys, sysconfig
import pybind11
import tensorflow as tf
print(json.dumps({
    "defines": [
        flag[2:] for flag in tf.sysconfig.get_compile_flags()
        if flag.startswith("-D")
    ],
    "link_flags": tf.sysconfig.get_link_flags(),
    "pybind11_include": pybind11.get_include(),
    "python": sys.executable,
    "python_include": sysconfig.get_path("include"),
    "extension_suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    "tensorflow_include": tf.sysconfig.get_include(),
    "tensorflow_version": tf.__version__,
}))
"""

# Otherwise each build would stat() all 10,800 headers of the wheel.
_TENSORFLOW_HEADERS = [
    "Eigen",
    "absl",
    "external/farmhash_archive",
    "external/ml_dtypes_py",
    "google",
    "ml_dtypes",
    "tensorflow/core",
    "tensorflow/tsl",
    "third_party",
    "tsl",
    "unsupported",
    "xla/tsl",
]

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "tensorflow",
    hdrs = glob({tensorflow_headers}),
    defines = {defines},
    includes = ["tensorflow_include"],
    linkopts = {link_flags},
)

cc_library(
    name = "pybind11",
    hdrs = glob(["pybind11_include/**/*.h", "python_include/**/*.h"]),
    includes = ["pybind11_include", "python_include"],
)
"""

_CONSTANTS = """
PYTHON = "{python}"
EXTENSION_SUFFIX = "{extension_suffix}"
TENSORFLOW_VERSION = "{tensorflow_version}"
"""

def _python_configure_impl(ctx):
    python = ctx.os.environ.get("TF_EXT_PYTHON") or ctx.which("python3")
    if not python:
        fail("There is no python3 on the PATH; set TF_EXT_PYTHON to the " +
             "Python that has TensorFlow.")
    probe = ctx.execute(
        [python, "-c", _PROBE],
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if probe.return_code != 0:
        fail(("%s cannot import tensorflow and pybind11; install them there " +
              "or set TF_EXT_PYTHON to a Python that has them.\n%s") %
             (python, probe.stderr))
    found = json.decode(probe.stdout.strip().split("\n")[-1])

    for name in ["tensorflow_include", "pybind11_include", "python_include"]:
        ctx.symlink(found[name], name)
    ctx.file("BUILD", _BUILD.format(
        defines = found["defines"],
        link_flags = found["link_flags"],
        tensorflow_headers = [
            "tensorflow_include/%s/**" % folder
            for folder in _TENSORFLOW_HEADERS
        ],
    ))
    ctx.file("python.bzl", _CONSTANTS.format(
        extension_suffix = found["extension_suffix"],
        python = found["python"],
        tensorflow_version = found["tensorflow_version"],
    ))

python_configure = repository_rule(
    implementation = _python_configure_impl,
    configure = True,
    environ = ["PATH", "TF_EXT_PYTHON"],
    local = True,
)
