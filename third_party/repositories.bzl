# SPDX-License-Identifier: Apache-2.0
"""The external repositories, all of which are on the machine already."""

load("//third_party:python_configure.bzl", "python_configure")

def tf_ext_repositories():
    python_configure(name = "local_python")

    # Debian's libgtest-dev.
    native.new_local_repository(
        name = "googletest",
        build_file = "//third_party:googletest.BUILD",
        path = "/usr/src/googletest",
    )

    # Bazel 4 looks these up for every C++ or Java rule and would download
    # them; newer versions bundle them. Debian's Bazel 4 reports no version.
    version = native.bazel_version
    if not version or int(version.split(".")[0]) < 5:
        for name in ["rules_cc", "rules_java", "remote_coverage_tools"]:
            native.local_repository(
                name = name,
                path = "third_party/bazel4/" + name,
            )
