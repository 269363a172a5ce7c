# SPDX-License-Identifier: Apache-2.0
"""The messages of errors, without what TensorFlow and Keras add."""

import contextlib
import os
import re
import traceback

import tensorflow as tf

_AROUND = re.compile(
    # Prefixes, of an op that was called eagerly or in a graph.
    r"\A(?:Graph execution error:\s+)?"
    r"(?:Detected at node .*?\n(?:\n|<stack traces unavailable>\n)"
    r"(?:\s*File \"[^\n]*\n\n)*)*"
    r"(?:\{\{function_node [^}]*\}\} ?)?"
    # Of a function that a dataset maps.
    r"(?:Error in user-defined function passed to \S+ transformation with "
    r"iterator: \S+: )*"
    r"(?:assertion failed: \[(?P<assertion>.*?)\](?=\s|\Z))?"
    r"(?P<text>.*?)"
    # Suffixes.
    r"(?:\s*\[\[\{\{node [^}]*\}\}\]\].*| for '\{\{node [^}]*\}\} = .*"
    r"| \[Op:[^]]*\].*)?\Z",
    re.DOTALL,
)


# Parts of the names of tf_ext's ops, and of its assertions in graphs.
_OPS = ("TfExt>", "/columns_to_bags/", "/retrieval_has_index/")
# What messages begin with that something was added to.
_ADDED = ("in user code", "Exception encountered when calling")
_FILES = re.compile(r'^ *File "([^"\n]+)", line ', re.MULTILINE)
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def own_words(message):
    """An op's message without TensorFlow's names of nodes and functions.

    Seen in: TensorFlow 2.18 to 2.21.
    """
    match = _AROUND.match(message)
    if match["assertion"] is None:
        return match["text"].strip()
    return re.sub(r"\\(['\"])", r"\1", match["assertion"])


def _is_ours(message):
    """Whether one of tf_ext's ops failed."""
    return any(name in message for name in _OPS)


def _of_shapes(message):
    """Whether an op refused its inputs when it was traced."""
    return " for '{{node " in message and not message.startswith(
        ("in user code", "Exception encountered")
    )


def _raised_here(error):
    """The error that Python code of tf_ext raised as a model was traced.

    AutoGraph puts its traces, and Keras the name of the layer, before and after
    the message, in an error of the same class whose context is the first one.

    Args:
      error: the error that arrives.

    Returns:
      The first error; None if nothing was added to it, or another package
      raised it.
    """
    first = error
    while str(first).startswith(_ADDED) and first.__context__ is not None:
        first = first.__context__
    if first is error:
        return None
    # What AutoGraph converts is raised in a generated file, and only the text
    # tells which file that was made from.
    frames = traceback.extract_tb(first.__traceback__)
    raised_in = [*_FILES.findall(str(error))[-1:]]
    raised_in += [frame.filename for frame in frames[-1:]]
    return first if any(f.startswith(_PACKAGE) for f in raised_in) else None


@contextlib.contextmanager
def in_own_words(add=lambda text: text):
    """Reduces the errors of tf_ext to their own message.

    Those are of its ops, and of Python code that runs as a model is traced.

    Seen in: TensorFlow 2.18 to 2.21, Keras 3.15, tf_keras 2.18 to 2.21.

    Args:
      add: function from that message to the message that is raised.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        if not _is_ours(error.message):
            raise
        text = add(own_words(error.message))
        raise type(error)(error.node_def, error.op, text) from error
    except (RuntimeError, TypeError, ValueError) as error:
        first = _raised_here(error)
        if first is not None:
            raise type(first)(*first.args) from error
        is_of_op = isinstance(error, ValueError) and _is_ours(str(error))
        if not (is_of_op and _of_shapes(str(error))):
            raise
        raise ValueError(own_words(str(error))) from error
