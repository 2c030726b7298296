"""gRPC transport: predictor.Predictor, health and reflection on grpcio."""
