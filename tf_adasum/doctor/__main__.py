"""Run `tf-adasum-doctor` as `python -m tf_adasum.doctor`."""

import sys

from tf_adasum.doctor import main

if __name__ == "__main__":
    sys.exit(main())
