"""`python -m tf_adasum.launch`: the same as `tf-adasum-launch`."""

import sys

from tf_adasum.launch import main

if __name__ == "__main__":
    sys.exit(main())
