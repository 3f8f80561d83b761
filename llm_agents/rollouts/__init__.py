"""Online batches: TorchRL collects experience from text worlds."""
