# SPDX-License-Identifier: Apache-2.0
"""Stands in for rules_java: the rules that are part of Bazel 4."""

java_binary = native.java_binary
java_import = native.java_import
java_library = native.java_library
java_plugin = native.java_plugin
java_runtime = native.java_runtime
java_test = native.java_test
java_toolchain = native.java_toolchain
