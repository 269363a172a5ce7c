"""The messages of ops' errors, without what TensorFlow adds."""

import contextlib
import re

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


def own_words(message):
    """An op's message without TensorFlow's names of nodes and functions.

    Seen in: TensorFlow 2.21.
    """
    match = _AROUND.match(message)
    if match["assertion"] is None:
        return match["text"].strip()
    return re.sub(r"\\(['\"])", r"\1", match["assertion"])


def _is_ours(message):
    """Whether one of tf_ext's ops failed."""
    return any(name in message for name in ("TfExt>", "/columns_to_bags/"))


def _of_shapes(message):
    """Whether an op refused its inputs when it was traced."""
    return " for '{{node " in message and not message.startswith(
        ("in user code", "Exception encountered")
    )


@contextlib.contextmanager
def in_own_words(add=lambda text: text):
    """Reduces the errors of tf_ext's ops to their own message.

    Seen in: TensorFlow 2.21.

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
    except ValueError as error:
        if not (_is_ours(str(error)) and _of_shapes(str(error))):
            raise
        raise ValueError(own_words(str(error))) from error
