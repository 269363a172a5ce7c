# SPDX-License-Identifier: Apache-2.0
"""Serves a model over HTTP; started by serve.py.

    python serve_http.py stock VERSIONS
    python serve_http.py follow POINTS
    python serve_http.py lookup STORE

`stock` serves the newest version of what `tf_ext.serving.export` wrote, and
cannot import tf_ext; `follow` imports it and follows the recovery points of a
training; `lookup` finds rows in the store into which `tf_ext.serving.publish`
writes, and does not import TensorFlow if versions have an ONNX model. All look
for something new five times a second, and print the port that they listen on
once they can answer.

    POST /predict  {feature: list} -> {"scores": list, "steps": [int, int],
                   "changing": bool}

`steps` are the training steps of the model before and after the answer was
computed, and `changing` tells whether rows were being replaced meanwhile.
"""

import os
import pathlib
import socket
import sys
import threading

ROLE, PATH = sys.argv[1], sys.argv[2]
if ROLE == "stock":
    sys.modules["tf_ext"] = None  # An import of it fails.

import uvicorn  # noqa: E402
from serve_sample import ONE_SAMPLE  # noqa: E402
from starlette.applications import Starlette  # noqa: E402
from starlette.concurrency import run_in_threadpool  # noqa: E402
from starlette.responses import JSONResponse  # noqa: E402
from starlette.routing import Route  # noqa: E402

SECONDS_BETWEEN_LOOKS = 0.2


class Stock:
    """The newest version of an export."""

    def __init__(self, path):
        from serve_data import to_features

        self._to_features = to_features
        self._path = pathlib.Path(path)
        self._loaded = 0, None
        self.look()

    def look(self):
        """Loads the newest version, if there is one that is newer."""
        # Versions have their names once they are whole.
        numbers = [
            int(p.name) for p in self._path.iterdir() if p.name.isdecimal()
        ]
        newest = max(numbers)
        if newest > self._loaded[0]:
            import tensorflow as tf

            model = tf.saved_model.load(str(self._path / str(newest)))
            model.serve(self._to_features(ONE_SAMPLE))
            # Requests that are under way keep the version that they began with.
            self._loaded = newest, model

    def predict(self, lists):
        """`(scores, steps, changing)`."""
        step, model = self._loaded
        features = self._to_features(lists)
        return model.serve(features).numpy()[:, 0], [step, step], False


class Following:
    """A model that follows the recovery points of a training."""

    def __init__(self, path):
        import tensorflow as tf
        import wide_deep
        from serve_data import to_features

        import tf_ext

        self._to_features = to_features
        args = wide_deep.parse_arguments(["--examples=1"])
        with tf_ext.serving.weights_only():
            tables = wide_deep.make_tables(args)
            model = wide_deep.make_model(
                wide_deep.load_data(args), *tables, args.bucket_size
            )
        self._follower = tf_ext.serving.follow(model, path, every=None)
        self._call = tf.function(
            lambda features: model(features, training=False)[:, 0],
            reduce_retracing=True,
        )
        self._call(to_features(ONE_SAMPLE))
        # Odd while rows may be changing.
        self._changes = 0

    def look(self):
        """Moves to the newest point, if there is one that is newer."""
        self._changes += 1
        try:
            self._follower.update()
        finally:
            self._changes += 1

    def predict(self, lists):
        """`(scores, steps, changing)`."""
        features = self._to_features(lists)
        changes, step = self._changes, self._follower.step
        scores = self._call(features).numpy()
        changing = changes % 2 == 1 or changes != self._changes
        return scores, [step, self._follower.step], changing


class LookingUp:
    """The current version of a store, whose rows are looked up."""

    def __init__(self, path):
        from tf_ext import serving

        # Or RedisSink("redis://localhost:6379/0", "ads").
        sink = serving.DirectorySink(path)
        manifest = sink.manifest(sink.versions().current)
        dense = "onnx" if "onnx" in manifest else "tensorflow"
        self._lookup = serving.Lookup(sink, dense=dense, every=None)
        self.look()
        self._lookup.predict(ONE_SAMPLE)
        assert dense == "tensorflow" or "tensorflow" not in sys.modules

    def look(self):
        """Goes to the version that is current."""
        self._lookup.update()

    def predict(self, lists):
        """`(scores, steps, changing)`."""
        step = self._lookup.manifest["step"]
        [scores] = self._lookup.predict(lists).values()
        return scores[:, 0], [step, self._lookup.manifest["step"]], False


def app_of(model):
    """The application that answers by a model."""

    def answer(lists):
        scores, steps, changing = model.predict(lists)
        scores = [float(score) for score in scores]
        return {"scores": scores, "steps": steps, "changing": changing}

    async def predict(request):
        try:
            return JSONResponse(
                await run_in_threadpool(answer, await request.json())
            )
        except (TypeError, ValueError) as error:
            return JSONResponse({"error": str(error)}, 400)

    return Starlette(routes=[Route("/predict", predict, methods=["POST"])])


def look_out(model, stop):
    """Has the model look for something new until it is time to stop."""
    while not stop.wait(SECONDS_BETWEEN_LOOKS):
        try:
            model.look()
        except Exception as error:  # It goes on with what it has.
            print(f"{ROLE}: {error}", file=sys.stderr, flush=True)


def main():
    roles = {"stock": Stock, "follow": Following, "lookup": LookingUp}
    model = roles[ROLE](PATH)
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app_of(model), log_level="warning", access_log=False)
    )
    stop = threading.Event()
    looking = threading.Thread(target=look_out, args=[model, stop])

    def end_with_the_parent():
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    looking.start()
    print(listener.getsockname()[1], flush=True)
    server.run(sockets=[listener])
    stop.set()
    looking.join()
    sys.stdout.flush()
    # A thread of the interpreter waits for standard input still.
    os._exit(0)


if __name__ == "__main__":
    main()
