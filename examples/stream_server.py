# SPDX-License-Identifier: Apache-2.0
"""Serves a model from the rows of a store over HTTP; started by stream.py.

    python stream_server.py STORE NAME ...

Each NAME is a model of its own in the store. It prints "ready", waits for a
version of each, and prints the port that it listens on. It looks for new ones
five times a second, and ends when its standard input does.

    POST /NAME  {feature: list} -> {"scores": list, "steps": [int, int]}

`steps` are the training steps of the versions that were current before and
after: the answer is of one of the two, or of one between them.
"""

import argparse
import os
import socket
import sys
import threading
import time

import stream_data
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route

import tf_ext

SECONDS_BETWEEN_LOOKS = 0.2


def app_of(lookups):
    """The application that answers from tf_ext.serving.Lookup, by name."""

    def answer(name, features):
        lookup = lookups[name]
        before = lookup.manifest["step"]
        [scores] = lookup.predict(features).values()
        return {
            "scores": scores[:, 0].tolist(),
            "steps": [before, lookup.manifest["step"]],
        }

    async def predict(request):
        name = request.path_params["name"]
        if name not in lookups:
            return JSONResponse({"error": f"There is no model {name!r}."}, 404)
        try:
            return JSONResponse(
                await run_in_threadpool(answer, name, await request.json())
            )
        except ValueError as error:
            return JSONResponse({"error": str(error)}, 400)
        except tf_ext.serving.SinkError as error:  # It is away.
            return JSONResponse({"error": str(error)}, 503)

    return Starlette(routes=[Route("/{name}", predict, methods=["POST"])])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("store")
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    stream_data.end_with_the_parent()
    print("ready", flush=True)
    lookups = {}
    for name in args.names:
        sink = stream_data.sink_at(args.store, name)
        while not sink.versions().current:
            time.sleep(SECONDS_BETWEEN_LOOKS)
        lookups[name] = tf_ext.serving.Lookup(
            sink, dense="tensorflow", every=SECONDS_BETWEEN_LOOKS
        )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app_of(lookups), log_level="warning", access_log=False)
    )

    def end_with_the_parent():
        sys.stdin.read()
        server.should_exit = True

    threading.Thread(target=end_with_the_parent, daemon=True).start()
    print(listener.getsockname()[1], flush=True)
    server.run(sockets=[listener])
    for lookup in lookups.values():
        lookup.close()
    sys.stdout.flush()
    # A thread of the interpreter waits for standard input still.
    os._exit(0)


if __name__ == "__main__":
    main()
