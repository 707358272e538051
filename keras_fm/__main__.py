"""`python -m keras_fm`: the `keras-fm` command."""

import sys

from keras_fm.lab import cli

sys.exit(cli.main())
