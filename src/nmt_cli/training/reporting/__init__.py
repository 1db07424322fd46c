"""Reports of a training: metrics, progress, a profile, files for TensorBoard."""
