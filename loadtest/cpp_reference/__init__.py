"""The yardstick: a C++ gRPC server of TorchRec's design, built by ``make cpp-reference``."""
