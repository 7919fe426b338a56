"""The failure detector, which detects lost workers during training; drawn in `cluster`."""
