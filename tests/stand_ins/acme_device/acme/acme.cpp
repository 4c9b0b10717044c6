// Two accelerators on the CPU: memory of their own dispatch key with a limit, a generator each, errors that come late.
// Everything that is not written here runs on the CPU and is copied back.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

namespace {

constexpr int kDevices = 2;
constexpr auto kAcme = c10::DeviceType::PrivateUse1;

struct State {
  int64_t used = 0, limit = int64_t(1) << 40;
  std::string pending;  // an error that the next synchronize raises
  bool breaks = false;  // from that error on, as with a CUDA context
  bool endless = false;  // a kernel runs that never ends
  bool broken = false;  // every later call fails
};
std::array<State, kDevices> states;
thread_local c10::DeviceIndex current = 0;

void check_usable(c10::DeviceIndex index) {
  const char* gone = std::getenv("ACME_GONE");
  TORCH_CHECK(!gone || ::access(gone, F_OK) != 0, "acme error 100: no acme device is detected");
  static const pid_t user = ::getpid();  // the first process to use the device: as with CUDA, no fork of it can
  TORCH_CHECK(user == ::getpid(), "acme error 3: cannot use the device in a fork of process ", int(user));
  static int lock = -1;  // as of a driver: the process has it until its end
  if (const char* path = std::getenv("ACME_LOCK"); path && lock < 0) {
    int file = ::open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    bool is_free = ::flock(file, LOCK_EX | LOCK_NB) == 0;
    if (!is_free) ::close(file);
    TORCH_CHECK(is_free, "acme error 16: the device is in use by another process (EBUSY)");
    lock = file;
  }
  TORCH_CHECK(!states[index].broken, "acme error 700: device acme:", int(index), " is in an error state");
}

// ---- memory

struct Block {
  void* data;
  int64_t size;
  c10::DeviceIndex device;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  states[block->device].used -= block->size;
  std::free(block->data);
  delete block;
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t size) override {
    check_usable(current);
    auto& state = states[current];
    TORCH_CHECK_WITH(
        OutOfMemoryError, state.used + int64_t(size) <= state.limit,
        "acme out of memory: tried to allocate ", size, " bytes on acme:", int(current), ", ", state.limit - state.used, " are free");
    state.used += size;
    auto* block = new Block{size ? std::malloc(size) : nullptr, int64_t(size), current};
    return {block->data, block, &release, c10::Device(kAcme, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { std::memcpy(to, from, count); }
};
Allocator allocator;
REGISTER_ALLOCATOR(kAcme, &allocator);

// ---- the current device

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kAcme; }
  c10::Device exchangeDevice(c10::Device device) const override {
    auto before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {kAcme, current}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < kDevices, "acme: no device ", device);
    if (device.index() >= 0) current = device.index();
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current = device.index();
  }
  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// ---- random numbers: a CPU generator under another device's name

struct Generator final : c10::GeneratorImpl {
  at::Generator cpu = at::detail::createCPUGenerator();
  explicit Generator(c10::DeviceIndex index)
      : c10::GeneratorImpl({kAcme, index}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  c10::GeneratorImpl* clone_impl() const override {
    auto* made = new Generator(device().index());
    made->cpu = cpu.clone();
    return made;
  }
};

at::Generator& default_generator(c10::DeviceIndex index) {
  static std::array<at::Generator, kDevices> all{at::make_generator<Generator>(0), at::make_generator<Generator>(1)};
  return all[index < 0 ? current : index];
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  void setCurrentDevice(c10::DeviceIndex index) const override { current = index; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override { return default_generator(index); }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<Generator>(index < 0 ? current : index);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto grown = allocator.allocate(size);
    std::memcpy(grown.get(), storage.data(), std::min(size, storage.nbytes()));
    storage.unsafeGetStorageImpl()->set_data_ptr(std::move(grown));
    storage.unsafeGetStorageImpl()->set_nbytes(size);
  }
};

// ---- operators

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device> device, std::optional<bool>) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kAcme, current)));
  return at::detail::empty_strided_generic(
      size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat));
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device> device,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  c10::DeviceGuard guard(device.value_or(c10::Device(kAcme, current)));
  return at::detail::empty_generic(
      size, &allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), dtype.value_or(at::kFloat), format);
}

// The elements of a tensor as one of the CPU, on the same memory.
at::Tensor on_cpu(const at::Tensor& value) {
  if (value.is_cpu()) return value;
  check_usable(value.device().index());
  auto options = at::TensorOptions().dtype(value.dtype()).device(at::kCPU);
  return at::from_blob(value.data_ptr(), value.sizes(), value.strides(), [value](void*) {}, options, at::Device(at::kCPU));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool) {
  on_cpu(target).copy_(on_cpu(self));
  return target;
}

const at::Tensor& resize_(const at::Tensor& self, c10::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* tensor = self.unsafeGetTensorImpl();
  auto bytes = (c10::multiply_integers(size) + tensor->storage_offset()) * self.itemsize();
  c10::DeviceGuard guard(self.device());
  if (bytes > self.storage().nbytes()) at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(self.storage(), bytes);
  if (self.sizes() != size) tensor->set_sizes_contiguous(size);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  resize_(target, self.sizes(), std::nullopt);
  on_cpu(target).copy_(on_cpu(self));
  return target;
}

// In place on the memory itself, with the numbers of the device's own generator.
void random_in_place(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  auto& arguments = op.schema().arguments();
  auto begin = stack->end() - arguments.size();
  auto self = begin->toTensor();
  *begin = on_cpu(self);
  auto& last = stack->back();
  auto given = last.isNone() ? default_generator(self.device().index()) : last.toGenerator();
  last = static_cast<Generator*>(given.unsafeGetGeneratorImpl())->cpu;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  stack->back() = self;
}

void on_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

// ---- what the module torch.acme calls

void set_limit(int64_t device, int64_t bytes) { states.at(device).limit = bytes; }
int64_t allocated(int64_t device) { return states.at(device).used; }
int64_t limit(int64_t device) { return states.at(device).limit; }
void set_device(int64_t device) { Guard().setDevice({kAcme, c10::DeviceIndex(device)}); }
at::Generator generator(int64_t device) {
  check_usable(device);  // CUDA's refuse too
  return default_generator(device);
}
int64_t current_device() { return current; }
void fail_later(int64_t device, std::string text) { states.at(device).pending = text; }
void break_later(int64_t device, std::string text) {
  fail_later(device, text);
  states.at(device).breaks = true;
}
void break_device(int64_t device) { states.at(device).broken = true; }
void never_ready(int64_t device) { states.at(device).endless = true; }
void synchronize(int64_t device) {
  while (states.at(device).endless) ::pause();
  auto text = std::exchange(states.at(device).pending, "");
  states.at(device).broken |= !text.empty() && states.at(device).breaks;
  TORCH_CHECK(text.empty(), text);
  check_usable(device);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("resize_", &resize_);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  for (auto name : {"normal_", "uniform_", "random_", "random_.from", "random_.to", "bernoulli_.float", "exponential_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&random_in_place>());
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_the_cpu>()); }

TORCH_LIBRARY(acme_runtime, m) {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  m.def("set_limit", &set_limit);
  m.def("allocated", &allocated);
  m.def("limit", &limit);
  m.def("set_device", &set_device);
  m.def("generator", &generator);
  m.def("current_device", &current_device);
  m.def("fail_later", &fail_later);
  m.def("break_later", &break_later);
  m.def("break_device", &break_device);
  m.def("never_ready", &never_ready);
  m.def("synchronize", &synchronize);
}
