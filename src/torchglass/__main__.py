"""`python -m torchglass` is the command `torchglass`."""

import sys

from torchglass.cli import main

sys.exit(main())
