"""word2vec on Shakespeare's words: sparse gradients, on 1 to 32 replicas."""
