// Opens the first variant of a package (the folder with runtime.json) that can be had, checks it and prints its name.
// docs/runtime.md describes the format. Models of one float32 input, the image.
//
//   g++ -std=c++17 infer.cpp -I<onnxruntime>/include -I<nlohmann-json>/include -L<onnxruntime>/lib -lonnxruntime -o infer
//   ./infer models/NAME/package
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "sha256.hpp"

using nlohmann::json;

// `needs.cpu` where this CPU has none of what it names, else null: /proc/cpuinfo has the same names.
json lacking(const json& variant) {
  const json& cpu = variant["needs"]["cpu"];
#if defined(__x86_64__)
  const std::string here = "x86_64";
#else
  const std::string here = "arm64";
#endif
  std::ifstream info("/proc/cpuinfo");
  if (cpu.is_null() || cpu["architecture"] != here || !info) return nullptr;
  std::set<std::string> words;
  for (std::string word; info >> word;) words.insert(word);
  for (const std::string feature : cpu["any_of"])
    if (words.count(feature)) return nullptr;
  std::cerr << cpu["reason"].get<std::string>() << "\n";
  return cpu;
}

void append(Ort::SessionOptions& options, const std::string& name, const std::map<std::string, std::string>& settings) {
  std::vector<const char*> keys, values;
  for (const auto& [key, value] : settings) keys.push_back(key.c_str()), values.push_back(value.c_str());
  const OrtApi& api = Ort::GetApi();
  if (name == "CUDAExecutionProvider") {
    OrtCUDAProviderOptionsV2* cuda = nullptr;
    Ort::ThrowOnError(api.CreateCUDAProviderOptions(&cuda));
    std::unique_ptr<OrtCUDAProviderOptionsV2, decltype(api.ReleaseCUDAProviderOptions)> owner(cuda, api.ReleaseCUDAProviderOptions);
    Ort::ThrowOnError(api.UpdateCUDAProviderOptions(cuda, keys.data(), values.data(), keys.size()));
    options.AppendExecutionProvider_CUDA_V2(*cuda);
  } else if (name == "TensorrtExecutionProvider") {
    OrtTensorRTProviderOptionsV2* rt = nullptr;
    Ort::ThrowOnError(api.CreateTensorRTProviderOptions(&rt));
    std::unique_ptr<OrtTensorRTProviderOptionsV2, decltype(api.ReleaseTensorRTProviderOptions)> owner(
        rt, api.ReleaseTensorRTProviderOptions);
    Ort::ThrowOnError(api.UpdateTensorRTProviderOptions(rt, keys.data(), values.data(), keys.size()));
    options.AppendExecutionProvider_TensorRT_V2(*rt);
  } else if (name == "OpenVINOExecutionProvider") {
    options.AppendExecutionProvider_OpenVINO_V2({settings.begin(), settings.end()});
  }  // CPUExecutionProvider is always there, after all others.
}

Ort::Session open(Ort::Env& env, const std::string& path, const json& variant) {
  const std::map<std::string, GraphOptimizationLevel> levels = {
      {"off", ORT_DISABLE_ALL}, {"basic", ORT_ENABLE_BASIC}, {"extended", ORT_ENABLE_EXTENDED}, {"all", ORT_ENABLE_ALL}};
  const json& wanted = variant["session"];
  Ort::SessionOptions options;
  options.SetGraphOptimizationLevel(levels.at(wanted["graph_optimization_level"]));
  options.SetExecutionMode(wanted["execution_mode"] == "parallel" ? ORT_PARALLEL : ORT_SEQUENTIAL);
  options.SetIntraOpNumThreads(wanted["intra_op_threads"]);
  options.SetInterOpNumThreads(wanted["inter_op_threads"]);
  json entries = wanted["config_entries"], without = json::array();
  if (const json cpu = lacking(variant); !cpu.is_null()) {
    entries.update(cpu["otherwise"]);
    without = cpu.value("without", without);
  }
  for (const auto& [key, value] : entries.items()) options.AddConfigEntry(key.c_str(), value.get<std::string>().c_str());
  const auto available = Ort::GetAvailableProviders();
  for (const json& provider : variant["providers"]) {
    const std::string name = provider["name"];
    if (std::find(available.begin(), available.end(), name) == available.end()) continue;
    if (std::find(without.begin(), without.end(), name) != without.end()) continue;  // wrong numbers on this CPU
    try {
      append(options, name, provider["options"]);
    } catch (const Ort::Exception& error) {  // compiled in, but its libraries are not on this machine
      std::cerr << name << " is not available: " << error.what() << "\n";
    }
  }
  return Ort::Session(env, path.c_str(), options);
}

// The self-check's image in the tensor's layout; in float32 at every step.
std::vector<float> painted(const json& config) {
  const auto shape = config["selfcheck"]["input"]["shape"].get<std::vector<int64_t>>();
  const json& spec = config["preprocessing"];
  const auto mean = spec["mean"].get<std::vector<float>>(), std = spec["std"].get<std::vector<float>>();
  const float scale = spec["scale"];
  const bool last = spec["layout"] == "nhwc";
  const int64_t rows = shape[last ? 1 : 2], columns = shape[last ? 2 : 3], channels = shape[last ? 3 : 1];
  std::vector<float> data(shape[0] * rows * columns * channels);
  for (int64_t image = 0; image < shape[0]; ++image)
    for (int64_t channel = 0; channel < channels; ++channel)
      for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < columns; ++column) {
          const float pixel = float((row * (column + 16) / 8 + 85 * channel) % 256);
          const int64_t place = last ? ((image * rows + row) * columns + column) * channels + channel
                                     : ((image * channels + channel) * rows + row) * columns + column;
          data[place] = (pixel / scale - mean[channel % mean.size()]) / std[channel % std.size()];
        }
  return data;
}

// Root mean square of (data - values) / scales at the samples of runtime.json; `scales` may be missing.
double deviation(const std::vector<double>& data, const json& wanted) {
  double sum = 0;
  const size_t count = wanted["values"].size(), stride = wanted["stride"];
  for (size_t k = 0; k < count; ++k) {
    const double scale = wanted.contains("scales") ? wanted["scales"][k].get<double>() : 1;
    const double error = (data.at(k * stride) - wanted["values"][k].get<double>()) / scale;
    sum += error * error;
  }
  return std::sqrt(sum / count);
}

template <typename T>
std::vector<double> doubles(const Ort::Value& value) {
  const T* data = value.GetTensorData<T>();
  return {data, data + value.GetTensorTypeAndShapeInfo().GetElementCount()};
}

// An output's elements, by its type.
std::vector<double> elements(const Ort::Value& value, const std::string& name) {
  const auto type = value.GetTensorTypeAndShapeInfo().GetElementType();
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) return doubles<float>(value);
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE) return doubles<double>(value);
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16)
    throw std::runtime_error("output " + name + " has elements of a type that this program does not read");
  std::vector<double> data;
  const Ort::Float16_t* half = value.GetTensorData<Ort::Float16_t>();
  for (size_t k = 0; k < value.GetTensorTypeAndShapeInfo().GetElementCount(); ++k) data.push_back(half[k].ToFloat());
  return data;
}

// Throws where an output is not what runtime.json has.
void check(Ort::Session& session, const json& config, const json& variant) {
  if (!variant.contains("selfcheck")) return;
  const auto shape = config["selfcheck"]["input"]["shape"].get<std::vector<int64_t>>();
  std::vector<float> image = painted(config);
  // A wrong tensor here would look like a wrong runtime below.
  if (!(deviation({image.begin(), image.end()}, config["selfcheck"]["input"]) < 1e-3))
    throw std::runtime_error("the self-check's image is not painted as runtime.json has it");
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  const auto tensor = Ort::Value::CreateTensor<float>(memory, image.data(), image.size(), shape.data(), shape.size());
  const std::string input = config["image_input"]["name"];
  const char* inputs[] = {input.c_str()};
  for (const json& wanted : variant["selfcheck"]["outputs"]) {
    const std::string name = wanted["name"];
    const char* outputs[] = {name.c_str()};
    const auto got = session.Run(Ort::RunOptions{}, inputs, &tensor, 1, outputs, 1);
    const std::vector<double> data = elements(got[0], name);
    if (data.size() != wanted["elements"]) throw std::runtime_error("self-check: output " + name + " has another size");
    const double off = deviation(data, wanted);
    std::cerr << name << " lies " << off << " of its spread off the reference\n";
    if (!(off <= wanted["tolerance"].get<double>())) throw std::runtime_error("self-check: output " + name + " is too far off");
  }
}

int main(int count, char** arguments) try {
  if (count != 2) throw std::runtime_error("which package? infer models/NAME/package");
  const std::string folder = arguments[1];
  std::ifstream file(folder + "/runtime.json");
  if (!file) throw std::runtime_error(folder + "/runtime.json cannot be read: name the folder that `package` made");
  const json config = json::parse(file);
  if (config.value("format", 0) != 1) throw std::runtime_error("this program reads format 1");
  Ort::Env env(ORT_LOGGING_LEVEL_FATAL, "infer");
  for (const std::string name : config["fallback"]) {
    const json& variant = config["variants"][name];
    const std::string path = folder + "/" + variant["file"].get<std::string>();
    Ort::Session session(nullptr);
    try {
      if (variant["input_type"] != "float32") throw std::runtime_error("its input is not float32");
      if (!config.value("other_inputs", json::array()).empty()) throw std::runtime_error("it takes more than the image");
      if (sha256_of(path) != variant["sha256"]) throw std::runtime_error("it is not the file that runtime.json describes");
      session = open(env, path, variant);
    } catch (const std::exception& error) {
      std::cerr << name << " is skipped: " << error.what() << "\n";
      continue;
    }
    check(session, config, variant);
    std::cout << name << "\n";
    return 0;
  }
  throw std::runtime_error("no variant opens");
} catch (const std::exception& error) {
  std::cerr << "error: " << error.what() << "\n";
  return 1;
}
