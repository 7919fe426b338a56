"""How orthogonal the replicas' gradients are, over a training."""
