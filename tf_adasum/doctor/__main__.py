"""`python -m tf_adasum.doctor`: the same as `tf-adasum-doctor`."""

import sys

from tf_adasum.doctor import main

if __name__ == "__main__":
    sys.exit(main())
