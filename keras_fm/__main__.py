"""`python -m keras_fm`: the `keras-fm` command."""

import sys

from keras_fm import cli

sys.exit(cli.main())
