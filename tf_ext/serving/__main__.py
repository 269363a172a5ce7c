# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_ext.serving`."""

import sys

from tf_ext.serving.cli import main

if __name__ == "__main__":
    sys.exit(main())
