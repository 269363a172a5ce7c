# SPDX-License-Identifier: Apache-2.0
"""A test that pytest runs with the Python that Bazel builds against."""

load("@local_python//:python.bzl", "PYTHON")

_SCRIPT = """#!/bin/sh
# pytest must use neither the source folder nor an installed tf_ext: the
# runfiles, where this script starts, contain the tf_ext that was built.
export PYTHONPATH="$PWD"
exec '{python}' -m pytest -q -n 0 -p no:cacheprovider -c pyproject.toml \\
    --junitxml="${{XML_OUTPUT_FILE:-/dev/null}}" '{main}'
"""

def _python_test_impl(ctx):
    script = ctx.actions.declare_file(ctx.label.name)
    ctx.actions.write(
        script,
        _SCRIPT.format(main = ctx.file.main.short_path, python = PYTHON),
        is_executable = True,
    )
    runfiles = ctx.runfiles(files = ctx.files.srcs + ctx.files.data)
    return [DefaultInfo(executable = script, runfiles = runfiles)]

python_test = rule(
    implementation = _python_test_impl,
    attrs = {
        "data": attr.label_list(allow_files = True),
        "main": attr.label(allow_single_file = [".py"], mandatory = True),
        "srcs": attr.label_list(allow_files = [".py"]),
    },
    test = True,
)
