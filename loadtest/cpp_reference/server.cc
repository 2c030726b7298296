// The design of TorchRec's C++ inference server, as fast as it goes: gRPC's synchronous service, a
// handler thread a request, each request its own forward, no batching. The yardstick for Narsil.

#include <grpcpp/grpcpp.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "model.h"
#include "predictor.grpc.pb.h"

namespace {

constexpr int kUnlimited = std::numeric_limits<int>::max();

class Service final : public predictor::Predictor::Service {
 public:
  Service(const Model& model, int threads) : model_(model), threads_(threads) {}

  grpc::Status Predict(grpc::ServerContext*, const predictor::PredictionRequest* wire,
                       predictor::PredictionResponse* answer) override {
    try {
      for (auto& [name, scores] : model_.predict(parse(*wire), threads_)) {
        (*answer->mutable_predictions())[name].mutable_data()->Add(scores.begin(), scores.end());
      }
      return grpc::Status::OK;
    } catch (const std::invalid_argument& error) {
      return {grpc::StatusCode::INVALID_ARGUMENT, error.what()};
    } catch (const std::exception& error) {
      return {grpc::StatusCode::INTERNAL, error.what()};
    }
  }

 private:
  static Request parse(const predictor::PredictionRequest& wire) {
    const auto& dense = wire.float_features();
    const auto& ids = wire.id_list_features();
    Request request;
    request.rows = wire.batch_size();
    request.dense_features = dense.num_features();
    request.dense = reinterpret_cast<const float*>(dense.values().data());
    request.id_features = ids.num_features();
    request.lengths = reinterpret_cast<const int32_t*>(ids.lengths().data());
    request.values_count = static_cast<int64_t>(ids.values().size() / sizeof(int32_t));
    request.values = reinterpret_cast<const int32_t*>(ids.values().data());
    check(request, dense.values().size(), ids.lengths().size());
    return request;
  }

  // As many values as the shapes say; that ids lie in their tables is not checked, as upstream.
  static void check(const Request& request, size_t dense_bytes, size_t lengths_bytes) {
    const auto rows = request.rows;
    if (rows < 0 || static_cast<size_t>(rows * request.dense_features) * sizeof(float) != dense_bytes ||
        static_cast<size_t>(rows * request.id_features) * sizeof(int32_t) != lengths_bytes) {
      throw std::invalid_argument("values do not match batch_size and num_features");
    }
    int64_t total = 0;
    for (int64_t i = 0; i < rows * request.id_features; ++i) total += request.lengths[i];
    if (total != request.values_count) throw std::invalid_argument("lengths do not add up to values");
  }

  const Model& model_;
  const int threads_;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find(':', start), text.size());
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: cpp_reference MODEL.pt HOST:PORT THREADS_A_FORWARD LIBRARY[:LIBRARY...]\n";
    return 2;
  }
  try {
    const Model model(argv[1], split(argv[4]));
    Service service(model, std::stoi(argv[3]));
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort(argv[2], grpc::InsecureServerCredentials(), &port);
    builder.SetMaxReceiveMessageSize(kUnlimited);
    builder.RegisterService(&service);
    const auto server = builder.BuildAndStart();
    if (!server || port == 0) throw std::runtime_error(std::string("cannot listen on ") + argv[2]);
    std::cout << "listening on port " << port << std::endl;
    server->Wait();  // until a signal ends the process
  } catch (const std::exception& error) {
    std::cerr << "cpp_reference: " << error.what() << '\n';
    return 1;
  }
  return 0;
}
