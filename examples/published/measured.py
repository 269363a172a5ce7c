# SPDX-License-Identifier: Apache-2.0
"""What the examples of published figures report about a run."""

import json
import resource


def cpu_seconds():
    """The CPU time of this process so far, of all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def add_arguments(parser, data):
    """Adds the arguments that all programs have.

    Args:
      parser: argparse.ArgumentParser.
      data: string, what `--data` is.
    """
    parser.add_argument("--data", required=True, help=data)
    parser.add_argument("--test", action="store_true")
    parser.add_argument("--log", help="file to which --test adds its figures")


def train(model, data, args, measure, every):
    """Trains a model for `args.epochs`, and reports what it has reached.

    Figures of the validation part are printed as it learns; those of the test
    part are measured once.

    Args:
      model: compiled keras.Model.
      data: tf.data.Dataset of an epoch.
      args: the arguments of the program.
      measure: function without arguments to a dict of figures.
      every: int, epochs a print.

    Returns:
      dict, as of `report`.
    """
    result = {}
    for epoch in range(1, args.epochs + 1):
        loss = model.fit(data, verbose=0).history["loss"][0]
        done = epoch == args.epochs
        if done or (not args.test and epoch % every == 0):
            result = {
                "epoch": epoch,
                "loss": loss,
                "train_cpu_seconds": round(cpu_seconds()),
                **measure(),
            }
            if not done:
                print(json.dumps(result), flush=True)
    return report(args, result)


def report(args, figures):
    """Prints the last line, and adds it to the log if test data were read.

    Args:
      args: the arguments of the program, with `test` and `log`.
      figures: dict of what was measured.

    Returns:
      dict of both, with CPU time and memory.
    """
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = {
        **vars(args),
        **figures,
        "cpu_seconds": round(cpu_seconds()),
        "peak_mb": peak // 1024,
    }
    print(json.dumps(result))
    if args.test and args.log:
        with open(args.log, "a") as log:
            log.write(json.dumps(result) + "\n")
    return result
