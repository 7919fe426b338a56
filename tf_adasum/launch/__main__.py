"""Run `tf-adasum-launch` as `python -m tf_adasum.launch`."""

import sys

from tf_adasum.launch import main

if __name__ == "__main__":
    sys.exit(main())
