"""AdaScale's Table 2 at our size."""
