// A TorchScript artifact behind an interface without libtorch's headers: the PyTorch wheel ships old
// protobuf headers, which must not meet the ones that the gRPC side is compiled with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

// One request, as views of memory that outlives the call. Lengths and values are key-major.
struct Request {
  int64_t rows = 0;
  int64_t dense_features = 0;
  const float* dense = nullptr;
  int64_t id_features = 0;
  const int32_t* lengths = nullptr;
  int64_t values_count = 0;
  const int32_t* values = nullptr;
};

// Scores by output name, one per row.
using Scores = std::map<std::string, std::vector<float>>;

class Model {
 public:
  // Loads `libraries` (of FBGEMM's operators), then the artifact at `path`. Throws std::exception.
  Model(const std::string& path, const std::vector<std::string>& libraries);
  ~Model();

  // Runs one forward with `threads` threads on the calling thread. Throws std::exception.
  Scores predict(const Request& request, int threads) const;

 private:
  struct Module;
  std::unique_ptr<Module> module_;
};
