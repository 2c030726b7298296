"""The exporter: TorchRec DLRM to a quantised TorchScript artifact."""
