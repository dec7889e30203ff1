// A CUDA driver without a device, for tests: the functions of libcuda.so.1 that csrc/cuda/libcuda.h asks for. It tells
// all calls with their arguments, has the facts that it was given, reads cubins as far as a driver must before it can
// launch, refuses what a driver refuses, and fails where it was told to. Written against NVIDIA's manual, without
// cuda.h; for one thread.
#include <elf.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <sstream>
#include <string>

namespace {

enum { success = 0, invalid_value = 1, invalid_image = 200, invalid_context = 201, not_found = 500, bad_cluster = 912 };
enum { at_most_shared_bytes = 8, clusters_above_8 = 14 };        // attributes of functions
enum { with_cooperative = 2, with_cluster_dimension = 4 };       // and of launches
constexpr int shared_bytes_per_block = 97, unasked = 48 * 1024;  // an attribute of devices; what any kernel may have

struct Attribute {
  int id, padding;
  unsigned values[16];
};

struct Config {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
  const Attribute* attributes;
  unsigned attribute_count;
};

struct Module {
  std::string image;
};

struct Kernel {
  std::string name;
  size_t parameter_bytes;
  std::map<int, int> attributes;
};

struct Failure {
  int error, times;
};

std::deque<Module> modules;
std::deque<Kernel> kernels;
std::map<std::string, Failure> failures;
std::map<int, int> facts;
int64_t context = 1;
int device = 0, occupancy = 1, capturing = 0, clusters[] = {0, 0};
std::string calls, told;

// ---- what is told, as JSON

std::string json(int64_t x) { return std::to_string(x); }
std::string json(const std::string& x) { return "\"" + x + "\""; }
std::string json(const unsigned (&x)[3]) {
  return "[" + json(int64_t(x[0])) + ", " + json(int64_t(x[1])) + ", " + json(int64_t(x[2])) + "]";
}

// Adds a call; returns what it fails with, or else `found`.
template <class... Arguments>
int tell(const char* call, int found, const Arguments&... arguments) {
  calls += (calls.empty() ? "[" : ", [") + json(std::string(call));
  ((calls += ", " + json(arguments)), ...);
  calls += "]";
  const auto failure = failures.find(call);
  if (failure == failures.end() || failure->second.times == 0) return found;
  --failure->second.times;
  return failure->second.error;
}

// ---- cubins: an ELF file with a section .text.NAME for each kernel, and facts of it in .nv.info.NAME

template <class T>
T read(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

bool is_elf(const void* image) { return std::memcmp(image, ELFMAG, SELFMAG) == 0; }

// f(section, its name), until it is true.
template <class F>
bool find_section(const char* image, F f) {
  const auto header = read<Elf64_Ehdr>(image);
  const auto section = [&](int k) { return read<Elf64_Shdr>(image + header.e_shoff + k * header.e_shentsize); };
  const char* names = image + section(header.e_shstrndx).sh_offset;
  for (int k = 0; k < header.e_shnum; ++k)
    if (f(section(k), std::string(names + section(k).sh_name))) return true;
  return false;
}

size_t size_of(const char* image) {
  const auto header = read<Elf64_Ehdr>(image);
  size_t end = header.e_shoff + size_t(header.e_shnum) * header.e_shentsize;
  find_section(image, [&](const Elf64_Shdr& section, const std::string&) {
    const size_t last = section.sh_type == SHT_NOBITS ? 0 : section.sh_offset + section.sh_size;
    end = last > end ? last : end;
    return false;
  });
  return end;
}

// The size of a kernel's parameters: attribute 0x19, whose value is in the entry itself.
bool find_parameter_bytes(const char* image, const std::string& name, size_t& found) {
  return find_section(image, [&](const Elf64_Shdr& section, const std::string& section_name) {
    if (section_name != ".nv.info." + name) return false;
    const char *at = image + section.sh_offset, *end = at + section.sh_size;
    for (; at < end; at += 4 + (at[0] == 4 ? read<uint16_t>(at + 2) : 0)) {
      if (at[0] != 3 || at[1] != 0x19) continue;
      found = read<uint16_t>(at + 2);
      return true;
    }
    return false;
  });
}

// ---- launches

struct Shape {
  unsigned cluster[3] = {1, 1, 1};
  int64_t cooperative = 0;
};

Shape shape_of(const Config& config) {
  Shape shape;
  for (unsigned k = 0; k < config.attribute_count; ++k) {
    const Attribute& attribute = config.attributes[k];
    if (attribute.id == with_cluster_dimension) std::memcpy(shape.cluster, attribute.values, sizeof shape.cluster);
    if (attribute.id == with_cooperative) shape.cooperative = attribute.values[0];
  }
  return shape;
}

// What a driver refuses, of what can be wrong here.
int refusal(Kernel& kernel, const Config& config, const Shape& shape) {
  const unsigned asked = unsigned(kernel.attributes[at_most_shared_bytes]), threads = config.block[0];
  if (config.shared_bytes > (asked > unasked ? asked : unasked)) return invalid_value;
  if (threads == 0 || threads > 1024 || config.grid[0] == 0 || config.grid[0] > INT32_MAX) return invalid_value;
  if (config.grid[0] % shape.cluster[0]) return bad_cluster;
  return shape.cluster[0] > (kernel.attributes[clusters_above_8] ? 16u : 8u) ? bad_cluster : success;
}

std::string hex(const void* from, size_t bytes) {
  constexpr char digits[] = "0123456789abcdef";
  std::string found;
  for (size_t k = 0; k < bytes; ++k) {
    const auto byte = static_cast<const unsigned char*>(from)[k];
    found += {digits[byte / 16], digits[byte % 16]};
  }
  return found;
}

const char* words(int error, bool name) {
  static std::map<std::pair<int, bool>, std::string> known;
  std::string& text = known[{error, name}];
  text = (name ? "CUDA_ERROR_" : "the driver's words for ") + std::to_string(error);
  return text.c_str();
}

}  // namespace

extern "C" {

// ---- for tests

// All calls since the last time, as a JSON list of lists: a name and what went in.
const char* standin_calls() {
  told = "[" + calls + "]";
  calls.clear();
  return told.c_str();
}

void standin_fail(const char* call, int error, int times) { failures[call] = {error, times}; }
void standin_context(int64_t current, int of_device) { context = current, device = of_device; }
void standin_fact(int attribute, int value) { facts[attribute] = value; }
// Clusters of fewer than none are refused.
void standin_clusters(int of_8, int of_16) { clusters[0] = of_8, clusters[1] = of_16; }
void standin_occupancy(int blocks) { occupancy = blocks; }
void standin_capturing(int captures) { capturing = captures; }

// ---- the driver

// Of an error that it does not know a driver gives no text.
int cuGetErrorName(int error, const char** name) {
  const int found = tell("cuGetErrorName", success, int64_t(error));
  *name = found ? nullptr : words(error, true);
  return found;
}

int cuGetErrorString(int error, const char** text) {
  const int found = tell("cuGetErrorString", success, int64_t(error));
  *text = found ? nullptr : words(error, false);
  return found;
}

int cuDeviceGet(int* found, int ordinal) {
  *found = ordinal;
  return tell("cuDeviceGet", success, int64_t(ordinal));
}

int cuDeviceGetAttribute(int* value, int attribute, int of_device) {
  *value = facts[attribute];
  return tell("cuDeviceGetAttribute", success, int64_t(attribute), int64_t(of_device));
}

int cuCtxGetCurrent(void** current) {
  *current = reinterpret_cast<void*>(context);
  return tell("cuCtxGetCurrent", success);
}

int cuCtxGetDevice(int* of_context) {
  *of_context = device;
  return tell("cuCtxGetDevice", context ? success : invalid_context);
}

int cuDevicePrimaryCtxRetain(void** primary, int of_device) {
  *primary = reinterpret_cast<void*>(int64_t(100 + of_device));
  return tell("cuDevicePrimaryCtxRetain", success, int64_t(of_device));
}

int cuCtxSetCurrent(void* current) {
  const int found = tell("cuCtxSetCurrent", success, reinterpret_cast<int64_t>(current));
  if (!found) standin_context(reinterpret_cast<int64_t>(current), device);
  return found;
}

int cuModuleLoadData(void** module, const void* image) {
  const int found = tell("cuModuleLoadData", is_elf(image) ? success : invalid_image);
  if (found) return found;
  const char* begin = static_cast<const char*>(image);
  *module = &modules.emplace_back(Module{std::string(begin, size_of(begin))});
  return found;
}

int cuModuleGetFunction(void** function, void* module, const char* name) {
  const char* image = static_cast<Module*>(module)->image.data();
  size_t bytes = 0;
  const bool there = find_section(
      image, [&](const auto&, const std::string& section) { return section == std::string(".text.") + name; });
  find_parameter_bytes(image, name, bytes);
  const int found = tell("cuModuleGetFunction", there ? success : not_found, std::string(name));
  if (!found) *function = &kernels.emplace_back(Kernel{name, bytes, {}});
  return found;
}

int cuFuncSetAttribute(void* function, int attribute, int value) {
  auto& kernel = *static_cast<Kernel*>(function);
  const bool holds = attribute != at_most_shared_bytes || value <= facts[shared_bytes_per_block];
  const int found =
      tell("cuFuncSetAttribute", holds ? success : invalid_value, kernel.name, int64_t(attribute), int64_t(value));
  if (!found) kernel.attributes[attribute] = value;
  return found;
}

int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, size_t shared_bytes) {
  *blocks = occupancy;
  return tell("cuOccupancyMaxActiveBlocksPerMultiprocessor", success, static_cast<Kernel*>(function)->name,
              int64_t(threads), int64_t(shared_bytes));
}

int cuOccupancyMaxActiveClusters(int* count, void* function, const Config* config) {
  auto& kernel = *static_cast<Kernel*>(function);
  const Shape shape = shape_of(*config);
  *count = clusters[shape.cluster[0] > 8];
  const int refused = refusal(kernel, *config, shape);
  return tell("cuOccupancyMaxActiveClusters", *count < 0 ? bad_cluster : refused, kernel.name, config->grid,
              config->block, int64_t(config->shared_bytes), shape.cluster);
}

int cuStreamIsCapturing(void* stream, int* status) {
  *status = capturing;
  return tell("cuStreamIsCapturing", success, reinterpret_cast<int64_t>(stream));
}

int cuLaunchKernelEx(const Config* config, void* function, void** parameters, void** extra) {
  auto& kernel = *static_cast<Kernel*>(function);
  const Shape shape = shape_of(*config);
  return tell("cuLaunchKernelEx", extra ? invalid_value : refusal(kernel, *config, shape), kernel.name, config->grid,
              config->block, int64_t(config->shared_bytes), reinterpret_cast<int64_t>(config->stream), shape.cluster,
              shape.cooperative, hex(parameters[0], kernel.parameter_bytes));
}
}
