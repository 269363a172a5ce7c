# SPDX-License-Identifier: Apache-2.0
r"""Amazon Electronics, with the whole catalog ranked.

    python examples/published/electronics.py --data=amazon_electronics
    python examples/published/electronics.py --data=amazon_electronics --test

The data are `AmazonElectronics_m1` of BARS: `train.txt` and `test.txt`, each
with a line for each user, `user item item ...`.

The model is that of visits.py. Users have no rows here, because they have few
items: most of them are predicted from the rest, drawn again in each epoch.

Without `--test`, the model trains on nine tenths of each user's items of
train.txt, and prints recall@20 and NDCG@20 of the rest as it learns: choose the
number of epochs, and everything else, by means over several of the tenths,
because the data are few. With it, the model trains on all of train.txt for that
number of epochs, and ranks test.txt once; `--log` collects each such reading.
Every figure is a mean over users of all items that are not among theirs in
training. The last line is JSON, with the CPU time and the memory that it took.
"""

import argparse
import pathlib

import numpy as np
import visits


def parts(folder, test, tenth=0):
    """The items of each user in training, and those to be found.

    Args:
      folder: path-like, of the files.
      test: bool, whether to find those of test.txt, and train on all others.
      tenth: int, which tenth of the items of train.txt is to be found else.
    """
    folder = pathlib.Path(folder)
    train = visits.read(folder / "train.txt")
    if test:
        return train, visits.read(folder / "test.txt")
    # The same tenths, whatever the seed.
    rng = np.random.default_rng(0)
    tenths = [np.array_split(rng.permutation(items), 10) for items in train]
    wanted = [of_user.pop(tenth) for of_user in tenths]
    return [np.concatenate(of_user) for of_user in tenths], wanted


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    visits.add_arguments(
        parser,
        epochs=40,
        batch=256,
        negatives=0,
        dim=64,
        gate=0.0,
        drop=0.8,
        rate=0.03,
        temperature=0.3,
    )
    parser.add_argument(
        "--tenth",
        type=int,
        choices=range(10),
        default=0,
        help="which tenth is for validation",
    )
    args = parser.parse_args(arguments)
    return visits.run(args, *parts(args.data, args.test, args.tenth))


if __name__ == "__main__":
    main()
