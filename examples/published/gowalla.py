# SPDX-License-Identifier: Apache-2.0
r"""Check-ins of Gowalla, with the whole catalog ranked.

    python examples/published/gowalla.py --data=gowalla
    python examples/published/gowalla.py --data=gowalla --test

The data are check-ins in the split of LightGCN: `train.txt`, `valid.txt` and
`test.txt`, each with a line for each user, `user item item ...`. The first two
are the published train set.

The model is that of visits.py.

Without `--test`, the model trains on train.txt, and prints recall@20 and
NDCG@20 of valid.txt as it learns: choose the number of epochs, and everything
else, by that. With it, the model trains on train.txt and valid.txt for that
number of epochs, and ranks test.txt once; `--log` collects each such reading.
Every figure is a mean over users of all items that they have not visited in
training. The last line is JSON, with the CPU time and the memory that it took.
"""

import argparse
import pathlib

import numpy as np
import visits


def parts(folder, test):
    """The items of each user in training, and those to be found.

    Args:
      folder: path-like, of the files.
      test: bool, whether to find those of test.txt, and train on valid.txt too.
    """
    train, valid, wanted = (
        visits.read(pathlib.Path(folder) / f"{name}.txt")
        for name in ("train", "valid", "test" if test else "valid")
    )
    if test:
        train = [np.concatenate(both) for both in zip(train, valid)]
    return train, wanted


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    visits.add_arguments(
        parser,
        epochs=36,
        batch=256,
        negatives=4096,
        dim=128,
        gate=0.5,
        drop=0.0,
        rate=0.05,
        temperature=0.12,
    )
    args = parser.parse_args(arguments)
    return visits.run(args, *parts(args.data, args.test))


if __name__ == "__main__":
    main()
