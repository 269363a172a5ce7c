# SPDX-License-Identifier: Apache-2.0
"""Adds nodes of tf_ext's ops with random attributes and inputs to graphs.

Usage: shape_fuzz_program.py SEED COUNT

Shape functions run on nodes that no kernel has checked. The current node is
printed before it is added, so that the last line of a crash or of a hang names
it. The end prints how many nodes of each op were accepted and refused.
"""

import collections
import os
import random
import re
import resource
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from google.protobuf import text_format
from paths import ROOT

import tf_ext

_OP = re.compile(r'REGISTER_OP\("(TfExt>\w+)"\)(.*?)(?=REGISTER_OP|\Z)', re.S)
_ARGUMENT = re.compile(r'\.(Input|Output|Attr)\("(\w+): ([^"]*)"\)')
_DTYPES = {
    "bfloat16": tf.bfloat16,
    "bool": tf.bool,
    "complex128": tf.complex128,
    "double": tf.float64,
    "float": tf.float32,
    "half": tf.float16,
    "int32": tf.int32,
    "int64": tf.int64,
    "resource": tf.resource,
    "string": tf.string,
    "uint8": tf.uint8,
}
_MEMORY_BYTES = 16 << 30  # of addresses, most of which TensorFlow reserves
_SMALL = (0, 1, 2, 3, 5, 8)
_HUGE = (-1, -2, -(2**63), 2**31 - 1, 2**31, 2**62, 2**63 - 1)
_TEXTS = ("", "sum", "mean", "sqrtn", "max", "weights", "x" * 100)


def _ops():
    """{name: (inputs, attrs)}, lists of (name, what is declared of it)."""
    ops = {}
    for path in sorted((ROOT / "cc" / "ops").glob("*_ops.cc")):
        for name, rest in _OP.findall(path.read_text()):
            found = collections.defaultdict(list)
            for kind, argument, type_ in _ARGUMENT.findall(rest):
                found[kind].append((argument, type_))
            ops[name] = (found["Input"], found["Attr"], found["Output"])
    return ops


class _Nodes:
    """Random nodes of an op."""

    def __init__(self, generator):
        self._random = generator
        self._unknown = 0.0  # how often an input's shape is
        self._plain = False  # whether attributes are such as kernels take

    def _integer(self, usual):
        if self._plain:
            return 1
        values = _SMALL if self._random.random() < usual else _HUGE
        return self._random.choice(values)

    def _length(self, lengths):
        """The length of a list: often that of others, sometimes long."""
        if self._plain or self._random.random() < 0.8:
            return self._random.choice(lengths)
        return self._random.choice((0, 1, 2, 7, 40, 3000))

    def _shape(self):
        if self._random.random() < self._unknown:
            return tf.TensorShape(None)
        rank = self._random.choice((0, 1, 1, 1, 2, 2, 3))
        dims = [self._random.choice((None, *_SMALL)) for _ in range(rank)]
        if dims and self._random.random() < 0.1:
            dims[0] = self._random.choice((2**31, 2**62, 2**63 - 1))
        return tf.TensorShape(dims)

    def _one(self, type_, value):
        """Sets a value, which is no list, of an attribute."""
        allowed = re.findall(r"'(\w+)'", type_)
        if type_.startswith("type") or type_.startswith("{"):
            names = re.findall(r"\w+", type_) if "{" in type_ else []
            names = [n for n in names if n in _DTYPES] or ["float", "int64"]
            if allowed:
                value.s = self._random.choice(allowed).encode()
            else:
                value.type = _DTYPES[
                    self._random.choice(names)
                ].as_datatype_enum
        elif type_.startswith("int"):
            value.i = self._integer(0.8)
        elif type_.startswith("float"):
            value.f = self._random.choice((0.0, 1.0, -1.0, 1e38))
        elif type_.startswith("bool"):
            value.b = self._random.random() < 0.5
        elif type_.startswith("shape"):
            value.shape.CopyFrom(self._shape().as_proto())
        else:
            value.s = self._random.choice(_TEXTS).encode()

    def _attr(self, type_, lengths):
        value = tf.compat.v1.AttrValue()
        match = re.match(r"list\((.*)\)", type_)
        if not match:
            self._one(type_, value)
            return value
        value.list.SetInParent()
        for _ in range(self._length(lengths)):
            one = tf.compat.v1.AttrValue()
            self._one(match.group(1), one)
            kind = one.WhichOneof("value")
            values = getattr(value.list, kind)
            if kind == "shape":
                values.add().CopyFrom(one.shape)
            else:
                values.append(getattr(one, kind))
        return value

    def node(self, name, op, graph):
        """Adds placeholders of the inputs to `graph`; returns a NodeDef."""
        inputs, attrs, outputs = op
        self._unknown = self._random.choice((0.1, 0.5, 0.9))
        self._plain = self._random.random() < 0.3
        node = tf.compat.v1.NodeDef(name="node", op=name)
        lists = {
            match.group(1)
            for _, type_ in inputs
            if (match := re.match(r"(\w+) \*", type_))
        }
        numbers = lists | {
            match.group(1)
            for _, type_ in outputs
            if (match := re.match(r"(\w+) \*", type_))
        }
        count = self._random.choice((1, 2, 2, 3, 5))
        for attr, type_ in attrs:
            if attr in lists:
                length = count if self._random.random() < 0.8 else 1
                node.attr[attr].i = length
            elif attr in numbers:
                # TensorFlow itself makes room for all outputs: no huge ones.
                node.attr[attr].i = self._random.choice((count, 0, 1, -1, 900))
            else:
                node.attr[attr].CopyFrom(self._attr(type_, [count]))
        for argument, type_ in inputs:
            for dtype in self._dtypes(node, type_):
                node.input.append(self._input(graph, argument, dtype))
        return node

    def _dtypes(self, node, type_):
        repeat, _, name = type_.rpartition(" * ")
        times = node.attr[repeat].i if repeat else 1
        if name in _DTYPES:
            return [_DTYPES[name].as_datatype_enum] * times
        value = node.attr[name]
        if value.WhichOneof("value") == "list":
            return list(value.list.type) * times
        return [value.type] * times

    def _input(self, graph, argument, dtype):
        name = f"{argument}_{len(graph.node)}"
        node = graph.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = dtype
        if dtype == tf.int64.as_datatype_enum and self._random.random() < 0.3:
            node.op = "Const"
            node.attr["value"].tensor.CopyFrom(
                tf.make_tensor_proto(self._integer(0.5), tf.int64)
            )
        else:
            node.attr["shape"].shape.CopyFrom(self._shape().as_proto())
        return name


def main(seed, count):
    tf_ext.ops.library()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))
    ops = _ops()
    generator = random.Random(seed)
    nodes = _Nodes(generator)
    accepted, refused = collections.Counter(), collections.Counter()
    names = sorted(ops)
    for i in range(count):
        name = names[i % len(names)]
        graph = tf.compat.v1.GraphDef()
        node = nodes.node(name, ops[name], graph)
        graph.node.append(node)
        text = text_format.MessageToString(node, as_one_line=True)
        print(f"{i}: {text[:2000]}", flush=True)
        try:
            with tf.Graph().as_default():
                tf.import_graph_def(graph)
        except (ValueError, TypeError, tf.errors.OpError) as error:
            refused[name] += 1
            print("   ", str(error)[:200])
        else:
            accepted[name] += 1
    print("accepted", dict(accepted))
    print("refused", dict(refused))
    print("never accepted", sorted(set(names) - set(accepted)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
