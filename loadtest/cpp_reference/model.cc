#include "model.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <torch/script.h>

#include <stdexcept>

struct Model::Module {
  torch::jit::Module script;
};

namespace {

void load_library(const std::string& path) {
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    throw std::runtime_error(dlerror());
  }
}

// A view of the request's memory: libtorch takes no const pointer, and the forward writes to none.
template <typename T>
at::Tensor view(const T* data, at::IntArrayRef sizes, at::ScalarType type) {
  return torch::from_blob(const_cast<T*>(data), sizes, type);
}

std::vector<float> to_floats(const at::Tensor& scores) {
  const at::Tensor flat = scores.detach().to(at::kCPU, at::kFloat).contiguous().reshape({-1});
  const float* data = flat.const_data_ptr<float>();
  return {data, data + flat.numel()};
}

}  // namespace

Model::Model(const std::string& path, const std::vector<std::string>& libraries)
    : module_(std::make_unique<Module>()) {
  for (const auto& library : libraries) load_library(library);
  module_->script = torch::jit::load(path);
  module_->script.eval();
}

Model::~Model() = default;

Scores Model::predict(const Request& request, int threads) const {
  thread_local const bool set = (at::set_num_threads(threads), true);  // belongs to the thread
  (void)set;
  const c10::InferenceMode guard;

  c10::Dict<std::string, at::Tensor> inputs;
  inputs.insert("float_features",
                view(request.dense, {request.rows, request.dense_features}, at::kFloat));
  inputs.insert("id_list_features.lengths",
                view(request.lengths, {request.id_features, request.rows}, at::kInt));
  inputs.insert("id_list_features.values", view(request.values, {request.values_count}, at::kInt));

  const auto outputs = module_->script.get_method("forward")({inputs}).toGenericDict();
  Scores scores;
  for (const auto& output : outputs) {
    scores[output.key().toStringRef()] = to_floats(output.value().toTensor());
  }
  return scores;
}
